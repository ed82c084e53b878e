"""The one-shot answer of an ask, and the deadline that bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .errors import AskTimeout

if TYPE_CHECKING:
    import asyncio

    from .cell import Cell
    from .errors import AskError

R = TypeVar("R")


class Promise(Generic[R]):
    """Settles exactly once: reply, failure, timeout or abandonment; later attempts do nothing.

    It owns its deadline. ``closed`` says that nobody waits any more, so its envelope must be skipped.
    Loop thread only. A promise is failed, never cancelled: a cancellation would look to the asker like
    its own.
    """

    __slots__ = ("_tick", "cell", "closed", "deadline_s", "deferred", "future", "operation")

    def __init__(self, cell: Cell, operation: str, deadline_s: float) -> None:
        system = cell.system
        self.future: asyncio.Future[R] = system.loop.create_future()
        self.cell = cell
        self.operation = operation
        self.deadline_s = deadline_s
        self.closed = False
        self.deferred = False
        self._tick = system.deadlines.add(self)
        cell.open_asks += 1

    def reply(self, value: R) -> bool:
        """Deliver the answer. False when the promise was closed already (the answer is dropped)."""
        if self.closed:
            return False
        self._close()
        self.future.set_result(value)
        return True

    def fail(self, error: AskError) -> bool:
        """Deliver a failure. False when the promise was closed already."""
        if self.closed:
            return False
        self._close()
        self.future.set_exception(error)
        return True

    def expire(self) -> None:
        """Fail with AskTimeout (called when the deadline has passed)."""
        self.fail(AskTimeout(self.cell.path, self.operation, "no reply before the deadline"))

    def abandon(self) -> None:
        """Note that the asker waits no more, after a failure reached it or because it was cancelled."""
        if not self.closed:
            self._close()
        elif self.future.done() and not self.future.cancelled():
            self.future.exception()  # marks it as read: a cancelled asker never will

    def _close(self) -> None:
        self.closed = True
        cell = self.cell
        cell.open_asks -= 1
        cell.system.deadlines.discard(self, self._tick)
        if self.deferred:
            cell.forget(self)
