"""The one-shot answer of an ask, and the deadline that bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .errors import AskTimeout

if TYPE_CHECKING:
    import asyncio

    from .errors import AskError
    from .inbox import Inbox

R = TypeVar("R")


class Promise(Generic[R]):
    """Settles exactly once: reply, failure, timeout or abandonment; later attempts do nothing.

    It owns its deadline. Once its ``future`` is done nobody waits any more, and its envelope must be
    skipped; that includes an asker cancelled a moment ago that has not run since. Loop thread only. A
    promise is failed, never cancelled: a cancellation would look to the asker like its own.
    """

    __slots__ = ("_bucket", "_message", "_open", "deadline_s", "deferred", "future", "inbox")

    def __init__(self, inbox: Inbox, message: object, deadline_s: float, remaining_s: float) -> None:
        self.future: asyncio.Future[R] = inbox.create_future()
        self.inbox = inbox
        self.deadline_s = deadline_s
        self.deferred = False
        self._message = message
        self._open = True
        self._bucket = bucket = inbox.system.deadlines.bucket(deadline_s, remaining_s)
        bucket[self] = None
        inbox.open_asks += 1

    @property
    def operation(self) -> str:
        """The type of the ask, for errors."""
        return type(self._message).__name__

    @property
    def closed(self) -> bool:
        """Whether nobody waits any more."""
        return self.future.done()

    def reply(self, value: R) -> bool:
        """Deliver the answer. False when the promise was closed already (the answer is dropped)."""
        future = self.future
        if future.done():
            return False
        self._close()
        future.set_result(value)
        return True

    def fail(self, error: AskError) -> bool:
        """Deliver a failure. False when the promise was closed already."""
        future = self.future
        if future.done():
            return False
        self._close()
        future.set_exception(error)
        return True

    def expire(self) -> None:
        """Fail with AskTimeout (called when the deadline has passed)."""
        self.fail(AskTimeout(self.inbox.path, self.operation, "no reply before the deadline"))

    def abandon(self) -> None:
        """Note that the asker waits no more, after a failure reached it or because it was cancelled."""
        if self._open:
            self._close()
        if not self.future.done():
            self.future.cancel()  # nobody awaits it; it only marks the envelope as closed
        elif not self.future.cancelled():
            self.future.exception()  # marks it as read: a cancelled asker never will

    def _close(self) -> None:
        self._open = False
        inbox = self.inbox
        inbox.open_asks -= 1
        self._bucket.pop(self, None)
        if self.deferred:
            inbox.forget(self)
