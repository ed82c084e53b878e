"""Few timers for many deadlines."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import asyncio

    from .promise import Promise

Bucket: TypeAlias = "dict[Promise[Any], None]"
"""Promises that expire together, oldest first."""

TICK_S = 0.005
"""How much later than its deadline a promise may expire, at most."""
FAR_S: Final = 10.0
COARSER: Final = ((100.0, 1.0), (50.0, 0.5), (FAR_S, 0.1))
"""Deadlines at least so far off (s) are kept in these ticks (s): an ask that waits so long can wait 1 % more.

A timer stays until its time, long after its asks are answered; a request's own limit is ten minutes.
"""


class Deadlines:
    """Expires promises no earlier than their deadline and at most one tick later, oldest ask first.

    An event-loop timer of its own for every ask costs more than the rest of the ask, and nearly all of
    them are cancelled. Promises whose deadlines fall into the same tick share one timer here instead.
    Loop thread only. Memory: the open promises, and one timer for every tick that ever had a promise and
    has not come yet: 200 a second for the next ten, then 10, 2 and 1 a second.
    """

    __slots__ = ("_buckets", "_context", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[float, Bucket] = {}
        self._context = Context()  # shared: a timer must not keep the context of a request that is long over

    def bucket(self, deadline_s: float, remaining_s: float) -> Bucket:
        """Return where a promise due at ``deadline_s``, in ``remaining_s``, stays until it is settled."""
        tick_s = TICK_S if remaining_s < FAR_S else _coarse_tick_s(remaining_s)
        due_s = (int(deadline_s / tick_s) + 1) * tick_s
        bucket = self._buckets.get(due_s)
        if bucket is None:
            bucket = self._buckets[due_s] = {}
            self._loop.call_at(due_s, self._expire, due_s, context=self._context)
        return bucket

    def _expire(self, due_s: float) -> None:
        for promise in list(self._buckets.pop(due_s)):
            promise.expire()


def _coarse_tick_s(remaining_s: float) -> float:
    return next(tick_s for from_s, tick_s in COARSER if remaining_s >= from_s)
