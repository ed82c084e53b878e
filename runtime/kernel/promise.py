"""The one-shot answer of an ask, and the deadline that bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .errors import AskTimeout

if TYPE_CHECKING:
    import asyncio

    from .deadlines import Bucket
    from .errors import AskError
    from .inbox import Inbox

R = TypeVar("R")


class Promise(Generic[R]):
    """Settles exactly once: reply, failure, timeout or abandonment; later attempts do nothing.

    It owns its deadline. Once it is ``closed`` nobody waits any more, and its envelope must be skipped;
    that includes an asker cancelled a moment ago that has not run since. Loop thread only. A promise is
    failed, never cancelled: a cancellation would look to the asker like its own.

    Its future and its place among the deadlines cost more than the rest of it, so they come with ``wait``:
    an answer that is there before anybody had to wait (a hand-off) is kept here and taken by ``answer``.
    """

    __slots__ = (
        *("_bucket", "_error", "_message", "_value"),
        *("asked_s", "deadline_s", "deferred", "future", "inbox", "open"),
    )

    _bucket: Bucket
    _value: R

    def __init__(self, inbox: Inbox, message: object, asked_s: float, deadline_s: float) -> None:
        self.inbox = inbox
        self.asked_s = asked_s
        self.deadline_s = deadline_s
        self.deferred = False
        self._message = message
        self.open = True
        self.future: asyncio.Future[R] | None = None
        self._error: AskError | None = None
        inbox.open_asks += 1

    @property
    def operation(self) -> str:
        """The type of the ask, for errors."""
        return type(self._message).__name__

    @property
    def closed(self) -> bool:
        """Whether nobody waits any more."""
        future = self.future
        return not self.open if future is None else future.done()

    def wait(self) -> asyncio.Future[R]:
        """Return the future of the answer, bounded by the deadline (called by the asker, once, if open)."""
        inbox = self.inbox
        self.future = future = inbox.create_future()
        deadline_s = self.deadline_s
        self._bucket = bucket = inbox.system.deadlines.bucket(deadline_s, deadline_s - self.asked_s)
        bucket[self] = None
        return future

    def answer(self) -> R:
        """Return or raise what came before anybody waited (called by the asker, once, when closed)."""
        if self._error is not None:
            raise self._error
        return self._value

    def reply(self, value: R) -> bool:
        """Deliver the answer. False when the promise was closed already (the answer is dropped)."""
        future = self.future
        if future is None:
            if not self.open:
                return False
            self._value = value
        elif future.done():
            return False
        else:
            self._bucket.pop(self, None)
            future.set_result(value)
        self.open = False  # spelt out, since every ask comes here: what _close does
        self.inbox.open_asks -= 1
        if self.deferred:
            self.inbox.forget(self)
        return True

    def fail(self, error: AskError) -> bool:
        """Deliver a failure. False when the promise was closed already."""
        if self.closed:
            return False
        self._close()
        if self.future is None:
            self._error = error
        else:
            self.future.set_exception(error)
        return True

    def expire(self) -> None:
        """Fail with AskTimeout (called when the deadline has passed)."""
        self.fail(AskTimeout(self.inbox.path, self.operation, "no reply before the deadline"))

    def abandon(self) -> None:
        """Note that the asker waits no more, after a failure reached it or because it was cancelled."""
        if self.open:
            self._close()
        future = self.future
        if future is None:
            return
        if not future.done():
            future.cancel()  # nobody awaits it; it only marks the envelope as closed
        elif not future.cancelled():
            future.exception()  # marks it as read: a cancelled asker never will

    def _close(self) -> None:
        self.open = False
        inbox = self.inbox
        inbox.open_asks -= 1
        if self.future is not None:
            self._bucket.pop(self, None)
        if self.deferred:
            inbox.forget(self)
