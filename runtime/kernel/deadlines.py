"""One timer for many deadlines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from .promise import Promise

TICK_S = 0.005
"""How much later than its deadline a promise may expire, at most."""


class Deadlines:
    """Expires promises no earlier than their deadline and at most ``TICK_S`` later.

    An event-loop timer of its own for every ask costs more than the rest of the ask, and nearly all of
    them are cancelled. Promises whose deadlines fall into the same tick share one timer here instead.
    Loop thread only. Memory: the open promises, nothing of settled ones.
    """

    __slots__ = ("_buckets", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[Promise[Any]]] = {}

    def add(self, promise: Promise[Any]) -> int:
        """Watch over ``promise``; return the tick to give to ``discard``."""
        tick = int(promise.deadline_s / TICK_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = set()
            self._loop.call_at(tick * TICK_S, self._expire, tick)
        bucket.add(promise)
        return tick

    def discard(self, promise: Promise[Any], tick: int) -> None:
        """Stop watching over a settled promise."""
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.discard(promise)

    def _expire(self, tick: int) -> None:
        for promise in self._buckets.pop(tick):
            promise.expire()
