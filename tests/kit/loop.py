"""An event loop whose clock moves only when nothing else can happen."""

from __future__ import annotations

import asyncio
import functools
import gc
import selectors
import threading
import time
from typing import TYPE_CHECKING, Any

from .at_work import CAN_TELL, threads_at_work

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

THREAD_PATIENCE_S = 0.5 if CAN_TELL else 0.05
"""Real seconds for which running threads may still report before the clock is moved."""
LOOKS, LOOK_S = 3, 0.001
"""So many looks in a row, so far apart, find no thread at work: then none will report."""
LONGEST_LOOK_S = 0.016
"""Looks take time from the threads that are at work: there will be fewer."""
DEADLOCK_S = 5.0
"""Real seconds without any timer, event or thread report after which a test is stuck for good."""
BUSY_ROUNDS = 50_000
"""Rounds of a loop that never comes to rest after which the clock moves all the same: work takes time."""


class Deadlock(RuntimeError):
    """Nothing is left that could ever wake the test."""


class _Selector(selectors.DefaultSelector):
    """Turns "wait this long for events" into "jump ahead this far"."""

    loop: VirtualLoop
    busy_rounds = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if timeout == 0 and not events:
            self._count_busy()
            return events
        self.busy_rounds = 0
        return events or self._idle(timeout)

    def _count_busy(self) -> None:
        self.busy_rounds += 1
        if self.busy_rounds > BUSY_ROUNDS:
            self.busy_rounds = 0
            self.loop.jump_to_timer()

    def _idle(self, timeout: float | None) -> list[Any]:
        if not self.loop.threads_at_start.issuperset(threading.enumerate()):
            stuck = timeout is None and not self.loop.settling
            if events := self._await_threads(DEADLOCK_S if stuck else THREAD_PATIENCE_S, stuck=stuck):
                return events
        if self.loop.release_settlers():
            return []
        if timeout is None:
            raise Deadlock("no timer, no event, no thread: the test waits for something that cannot come")
        self.loop.jump(timeout)
        return []

    def _await_threads(self, patience_s: float, *, stuck: bool) -> list[Any]:
        """Return what threads report within ``patience_s``; sooner nothing, when none of them is at work."""
        if stuck or not CAN_TELL:
            return super().select(patience_s)
        until_s, resting, look_s = time.monotonic() + patience_s, 0, LOOK_S
        while resting < LOOKS and time.monotonic() < until_s:
            if events := super().select(look_s):
                return events
            resting = 0 if threads_at_work() else resting + 1
            look_s = LOOK_S if resting else min(2 * look_s, LONGEST_LOOK_S)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 0 and jumps to the next timer as soon as nothing is ready to run.

    Real threads may report through ``call_soon_threadsafe``; while one is at work they get up to
    ``THREAD_PATIENCE_S`` of real time before each jump. A loop that spins without rest jumps after
    ``BUSY_ROUNDS`` rounds.
    """

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self._now_s = 0.0
        self._settlers: list[asyncio.Future[None]] = []
        # The threads themselves, not their number: one of an earlier test may end during this one.
        self.threads_at_start = frozenset(threading.enumerate())
        self.errors: list[dict[str, Any]] = []
        super().__init__(selector)
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self._now_s

    def jump(self, by_s: float) -> None:
        """Move the clock forward."""
        # The loop's own resolution keeps a timer from being missed by a rounding error.
        self._now_s += by_s

    def jump_to_timer(self) -> None:
        """Move the clock to the next timer, if there is one."""
        due_s = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        self._now_s = max(self._now_s, min(due_s, default=self._now_s))

    @property
    def settling(self) -> bool:
        """Whether somebody waits in ``settle``."""
        return bool(self._settlers)

    async def settle(self) -> None:
        """Wait until nothing can happen without the clock moving."""
        settler = self.create_future()
        self._settlers.append(settler)
        await settler

    def release_settlers(self) -> bool:
        """Wake those who wait in ``settle``; False when there are none."""
        settlers, self._settlers = self._settlers, []
        for settler in settlers:
            if not settler.done():
                settler.set_result(None)
        return bool(settlers)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorate an async test: it runs on a fresh VirtualLoop and must leave no task and no error behind."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, VirtualLoop)
            runner.run(_checked(test(*args, **kwargs), loop))

    return run


async def _checked(test: Coroutine[Any, Any, None], loop: VirtualLoop) -> None:
    await test
    await loop.settle()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks left running: {left}"
    gc.collect(1)  # failures that nobody read complain when they are collected
    assert not loop.errors, f"errors nobody handled: {loop.errors}"
