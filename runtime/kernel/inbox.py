"""The receiving half of a cell: how messages get in, and what becomes of those that nobody will handle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CancelScope

from .call import waits_for
from .errors import ActorCrashed, ActorGone, AskCycle, AskError, AskTimeout, Overloaded
from .figures import Counts, DeadReason
from .mailbox import Mailbox
from .observer import DeadLetter
from .promise import Promise

if TYPE_CHECKING:
    from collections.abc import Callable

    from .message import Askable, Envelope, Failure, TerminationReason
    from .ref import ActorRef
    from .spec import ChildSpec
    from .system import ActorSystem

R = TypeVar("R")


class Crash:
    """A system envelope's message that raises ``error`` inside the actor. Kernel-internal."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Inbox:
    """What a ref and a promise know of an actor. Kernel-internal; ``Cell`` adds the actor's life."""

    def __init__(self, spec: ChildSpec[Any], path: str, system: ActorSystem) -> None:
        self.spec = spec
        self.system = system
        self.path = path
        self.ref: ActorRef[Any] = spec.ref
        self.mailbox = Mailbox(spec.capacity, spec.overflow)
        self.attend: Callable[[float], bool] = self._wake  # or what a hand-off makes of it
        self.now_s = system.now_s
        self.create_future = system.loop.create_future
        self.counts = Counts()
        self.open_asks = 0
        self.deadline_s = math.inf  # of the ask in hand; nested asks inherit it
        self.waiting: list[Inbox] = []  # actors that the handler in progress has asked

    def _wake(self, _now_s: float) -> bool:
        self.mailbox.wake()
        return False

    def tell_when_full(self, message: Any) -> bool:
        """Queue a message that found no room; see ``ActorRef.tell``, which has the common case."""
        if self.mailbox.closed:
            self.bury((message, None, 0.0), "gone")
            return False
        if not self._make_room():
            self.bury((message, None, 0.0), "overflow")
            return False
        self.mailbox.put((message, None, self.now_s()))
        return True

    async def deliver(self, message: Any, timeout_s: float) -> None:
        """Queue a message, waiting for room; see ``ActorRef.deliver``."""
        operation = type(message).__name__
        if self.mailbox.overflow == "wait":
            with CancelScope(deadline=self.system.loop.time() + timeout_s):
                await self.mailbox.writable()
        if self.mailbox.closed:
            raise ActorGone(self.path, operation, "the actor has stopped")
        if self.mailbox.full and not self._make_room():
            # The sender is told, so it is no dead letter.
            raise Overloaded(self.path, operation, f"{self.spec.capacity} messages wait")
        self.mailbox.put((message, None, self.now_s()))

    def promise_for(self, message: Askable[Any, R], timeout_s: float, caller: Inbox | None) -> Promise[R]:
        """Open the promise of an ask. Raises ActorGone, AskCycle or, for a past deadline, AskTimeout."""
        now_s = self.now_s()
        deadline_s = now_s + timeout_s
        if caller is not None:
            deadline_s = min(deadline_s, caller.deadline_s)
            if self.system.detect_cycles and waits_for(self, caller):
                detail = f"{self.path} is waiting for {caller.path}"
                raise AskCycle(self.path, type(message).__name__, detail)
        if self.mailbox.closed:
            raise ActorGone(self.path, type(message).__name__, "the actor has stopped")
        if deadline_s <= now_s:
            detail = "the deadline had passed before the ask was sent"
            raise AskTimeout(self.path, type(message).__name__, detail)
        return Promise(self, message, now_s, deadline_s)

    async def enqueue_when_full(self, message: Any, promise: Promise[Any]) -> None:
        """Queue an ask that found no room, by the overflow rule. Raises ActorGone or Overloaded."""
        if self.mailbox.overflow == "wait":
            with CancelScope(deadline=promise.deadline_s):
                await self.mailbox.writable()
        if self.mailbox.closed:
            raise ActorGone(self.path, promise.operation, "the actor has stopped")
        if promise.closed:
            # Expired while it waited: nothing was enqueued, which Overloaded says and AskTimeout would not.
            self.mailbox.pass_on()
        elif not self.mailbox.full or self._make_room():
            self.mailbox.put((message, promise, self.now_s()))
            return
        raise Overloaded(self.path, promise.operation, f"{self.spec.capacity} messages wait")

    def _make_room(self) -> bool:
        if self.mailbox.overflow != "drop_oldest":
            return False
        self.bury(self.mailbox.user.popleft(), "overflow")
        return True

    def post(self, message: Any) -> None:
        """Queue a message from the kernel itself (timer, task result, watch notice) before all others."""
        self.mailbox.put_system((message, None, self.now_s()))

    def forget(self, promise: Promise[Any]) -> None:
        """Drop a settled deferred promise (called by the promise)."""
        raise NotImplementedError

    def bury(self, envelope: Envelope, reason: DeadReason, failure: Failure | None = None) -> None:
        """Settle an envelope that will not be handled: fail its ask, count and publish the dead letter.

        The message in hand at a crash is published whatever became of its asker. Elsewhere an ask that
        nobody waits for is no loss and no dead letter.
        """
        message, promise, _ = envelope
        if promise is not None:
            if promise.closed and reason != "crashed":
                return
            if reason == "overflow":
                promise.fail(Overloaded(self.path, promise.operation, "dropped for a newer message"))
            else:
                promise.fail(self.ended_error(promise.operation, "stopped", failure))
        self.counts.dead_letters[reason] += 1
        self.system.bury(DeadLetter(self.path, message, reason))

    def ended_error(self, operation: str, reason: TerminationReason, failure: Failure | None) -> AskError:
        """Return what an asker gets when the incarnation that held its ask has ended."""
        if failure is None:
            return ActorGone(self.path, operation, f"the actor was {reason} before it answered")
        error = ActorCrashed(self.path, operation, f"{type(failure.error).__name__}: {failure.error}")
        error.__cause__ = failure.error
        return error
