"""File work of an actor: jobs on one thread, in order, whose outcome is settled back on the loop."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime.kernel import BlockingPool, Deferred

R = TypeVar("R")

Settle: TypeAlias = "Callable[[], None]"
Job: TypeAlias = "Callable[[], Settle]"
"""Runs on the disk thread; what it returns runs on the loop thread, in the actor."""


class DiskJobs:
    """One incarnation's jobs on a pool of one thread that outlives it. Loop thread, but for the jobs.

    ``close`` is run on that thread when the incarnation has ended, after what is left running: so the next
    incarnation's first job finds everything given up.
    """

    def __init__(self, pool: BlockingPool, close: Callable[[], None]) -> None:
        self._pool = pool
        self._close = close
        self._ended = threading.Event()
        self._waiting: deque[Job] = deque()
        self._busy = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a job runs, or its outcome is on its way."""
        return self._busy

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self._waiting.append(job)

    def take(self) -> Job | None:
        """Return the next job, which is to be ``run``, unless one is running."""
        if self._busy or not self._waiting:
            return None
        self._busy = True
        return self._waiting.popleft()

    def done(self) -> None:
        """Note that the running job has ended."""
        self._busy = False

    async def run(self, work: Callable[[], R]) -> R:
        """Run something on the disk thread, after what runs there."""
        return await self._pool.run(lambda: self._guarded(work))

    async def drain(self) -> None:
        """Run what waits, and what that brings up, one after the other."""
        while self._waiting:
            settle = await self.run(self._waiting.popleft())
            settle()

    async def end(self) -> None:
        """End with the incarnation. What waits is not run any more."""
        self._ended.set()
        self._waiting.clear()
        await self._pool.run(self._close)

    def _guarded(self, work: Callable[[], R]) -> R:
        try:
            return work()
        finally:
            if self._ended.is_set():
                self._close()


def telling(work: Callable[[], object]) -> Job:
    """Return a job that nobody waits for."""

    def job() -> Settle:
        work()
        return _nothing

    return job


def answering(answer: Deferred[R], work: Callable[[], R], *expected: type[Exception]) -> Job:
    """Return a job that answers an ask with what ``work`` returns, or refuses it with an expected error.

    Other errors leave, and crash the actor.
    """

    def job() -> Settle:
        try:
            result = work()
        except expected as error:
            return partial(_refuse, answer, error)
        return partial(_reply, answer, result)

    return job


def _reply(answer: Deferred[R], result: R) -> None:
    answer.reply(result)


def _refuse(answer: Deferred[R], error: Exception) -> None:
    answer.reject(error)


def _nothing() -> None:
    return
