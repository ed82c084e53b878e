"""What stands behind an ActorRef: the mailbox, the current incarnation and its end."""

from __future__ import annotations

import asyncio
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from anyio import CancelScope, current_effective_deadline

from .actor import Context
from .call import current_cell, waits_for
from .errors import (
    ActorCrashed,
    ActorGone,
    AskCycle,
    AskError,
    AskTimeout,
    ForeignCancellation,
    Overloaded,
    Rejected,
    StartFailed,
    Unanswered,
)
from .figures import ActorFigures, Counts, DeadReason, State
from .mailbox import Mailbox
from .message import Failure, Terminated, TerminationReason
from .observer import DeadLetter
from .promise import Promise

if TYPE_CHECKING:
    from .actor import Actor
    from .message import Ask, Askable, Envelope
    from .ref import ActorRef
    from .spec import ChildSpec
    from .supervisor import Supervisor
    from .system import ActorSystem

R = TypeVar("R")

StopOutcome: TypeAlias = Literal["stopped", "killed", "unstoppable"]

_TURN_S = 0.005
"""Seconds that an actor may go on handling messages before other tasks of the loop get their turn."""


class _Crash:
    """A system envelope's message that raises ``error`` inside the actor."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Cell:
    """One actor across its incarnations. Kernel-internal: everybody else holds the ``ActorRef``.

    States: stopped → starting → running → (stopping → stopped | restarting → starting) → gone. A cell is
    ``gone`` once its supervisor will not start it again; from then on asks fail with ActorGone.
    """

    kind: Literal["actor"] = "actor"

    def __init__(self, spec: ChildSpec[Any], parent: Supervisor, system: ActorSystem) -> None:
        self.spec = spec
        self.parent = parent
        self.system = system
        self.path = parent.child_path(spec.id)
        self.ref: ActorRef[Any] = spec.ref
        self.ref._bind(self)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the one place that may
        self.mailbox = Mailbox(spec.capacity, spec.overflow)
        self.now_s = system.now_s
        self.counts = Counts()
        self.state: State = "stopped"
        self.incarnation = 0
        self.open_asks = 0
        self.unstoppable = 0
        self.last_failure: Failure | None = None
        self.deadline_s = math.inf  # of the ask in hand; nested asks inherit it
        self.waiting: list[Cell] = []  # actors that the handler in progress has asked
        self._envelope: Envelope | None = None
        self._context: Context[Any] | None = None
        self._scope: CancelScope | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop_requested = False
        self._halt = False  # end without draining
        self._watchers: dict[Cell, None] = {}

    # -- messages in --------------------------------------------------------------------------------

    def tell_when_full(self, message: Any) -> bool:
        """Queue a message that found no room; see ``ActorRef.tell``, which has the common case."""
        if self.mailbox.closed:
            self._bury((message, None, 0.0), "gone")
            return False
        if not self._make_room():
            self._bury((message, None, 0.0), "overflow")
            return False
        self.mailbox.put((message, None, self.now_s()))
        return True

    async def deliver(self, message: Any, timeout_s: float) -> None:
        """Queue a message, waiting for room; see ``ActorRef.deliver``."""
        operation = type(message).__name__
        if self.mailbox.overflow == "wait" and self.mailbox.full:
            try:
                await asyncio.wait_for(self.mailbox.writable(), timeout_s)
            except TimeoutError:
                raise Overloaded(self.path, operation, f"no room within {timeout_s} s") from None
        if self.mailbox.closed:
            raise ActorGone(self.path, operation, "the actor has stopped")
        if not self.ref.tell(message):
            raise Overloaded(self.path, operation, f"{self.spec.capacity} messages wait")

    def promise_for(self, message: Askable[Any, R], timeout_s: float, caller: Cell | None) -> Promise[R]:
        """Open the promise of an ask. Raises ActorGone, AskCycle or, for a past deadline, AskTimeout."""
        now_s = self.now_s()
        deadline_s = now_s + timeout_s
        operation = type(message).__name__
        if caller is not None:
            deadline_s = min(deadline_s, caller.deadline_s)
            if self.system.detect_cycles and waits_for(self, caller):
                raise AskCycle(self.path, operation, f"{self.path} is waiting for {caller.path}")
        if self.mailbox.closed:
            raise ActorGone(self.path, operation, "the actor has stopped")
        if deadline_s <= now_s:
            raise AskTimeout(self.path, operation, "the deadline had passed before the ask was sent")
        return Promise(self, operation, deadline_s)

    async def enqueue_when_full(self, message: Any, promise: Promise[Any]) -> None:
        """Queue an ask that found no room, by the overflow rule; fails the promise where it cannot."""
        if self.mailbox.overflow == "wait":
            with CancelScope(deadline=promise.deadline_s):
                await self.mailbox.writable()
        if promise.closed:
            return  # timed out while it waited for room
        if self.mailbox.closed:
            promise.fail(ActorGone(self.path, promise.operation, "the actor has stopped"))
        elif self.mailbox.full and not self._make_room():
            # The asker is told, so it is no dead letter.
            promise.fail(Overloaded(self.path, promise.operation, f"{self.spec.capacity} messages wait"))
        else:
            self.mailbox.put((message, promise, self.now_s()))

    def _make_room(self) -> bool:
        if self.mailbox.overflow != "drop_oldest":
            return False
        self._bury(self.mailbox.user.popleft(), "overflow")
        return True

    def post(self, message: Any) -> None:
        """Queue a message from the kernel itself (timer, task result, watch notice) before all others."""
        self.mailbox.put_system((message, None, self.now_s()))

    def inject(self, error: BaseException) -> None:
        """Crash the actor with ``error`` before its next message."""
        self.post(_Crash(error))

    # -- what the handler in progress may do ------------------------------------------------------------

    def promise_of(self, message: Ask[R]) -> Promise[R]:
        """Return the promise of the ask in hand; RuntimeError for any other message."""
        envelope = self._envelope
        if envelope is None or envelope[0] is not message or envelope[1] is None:
            name = type(message).__name__
            raise RuntimeError(f"{self.path}: {name} is not the ask in hand; defer() it to answer later")
        return envelope[1]

    def rejected(self, error: Exception, operation: str | None = None) -> Rejected:
        """Wrap a refusal for the asker."""
        if operation is None:
            operation = type(self._envelope[0]).__name__ if self._envelope else "ask"
        refusal = Rejected(self.path, operation, str(error))
        refusal.__cause__ = error
        return refusal

    def forget(self, promise: Promise[Any]) -> None:
        """Drop a settled deferred promise (called by the promise)."""
        if self._context is not None:
            self._context.forget(promise)

    def stop_from_inside(self) -> None:
        """Let the actor end once it has drained its mailbox."""
        self._stop_requested = True
        self.mailbox.wake()

    # -- watches --------------------------------------------------------------------------------------

    def add_watcher(self, watcher: Cell) -> None:
        """Register a watch by ``watcher``'s current incarnation."""
        if self.state in ("gone", "unstoppable"):
            watcher.post(Terminated(self.ref, self.incarnation, "gone", self.last_failure, False))  # noqa: FBT003
        elif watcher not in self._watchers:
            self._watchers[watcher] = None
            if watcher._context is not None:  # noqa: SLF001 - another cell
                watcher._context.watches(self)  # noqa: SLF001

    def remove_watcher(self, watcher: Cell) -> None:
        """Withdraw a watch."""
        self._watchers.pop(watcher, None)

    # -- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a new incarnation and wait for its ``started``. Raises StartFailed."""
        if self._task is not None and not self._task.done():
            raise StartFailed(self.path, f"its previous incarnation is {self.state} and has not ended")
        self.incarnation += 1
        self.state = "starting"
        self.mailbox.open()
        self._stop_requested = False
        self._halt = False  # end without draining
        self._context = Context(self, self.incarnation)
        started: asyncio.Future[None] = self.system.loop.create_future()
        self._task = self.system.loop.create_task(self._live(self._context, started), name=self.path)
        try:
            await asyncio.wait({started}, timeout=self.spec.start_s)
        finally:
            if not started.done():
                started.cancel()
        if not started.cancelled():
            if (error := started.exception()) is not None:
                raise StartFailed(self.path, f"{type(error).__name__}: {error}") from error
            return
        await self.stop(returning=True, drain_s=0.0)
        raise StartFailed(self.path, f"started() took longer than {self.spec.start_s} s")

    async def stop(self, *, returning: bool, drain_s: float | None = None) -> StopOutcome:
        """End the incarnation: drain → ``stopped`` → kill. ``returning`` keeps the mailbox for the next.

        Takes at most ``shutdown_s`` for the orderly part, then the release budget and the system's kill
        grace. Cancels nothing through the mailbox: the kill goes through the actor's cancel scope.
        """
        if not returning:
            self.mailbox.close()
        outcome: StopOutcome = "stopped"
        if self._task is not None and not self._task.done():
            self.state = "stopping"
            # A coming-back actor keeps its queue for the next incarnation, so only a last stop drains it.
            self._halt = returning
            self.stop_from_inside()
            outcome = await self._end_task(self.spec.shutdown_s if drain_s is None else drain_s)
        if outcome == "unstoppable":
            self.left_behind(f"task {self.path}")
            self._watchers_learn("killed", None, returning=False)
            self.retire()
            self.state = "unstoppable"
        elif not returning:
            self.retire()
        return outcome

    async def _end_task(self, drain_s: float) -> StopOutcome:
        task = cast("asyncio.Task[None]", self._task)
        if await _ended(task, drain_s):
            return "stopped"
        if self._scope is not None:
            self._scope.cancel()
        grace_s = self.spec.shutdown_s + self.system.kill_grace_s
        return "killed" if await _ended(task, grace_s) else "unstoppable"

    def retire(self) -> None:
        """Mark the actor as gone and settle what still waits."""
        self.mailbox.close()
        self.mailbox.clear_system()
        for envelope in self.mailbox.take_all():
            self._bury(envelope, "gone")
        if self.state != "gone":
            self.state = "gone"
            self._watchers_learn("gone", self.last_failure, returning=False)

    def suspend(self) -> None:
        """Mark the actor as down but coming back (called by the supervisor)."""
        self.state = "restarting"

    async def _live(self, context: Context[Any], started: asyncio.Future[None]) -> None:
        reason: TerminationReason = "stopped"
        error: BaseException | None = None
        current_cell.set(self)
        with CancelScope() as scope:
            self._scope = scope
            try:
                await self._serve(context, started)
            except asyncio.CancelledError as cancelled:
                if current_effective_deadline() == -math.inf:
                    reason = "killed"  # through our own scope: absorbed by its exit
                    raise
                self._uncancel()
                error = ForeignCancellation(f"{self.path}: cancelled from outside its own scopes")
                error.__cause__ = cancelled
            except Exception as crash:  # noqa: BLE001 - the cell guard: any exception is a crash of the actor
                error = crash
        current_cell.set(None)
        self._scope = None
        await self._end(context, "crashed" if error is not None else reason, error, started)

    async def _serve(self, context: Context[Any], started: asyncio.Future[None]) -> None:
        actor: Actor[Any] = self.spec.factory()
        actor.ctx = context
        await actor.started()
        self.state = "stopping" if self._stop_requested else "running"
        if not started.done():
            started.set_result(None)
        await self._handle_messages(actor)
        await actor.stopped()

    async def _handle_messages(self, actor: Actor[Any]) -> None:
        """Read the mailbox until the actor is to end. The kernel's hot path: mind every line."""
        mailbox, tap, receive, counts = self.mailbox, self.system.tap, actor.receive, self.counts
        system, user = mailbox.system, mailbox.user
        begun = perf_counter()
        turn_end = begun + _TURN_S
        while not self._halt:
            if system:
                envelope = system.popleft()
            elif user:
                envelope = user.popleft()
                if mailbox.senders:
                    mailbox.admit_sender()
            elif self._stop_requested:
                break
            else:
                self._envelope = None
                await mailbox.readable()
                begun = perf_counter()
                turn_end = begun + _TURN_S
                continue
            self._envelope = envelope
            message, promise, _ = envelope
            if tap is not None:
                await tap.before(self, message)
            if promise is not None:
                if promise.closed:
                    counts.skipped += 1
                    continue
                self.deadline_s = promise.deadline_s
                await receive(message)
                self.deadline_s = math.inf
                if not (promise.closed or promise.deferred):
                    raise Unanswered(f"{self.path} left {promise.operation} without an answer")
            elif type(message) is _Crash:
                raise message.error
            else:
                await receive(message)
            ended = perf_counter()
            took = ended - begun
            counts.handled += 1
            counts.handle_s += took
            if took > counts.handle_max_s:
                counts.handle_max_s = took
            begun = ended
            if ended > turn_end:
                self._envelope = None
                await asyncio.sleep(0)
                begun = perf_counter()
                turn_end = begun + _TURN_S
        self._envelope = None

    # -- the end of an incarnation ------------------------------------------------------------------------

    async def _end(
        self,
        context: Context[Any],
        reason: TerminationReason,
        error: BaseException | None,
        started: asyncio.Future[None],
    ) -> None:
        failure = self._record(context, error) if error is not None else None
        in_hand, self._envelope = self._envelope, None
        self.deadline_s = math.inf
        for promise in context.cut():
            promise.fail(self._ended_error(promise.operation, reason, failure))
        if in_hand is not None and not isinstance(in_hand[0], _Crash):
            self._bury(in_hand, "crashed" if failure is not None else "gone", failure)
        self._drop_stale(failure)
        unbidden = self.state not in ("stopping", "unstoppable", "gone")
        starting = not started.done()
        returning = self.parent.will_restart(self, crashed=failure is not None)
        self._watchers_learn(reason, failure, returning=returning)
        if unbidden:
            self.state = "restarting" if returning else "stopped"
        elif self.state == "stopping":
            self.state = "stopped"
        await context.release(self.spec.shutdown_s)
        if starting and not started.done():
            started.set_exception(error or StartFailed(self.path, f"{reason} while starting"))
        elif unbidden and not starting:
            self.parent.child_ended(self, failure)
        elif failure is not None:
            self.system.observer.failed(failure, None)

    def _record(self, context: Context[Any], error: BaseException) -> Failure:
        message_type = None
        if self._envelope is not None and not isinstance(self._envelope[0], _Crash):
            message_type = type(self._envelope[0]).__name__
        self.last_failure = Failure(self.path, context.incarnation, error, message_type, self.now_s())
        return self.last_failure

    def _drop_stale(self, failure: Failure | None) -> None:
        """Drop what belonged to the incarnation that ended, and the queue where the spec says so."""
        self.mailbox.clear_system()
        if failure is not None and self.spec.on_restart == "drop":
            for envelope in self.mailbox.take_all():
                self._bury(envelope, "dropped", failure)

    def _watchers_learn(
        self, reason: TerminationReason, failure: Failure | None, *, returning: bool
    ) -> None:
        watchers, self._watchers = self._watchers, {}
        notice = Terminated(self.ref, self.incarnation, reason, failure, returning)
        for watcher in watchers:
            watcher.post(notice)

    def _ended_error(self, operation: str, reason: TerminationReason, failure: Failure | None) -> AskError:
        if failure is None:
            return ActorGone(self.path, operation, f"the actor was {reason} before it answered")
        error = ActorCrashed(self.path, operation, f"{type(failure.error).__name__}: {failure.error}")
        error.__cause__ = failure.error
        return error

    def _bury(self, envelope: Envelope, reason: DeadReason, failure: Failure | None = None) -> None:
        """Settle an envelope that will not be handled: fail its ask, count and publish the dead letter."""
        message, promise, _ = envelope
        if promise is not None:
            if promise.closed:
                return  # answered, or nobody waits: nothing was lost
            if reason == "overflow":
                promise.fail(Overloaded(self.path, promise.operation, "dropped for a newer message"))
            else:
                promise.fail(self._ended_error(promise.operation, "stopped", failure))
        self.counts.dead_letters[reason] += 1
        self.system.bury(DeadLetter(self.path, message, reason))

    def left_behind(self, what: str) -> None:
        """Record a task or thread that outlived its budgets."""
        self.unstoppable += 1
        self.system.left_behind(self.path, what)

    def report(self, error: BaseException) -> None:
        """Publish an error that came up while an incarnation was ending and can no longer crash it."""
        failure = Failure(self.path, self.incarnation, error, None, self.now_s())
        self.system.observer.failed(failure, None)

    def _uncancel(self) -> None:
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()

    # -- figures ------------------------------------------------------------------------------------------

    def figures(self) -> ActorFigures:
        """Return a snapshot."""
        counts, oldest_s = self.counts, self.mailbox.oldest_s()
        return ActorFigures(
            path=self.path,
            kind=self.kind,
            state=self.state,
            incarnation=self.incarnation,
            depth=len(self.mailbox),
            capacity=self.spec.capacity,
            oldest_age_s=0.0 if oldest_s is None else self.now_s() - oldest_s,
            handled=counts.handled,
            skipped=counts.skipped,
            handle_mean_s=counts.handle_s / counts.handled if counts.handled else 0.0,
            handle_max_s=counts.handle_max_s,
            restarts=counts.restarts,
            dead_letters=dict(counts.dead_letters),
            open_asks=self.open_asks,
            tasks=self._context.tasks if self._context is not None else 0,
            last_failure=self.last_failure,
            unstoppable=self.unstoppable,
        )


async def _ended(task: asyncio.Task[None], timeout_s: float) -> bool:
    await asyncio.wait({task}, timeout=timeout_s)
    return task.done()
