"""What stands behind an ActorRef: the mailbox, the current incarnation and its end."""

from __future__ import annotations

import asyncio
import contextvars
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from anyio import CancelScope

from .call import current_cell
from .context import Context
from .errors import ForeignCancellation, KernelError, Rejected, StartFailed, Unanswered, UnstoppableChild
from .figures import ActorFigures, State
from .handoff import HandOff, park
from .inbox import Crash, Inbox
from .message import Failure, Terminated, TerminationReason
from .turn import TURN_S

if TYPE_CHECKING:
    from .actor import Actor
    from .message import Ask, Envelope
    from .promise import Promise
    from .spec import ChildSpec
    from .supervisor import Supervisor
    from .system import ActorSystem

R = TypeVar("R")

StopOutcome: TypeAlias = Literal["stopped", "killed", "unstoppable"]


class Cell(Inbox):
    """One actor across its incarnations. Kernel-internal: everybody else holds the ``ActorRef``.

    States: stopped → starting → running → (stopping → stopped | restarting → starting) → gone. A cell is
    ``gone`` once its supervisor will not start it again; from then on asks fail with ActorGone. It is
    ``unstoppable`` while an incarnation that outlived its budgets is still there.
    """

    kind: Literal["actor"] = "actor"

    def __init__(self, spec: ChildSpec[Any], parent: Supervisor, system: ActorSystem) -> None:
        super().__init__(spec, parent.child_path(spec.id), system)
        self.ref.bind(self)
        self.parent = parent
        self.state: State = "stopped"
        self.incarnation = 0
        self.unstoppable = 0
        self.last_failure: Failure | None = None
        self._envelope: Envelope | None = None
        self._context: Context[Any] | None = None
        self._scope = CancelScope()
        self._task: asyncio.Task[None] | None = None
        self._variables = contextvars.copy_context()  # those of the task
        self._stop_requested = False
        self._halt = False  # end without draining
        self._returning = False  # what the stop in progress means for the actor
        self._ended_by: TerminationReason = "stopped"
        self._watchers: dict[Cell, None] = {}

    @property
    def alive(self) -> bool:
        """Whether an incarnation is there, the release of what it owned included."""
        return self._task is not None and not self._task.done()

    # -- what the handler in progress may do ------------------------------------------------------------

    def promise_of(self, message: Ask[R]) -> Promise[R]:
        """Return the promise of the ask in hand; RuntimeError for any other message."""
        envelope = self._envelope
        if envelope is None or envelope[0] is not message or envelope[1] is None:
            name = type(message).__name__
            raise RuntimeError(f"{self.path}: {name} is not the ask in hand; defer() it to answer later")
        return envelope[1]

    def rejected(self, error: Exception, operation: str) -> Rejected:
        """Wrap a refusal for the asker."""
        refusal = Rejected(self.path, operation, str(error))
        refusal.__cause__ = error
        return refusal

    def forget(self, promise: Promise[Any]) -> None:
        """Drop a settled deferred promise (called by the promise)."""
        if self._context is not None:
            self._context.forget(promise)

    def stop_from_inside(self) -> None:
        """Let the actor end: after the message in hand if it comes back, else once it has drained."""
        if self.parent.will_restart(self, crashed=False):
            self._halt = True
        else:
            self.mailbox.close()
        self._request_stop()

    def inject(self, error: BaseException) -> None:
        """Crash the actor with ``error`` before its next message."""
        if not isinstance(error, Exception):
            # Raised as it is, it would end the loop (SystemExit) or pass for a cancellation.
            wrapped = KernelError(f"{self.path}: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.post(Crash(error))

    # -- watches --------------------------------------------------------------------------------------

    def add_watcher(self, watcher: Cell) -> None:
        """Register a watch by ``watcher``'s current incarnation, which withdraws it at its end."""
        if self.state in ("gone", "unstoppable"):
            watcher.post(Terminated(self.ref, self.incarnation, "gone", self.last_failure, restarting=False))
        else:
            self._watchers[watcher] = None

    def remove_watcher(self, watcher: Cell) -> None:
        """Withdraw a watch."""
        self._watchers.pop(watcher, None)

    def _watchers_learn(self, reason: TerminationReason, failure: Failure | None, *, returning: bool) -> None:
        watchers, self._watchers = self._watchers, {}
        notice = Terminated(self.ref, self.incarnation, reason, failure, returning)
        for watcher in watchers:
            watcher.post(notice)

    # -- start ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a new incarnation and wait for its ``started``. Raises StartFailed."""
        if self.alive:
            stuck = UnstoppableChild(f"{self.path}: incarnation {self.incarnation} has not ended")
            raise StartFailed(self.path, str(stuck)) from stuck
        self.incarnation += 1
        self.state = "starting"
        self.mailbox.open()
        self._stop_requested = self._halt = self._returning = False
        self._context = Context(self, self.incarnation)
        self._scope = CancelScope()
        # Carries the error as a result: one that nobody reads any more must not complain by itself.
        started: asyncio.Future[Exception | None] = self.system.loop.create_future()
        life = self._live(self._context, self._scope, started)
        self._variables = contextvars.copy_context()
        self._task = self.system.loop.create_task(life, name=self.path, context=self._variables)
        try:
            await asyncio.wait(
                {started, self._task}, timeout=self.spec.start_s, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            if started.done() and (error := started.result()) is not None:
                self.report(error)
            started.cancel()
            raise
        await self._check_started(started)

    async def _check_started(self, started: asyncio.Future[Exception | None]) -> None:
        if started.done():
            if (error := started.result()) is not None:
                raise StartFailed(self.path, f"{type(error).__name__}: {error}") from error
        elif self.alive:
            started.cancel()
            await self.stop(returning=True, drain_s=0.0)
            raise StartFailed(self.path, f"started() took longer than {self.spec.start_s} s")
        else:
            self.state = "stopped"
            raise StartFailed(self.path, "its task was cancelled before it began")

    # -- stop -----------------------------------------------------------------------------------------

    async def stop(self, *, returning: bool, drain_s: float | None = None) -> StopOutcome:
        """End the incarnation: drain → ``stopped`` → kill. ``returning`` keeps the mailbox for the next.

        Takes at most ``shutdown_s`` for the orderly part, then the release budget and the system's kill
        grace. Cancels nothing through the mailbox: the kill goes through the actor's cancel scope.
        """
        if self.state == "unstoppable" and self.alive:
            return "unstoppable"  # its budgets were spent, and it was reported
        if not returning:
            self.mailbox.close()
        outcome: StopOutcome = "stopped"
        if self._task is not None and not self._task.done():
            self.state = "stopping"
            self._returning = returning
            # A coming-back actor keeps its queue for the next incarnation, so only a last stop drains it.
            self._halt = returning
            self._request_stop()
            outcome = await self._end(self._task, self.spec.shutdown_s if drain_s is None else drain_s)
        if outcome == "unstoppable":
            self._give_up_on_it()
        elif not returning:
            self.retire()
        return outcome

    def _request_stop(self) -> None:
        self._stop_requested = True
        self.mailbox.wake()

    async def _end(self, task: asyncio.Task[None], drain_s: float) -> StopOutcome:
        if not await _ended(task, drain_s):
            self._scope.cancel()
            if not await _ended(task, self.spec.shutdown_s + self.system.kill_grace_s):
                return "unstoppable"
        return "killed" if self._ended_by == "killed" else "stopped"

    def _give_up_on_it(self) -> None:
        """Let go of an incarnation that is stuck: nobody may wait for it any longer."""
        self.left_behind(f"task {self.path}")
        if self._context is not None:
            self._fail_deferred(self._context, "killed", None)
        if self._envelope is not None and self._envelope[1] is not None:
            promise = self._envelope[1]
            promise.fail(self.ended_error(promise.operation, "killed", None))
        self._watchers_learn("killed", None, returning=False)
        self._close_down()
        self.state = "unstoppable"

    def retire(self) -> None:
        """Mark the actor as gone and settle what still waits."""
        self._close_down()
        if self.state != "gone" and not (self.state == "unstoppable" and self.alive):
            self.state = "gone"
            self._watchers_learn("gone", self.last_failure, returning=False)

    def _close_down(self) -> None:
        self.mailbox.close()
        self.mailbox.clear_system()
        for envelope in self.mailbox.take_all():
            self.bury(envelope, "gone")

    def suspend(self) -> None:
        """Mark the actor as down but coming back (called by the supervisor)."""
        if not (self.state == "unstoppable" and self.alive):
            self.state = "restarting"

    # -- one incarnation ------------------------------------------------------------------------------

    async def _live(
        self, context: Context[Any], scope: CancelScope, started: asyncio.Future[Exception | None]
    ) -> None:
        error: Exception | None = None
        current_cell.set(self)
        try:
            with scope:
                await self._serve(context, started)
        except asyncio.CancelledError as cancelled:
            # A kill is absorbed by the scope; what gets here came from elsewhere (maybe besides a kill).
            if not scope.cancel_called:
                error = ForeignCancellation(f"{self.path}: cancelled from outside its own scopes")
                error.__cause__ = cancelled
        except Exception as crash:  # noqa: BLE001 - the cell guard: any exception is a crash of the actor
            error = crash
        current_cell.set(None)
        killed = error is None and scope.cancel_called
        self._ended_by = "crashed" if error is not None else "killed" if killed else "stopped"
        failure = None if error is None else self._record(context, error)
        unbidden = self._cut(context, failure)
        starting = not started.done()
        try:
            await context.release(self.spec.shutdown_s)
        finally:
            if self.state == "stopping":
                self.state = "stopped"
            if starting and not started.done():
                started.set_result(error or StartFailed(self.path, f"{self._ended_by} while starting"))
            elif unbidden and not starting:
                self.parent.child_ended(self, failure)
            elif failure is not None:
                self.system.failed(failure, None)

    async def _serve(self, context: Context[Any], started: asyncio.Future[Exception | None]) -> None:
        actor: Actor[Any] = self.spec.factory()
        actor.ctx = context
        await actor.started()
        if self.state == "starting":
            self.state = "running"
        if not started.done():
            started.set_result(None)
        messages = HandOff(self._handle_messages(actor), self.mailbox, self.system.turn, self._variables)
        if self.system.tap is None:
            self.attend = messages.run
        await messages
        await actor.stopped()

    async def _handle_messages(self, actor: Actor[Any]) -> None:  # noqa: C901, PLR0912, PLR0915 - one loop, no calls
        """Read the mailbox until the actor is to end. The kernel's hot path: mind every line."""
        mailbox, tap, receive, counts = self.mailbox, self.system.tap, actor.receive, self.counts
        system, user = mailbox.system, mailbox.user
        waiter = self.create_future()
        begun = perf_counter()
        turn_end = begun + TURN_S
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
                if waiter.done():
                    waiter = self.create_future()
                mailbox.waiter = waiter
                await park(waiter)
                begun = perf_counter()
                turn_end = begun + TURN_S
                continue
            self._envelope = envelope
            message, promise, _ = envelope
            if tap is not None and not (promise is not None and promise.closed):
                await tap.before(self, message)
            if promise is not None:
                future = promise.future  # spelt out: what promise.closed says
                if not promise.open or (future is not None and future.done()):
                    counts.skipped += 1
                    continue
                self.deadline_s = promise.deadline_s
                await receive(message)
                self.deadline_s = math.inf
                if promise.open and not (promise.deferred or promise.closed):
                    raise Unanswered(f"{self.path} left {promise.operation} without an answer")
            elif type(message) is Crash:
                raise message.error
            else:
                await receive(message)
            ended = perf_counter()
            took = ended - begun
            counts.handled += 1
            counts.handle_s += took
            if took > counts.handle_max_s:  # noqa: PLR1730 - max() costs three times this
                counts.handle_max_s = took
            begun = ended
            if ended > turn_end:
                self._envelope = None
                await asyncio.sleep(0)
                begun = perf_counter()
                turn_end = begun + TURN_S
        self._envelope = None

    # -- the end of an incarnation ------------------------------------------------------------------------

    def _record(self, context: Context[Any], error: Exception) -> Failure:
        message_type = None
        if self._envelope is not None and not isinstance(self._envelope[0], Crash):
            message_type = type(self._envelope[0]).__name__
        self.last_failure = Failure(self.path, context.incarnation, error, message_type, self.now_s())
        return self.last_failure

    def _cut(self, context: Context[Any], failure: Failure | None) -> bool:
        """Settle everything that hung on the incarnation, at once; True if it ended unbidden."""
        in_hand, self._envelope = self._envelope, None
        self.deadline_s = math.inf
        self._fail_deferred(context, self._ended_by, failure)
        if in_hand is not None and not isinstance(in_hand[0], Crash):
            self.bury(in_hand, "crashed" if failure is not None else "gone", failure)
        self.mailbox.clear_system()
        if failure is not None and self.spec.on_restart == "drop":
            for envelope in self.mailbox.take_all():
                self.bury(envelope, "dropped", failure)
        unbidden = self.state in ("starting", "running")
        returning = self._returning
        if unbidden:
            returning = self.parent.will_restart(self, crashed=failure is not None)
            self.state = "restarting" if returning else "stopped"
        self._watchers_learn(self._ended_by, failure, returning=returning)
        return unbidden

    def _fail_deferred(
        self, context: Context[Any], reason: TerminationReason, failure: Failure | None
    ) -> None:
        for promise in context.cut():
            promise.fail(self.ended_error(promise.operation, reason, failure))

    def left_behind(self, what: str) -> None:
        """Record a task or thread that outlived its budgets."""
        self.unstoppable += 1
        self.system.left_behind(self.path, what)

    def report(self, error: BaseException) -> None:
        """Publish an error that came up while an incarnation was ending and can no longer crash it."""
        failure = Failure(self.path, self.incarnation, error, None, self.now_s())
        self.system.failed(failure, None)

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
