"""Real threads under virtual time that run one at a time, in an order that one seed decides.

The kernel's threads are started as usual, but each runs only when it is given its turn: by the loop, when
nothing else is ready or now and then before that, and until it waits for a command, comes to an operation of
the disk, or ends. So a run is the same every time, and everything that threads can do to each other between
two operations of the disk can happen.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from samovar.runtime.kernel import cell, places, turn
from samovar.runtime.kernel import threads as kernel_threads

from tests.kit.loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from tests.kit.faults import Operation

PATIENCE_S = 30.0
"""Real seconds that one turn may take."""
EARLY = 0.2
"""How often a thread gets a turn although the loop has something to do."""


class Abandoned(BaseException):
    """The run is over; a thread that is still there ends."""


class Turns:
    """Whose turn it is. ``pace`` says how many seconds an operation of the disk takes, None: no pause."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.pace: Callable[[Operation], float | None] = lambda _: None
        self.loop: TurnLoop | None = None
        self.strands: list[Strand] = []
        self._back = threading.Semaphore(0)

    def now_s(self) -> float:
        return self.loop.time() if self.loop is not None else 0.0

    # -- on the loop's thread

    def step(self) -> bool:
        """Give one thread that can go on its turn; False when there is none."""
        now_s = self.now_s()
        able = [strand for strand in self.strands if strand.able(now_s)]
        if not able:
            return False
        strand = able[0] if len(able) == 1 else self.chance.choice(able)
        self._run(strand)
        return True

    def _run(self, strand: Strand) -> None:
        strand.go.release()
        assert self._back.acquire(timeout=PATIENCE_S), f"{strand.name} waits for what is not the kit's"

    def idle(self) -> bool:
        """Whether every thread waits for a command."""
        return all(strand.at_rest() for strand in self.strands)

    def hurry(self) -> None:
        """Let operations that still take their time be over."""
        for strand in self.strands:
            strand.due_s = 0.0

    def abandon(self) -> None:
        """End all threads that are left."""
        for strand in list(self.strands):
            strand.abandoned = True
            while strand in self.strands:
                self._run(strand)

    # -- on the threads

    def hook(self, operation: Operation) -> None:
        """Is the disk's hook: an operation takes its time, and others may come before it."""
        strand = threading.current_thread()
        if isinstance(strand, Strand):
            pause_s = self.pace(operation)
            if pause_s is not None:
                self.park(strand, None, pause_s)

    def park(self, strand: Strand, inbox: deque[Any] | None, pause_s: float = 0.0) -> None:
        """Wait until there is something in ``inbox``, or the pause is over, and it is this one's turn."""
        strand.inbox = inbox
        strand.due_s = self.now_s() + pause_s
        if pause_s and self.loop is not None:
            self.loop.call_at(strand.due_s, _nothing)  # the loop's thread waits: nothing is concurrent here
        self._back.release()
        strand.go.acquire()
        if strand.abandoned:
            raise Abandoned

    def ended(self, strand: Strand) -> None:
        self.strands.remove(strand)
        self._back.release()

    # -- in the kernel's place

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the kernel make its threads here, and no actor give way because real time has passed."""
        kept = kernel_threads.threading, kernel_threads.queue, kernel_threads.ThreadPoolExecutor
        module: Any = kernel_threads
        starting: Any = places
        turn_s = turn.TURN_S
        turn.TURN_S = cell.TURN_S = math.inf  # type: ignore[misc]
        module.threading = SimpleNamespace(Condition=threading.Condition)
        starting.threading = SimpleNamespace(Thread=self._thread, Lock=threading.Lock)
        module.queue = SimpleNamespace(SimpleQueue=lambda: Inbox(self), Empty=queue.Empty)
        starting.queue = module.queue
        module.ThreadPoolExecutor = lambda _, thread_name_prefix: OneThread(self, thread_name_prefix)
        try:
            yield
        finally:
            module.threading, module.queue, module.ThreadPoolExecutor = kept
            starting.threading, starting.queue = kept[:2]
            turn.TURN_S = cell.TURN_S = turn_s  # type: ignore[misc]

    def _thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> Strand:
        return Strand(self, target, name, daemon=daemon)


class Strand(threading.Thread):
    """A thread that runs in turns."""

    def __init__(self, turns: Turns, target: Callable[[], None], name: str, *, daemon: bool = True) -> None:
        super().__init__(target=target, name=name, daemon=daemon)
        self.turns = turns
        self.go = threading.Semaphore(0)
        self.inbox: deque[Any] | None = None
        self.due_s = 0.0
        self.abandoned = False

    def start(self) -> None:
        self.turns.strands.append(self)
        super().start()

    def run(self) -> None:
        self.go.acquire()
        try:
            if not self.abandoned:
                super().run()
        except Abandoned:
            return
        finally:
            self.turns.ended(self)

    def able(self, now_s: float) -> bool:
        return self.due_s <= now_s + 1e-6 and (self.inbox is None or len(self.inbox) > 0)

    def at_rest(self) -> bool:
        return self.inbox is not None and not self.inbox


class Inbox:
    """A SimpleQueue whose reader waits for its turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self) -> Any:
        strand = threading.current_thread()
        assert isinstance(strand, Strand)
        self._turns.park(strand, self._items)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class OneThread:
    """An executor of one thread, which runs in turns."""

    def __init__(self, turns: Turns, name: str) -> None:
        self._inbox = Inbox(turns)
        Strand(turns, self._work, f"{name}_0").start()

    def submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._inbox.put((future, job, args))
        return future

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        assert not wait
        assert cancel_futures
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.get_nowait()[0].cancel()
        self._inbox.put(None)

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            future, job, args = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = job(*args)
            except Abandoned:
                raise
            except BaseException as error:  # noqa: BLE001 - the future carries it
                future.set_exception(error)
            else:
                future.set_result(result)


class TurnLoop(VirtualLoop):
    """The virtual loop, which gives the threads their turns instead of waiting for them."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns
        turns.loop = self
        self.threads_at_start: Any = SimpleNamespace(issuperset=lambda _: True)

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        if ready and self.turns.strands and self.turns.chance.random() < EARLY:
            self.turns.step()
        while not ready and self.turns.step():
            pass
        super()._run_once()  # type: ignore[misc]


def _nothing() -> None:
    return
