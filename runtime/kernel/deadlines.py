"""Few timers for many deadlines."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import asyncio

    from .promise import Promise

Bucket: TypeAlias = "dict[Promise[Any], None]"
"""Promises that expire together, oldest first."""

TICK_S = 0.005
"""How much later than its deadline a promise may expire, at most."""
FAR_S = 10.0
"""Deadlines at least this far off are kept in coarser ticks: an ask that waits so long can wait 1 % more."""
FAR_TICK_S = 0.1
REMOTE_S = 100.0
"""The same once more: a request's own limit is ten minutes, and its timer stays until then."""
REMOTE_TICK_S = 1.0


class Deadlines:
    """Expires promises no earlier than their deadline and at most one tick later, oldest ask first.

    An event-loop timer of its own for every ask costs more than the rest of the ask, and nearly all of
    them are cancelled. Promises whose deadlines fall into the same tick share one timer here instead.
    Loop thread only. Memory: the open promises, and one timer for every tick that ever had a promise and
    has not come yet (200 for each of the next ten seconds, then 10 a second, past 100 seconds 1 a second).
    """

    __slots__ = ("_buckets", "_context", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[float, Bucket] = {}
        self._context = Context()  # shared: a timer must not keep the context of a request that is long over

    def bucket(self, deadline_s: float, remaining_s: float) -> Bucket:
        """Return where a promise due at ``deadline_s``, in ``remaining_s``, stays until it is settled."""
        tick_s = _tick_s(remaining_s)
        due_s = (int(deadline_s / tick_s) + 1) * tick_s
        bucket = self._buckets.get(due_s)
        if bucket is None:
            bucket = self._buckets[due_s] = {}
            self._loop.call_at(due_s, self._expire, due_s, context=self._context)
        return bucket

    def _expire(self, due_s: float) -> None:
        for promise in list(self._buckets.pop(due_s)):
            promise.expire()


def _tick_s(remaining_s: float) -> float:
    if remaining_s < FAR_S:
        return TICK_S
    return FAR_TICK_S if remaining_s < REMOTE_S else REMOTE_TICK_S
