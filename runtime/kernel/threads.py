"""Threads that an actor owns: one pinned thread with a mailbox of its own, and a bounded pool."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from .errors import ActorGone, KernelError, Overloaded
from .places import ThreadPlaces

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")
E = TypeVar("E")
R = TypeVar("R")


class _Stop:
    """Marks the end of a thread's inbox."""


_STOP = _Stop()


class ThreadPort(Generic[C, E]):
    """The thread's side of a PinnedThread: commands in, events out. That thread only."""

    __slots__ = ("_inbox", "_thread", "stopping")

    def __init__(self, thread: PinnedThread[C, E], inbox: queue.SimpleQueue[C | _Stop]) -> None:
        self._thread = thread
        self._inbox = inbox
        self.stopping = False

    def take(self) -> list[C]:
        """Return the commands that wait, without blocking."""
        commands: list[C] = []
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return commands
            self._sort(item, commands)

    def wait(self) -> list[C]:
        """Block until a command or a stop arrives; return what is there."""
        if self.stopping:
            return self.take()
        commands: list[C] = []
        self._sort(self._inbox.get(), commands)
        return commands + self.take()

    def emit(self, events: list[E]) -> None:
        """Hand ``events`` to the loop in one call; blocks while the loop lags more than the event limit."""
        if events:
            self._thread.hand_over(events, self)

    def _sort(self, item: C | _Stop, commands: list[C]) -> None:
        if isinstance(item, _Stop):
            self.stopping = True
        else:
            commands.append(item)


class PinnedThread(Generic[C, E]):
    """One operating-system thread with one owner while it runs ``body``, once, from start to end.

    The thread comes from ``places`` and waits there for a successor of the same name once ``body`` has
    returned; without, it ends. ``send``, ``stop`` and ``join`` are for the loop thread. Events are delivered
    in order to ``on_events`` on the loop thread, any number in one call; ``on_exit`` gets the exception
    that ended ``body``, or None. At most ``event_limit`` events wait for the loop; past that the thread
    waits, so a stalled loop slows its lanes instead of filling memory.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[ThreadPort[C, E]], None],
        on_events: Callable[[list[E]], None],
        on_exit: Callable[[BaseException | None], None],
        *,
        event_limit: int = 65_536,
        places: ThreadPlaces | None = None,
    ) -> None:
        self.name = name
        self._body = body
        self._on_events = on_events
        self._on_exit = on_exit
        self._event_limit = event_limit
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[C | _Stop] = queue.SimpleQueue()
        self._outbox: list[E] = []
        self._handover = threading.Condition()
        self._scheduled = False
        self._stopped = False
        self._ended = asyncio.Event()
        self._places = places or ThreadPlaces(idle_limit=0)

    def start(self) -> None:
        """Start the body on an idle thread of this name, else on a new one."""
        self._places.run(self.name, self._run)

    def send(self, command: C) -> None:
        """Queue a command for the thread. Its owner bounds how many it sends."""
        self._inbox.put(command)

    def stop(self) -> None:
        """Ask the body to end; commands sent before are still seen. Idempotent."""
        if not self._stopped:
            self._stopped = True
            self._inbox.put(_STOP)
            with self._handover:
                self._handover.notify_all()

    async def join(self, timeout_s: float) -> bool:
        """Wait for the end of the body; False when it did not come in time."""
        if not self._ended.is_set():
            waiter = asyncio.ensure_future(self._ended.wait())
            await asyncio.wait({waiter}, timeout=timeout_s)
            waiter.cancel()
        return self._ended.is_set()

    def hand_over(self, events: list[E], port: ThreadPort[C, E]) -> None:
        """Queue events for the loop (called by the port, on the pinned thread)."""
        with self._handover:
            while len(self._outbox) >= self._event_limit and not (self._stopped or port.stopping):
                self._handover.wait()
            self._outbox.extend(events)
            if not self._scheduled:
                self._scheduled = self._call_loop(self._deliver)

    def _deliver(self) -> None:
        with self._handover:
            events, self._outbox = self._outbox, []
            self._scheduled = False
            self._handover.notify_all()
        if events:
            self._on_events(events)

    def _run(self) -> Callable[[], object]:
        """Run the body; return what tells the loop of its end, for when the thread can be used again."""
        error: BaseException | None = None
        try:
            self._body(ThreadPort(self, self._inbox))
        except BaseException as exc:  # noqa: BLE001 - this is the thread's guard: the owner gets everything
            error = exc
        return partial(self._call_loop, self._finish, error)

    def _finish(self, error: BaseException | None) -> None:
        self._deliver()
        self._ended.set()
        self._on_exit(error)

    def _call_loop(self, callback: Callable[..., None], *args: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            return False  # the loop is closed: nobody is left to tell
        return True


class BlockingPool:
    """At most ``threads`` threads for short blocking work, with at most ``limit`` jobs in hand.

    ``run`` and ``close`` are for the loop thread; jobs are started in order. A running job cannot be
    interrupted: when its caller is cancelled it goes on, still counted, and its result is dropped.
    """

    def __init__(self, name: str, threads: int, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.jobs = 0
        self._closed = False
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, job: Callable[..., R], *args: object) -> R:
        """Run ``job(*args)`` on a thread of the pool and return its result or raise its exception.

        Raises Overloaded, at once, when ``limit`` jobs are in hand, and ActorGone when the pool is closed,
        also while the job waits for a thread.
        """
        operation = getattr(job, "__name__", "job")
        if self._closed:
            raise ActorGone(self.name, operation, "the pool is closed")
        if self.jobs >= self.limit:
            raise Overloaded(self.name, operation, f"{self.limit} jobs in hand")
        self.jobs += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        future = self._executor.submit(job, *args)
        future.add_done_callback(lambda done: _hand_back(loop, self, done, answer))
        try:
            return await answer
        finally:
            future.cancel()  # of use only when the caller was cancelled before the job began

    def close(self) -> None:
        """Start no more jobs. Running ones end by themselves; their threads do not block the loop."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def settle(self, done: Future[R], answer: asyncio.Future[R]) -> None:
        """Count a job as done and pass its outcome on (kernel-internal, on the loop thread)."""
        self.jobs -= 1
        if answer.done():
            return
        if done.cancelled():
            answer.set_exception(ActorGone(self.name, "job", "the pool was closed before it began"))
        elif (error := done.exception()) is not None:
            answer.set_exception(_carriable(error))
        else:
            answer.set_result(done.result())


def _hand_back(
    loop: asyncio.AbstractEventLoop, pool: BlockingPool, done: Future[R], answer: asyncio.Future[R]
) -> None:
    try:
        loop.call_soon_threadsafe(pool.settle, done, answer)
    except RuntimeError:
        return  # the loop is closed: nobody is left to tell


def _carriable(error: BaseException) -> BaseException:
    """Wrap what an asyncio future refuses to carry or what would pass for the caller's own cancellation."""
    if isinstance(error, (StopIteration, asyncio.CancelledError, CancelledError)):
        wrapped = KernelError(f"the job raised {type(error).__name__}")
        wrapped.__cause__ = error
        return wrapped
    return error
