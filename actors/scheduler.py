"""Admission, queueing, placement, cancellation and resumption of requests.

A request is prepared (rendered and tokenised on the blocking pool), waits in the backlog, borrows the longest
prefix that residency has, and runs as a row of a lane. Its ``Submit`` stays open until a row is its own: so
a crash of the scheduler reaches exactly the unstarted requests as ActorCrashed, and a client that leaves
while queued is simply skipped. From then on it is in the ledger, which outlives the scheduler: whatever
becomes of its lane or of the scheduler, it goes on, and its stream only pauses (ADR 0008).
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ..runtime.engine.checkpoint import Prefix
from ..runtime.engine.errors import EngineError
from ..runtime.engine.port import Cancelled, Failed, Finished
from ..runtime.kernel import Actor, ActorCrashed, ActorGone, ActorRef, Ask, AskTimeout, Deferred, Terminated
from ..storage.tokens import TokenIds
from .admission import Admittance
from .backlog import Backlog, Prefilling
from .generation import Lane, RowEnded, RowPublished
from .ledger import Asked, Ledger, Running
from .places import Place, Places
from .requests import Admission, Admitted, GenerationRequest, PrefixReuse, Refused
from .resuming import Resuming
from .scheduling import SchedulerCounts, SchedulerFigures, SchedulerOptions
from .stream import RequestStream
from .verdicts import judge, told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..runtime.engine.port import ModelInfo, RenderedPrompt, TextCodec
    from ..runtime.kernel import BlockingPool
    from .generation import StartRow
    from .residency import Residency, Taken

__all__ = ["Scheduler", "SchedulerActor", "SchedulerCounts", "SchedulerFigures", "SchedulerOptions"]

LANE_ASK_S: Final = 5.0
LANE_UP_S: Final = 60.0
LOOK_AGAIN_S: Final = 0.2
TAKE_S: Final = 300.0
RATE_SMOOTHING: Final = 0.3
RATE_MIN_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Submit(Ask[Admission]):
    """Take a request. Answered once it runs (Admitted) or at once when it cannot be taken (Refused).

    Request ids are the submitter's to keep distinct.
    """

    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop a running request. Unknown ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request was tokenised (from the blocking pool)."""

    submit: Submit
    prompt: RenderedPrompt


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """A request could not be tokenised (from the blocking pool)."""

    submit: Submit
    error: Exception


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What residency said for a request about to run (from a task); None when it could not be asked."""

    request_id: str
    taken: Taken | None


@dataclass(frozen=True, slots=True)
class LaneLooked:
    """A lane that was down has answered (from a task), or it could not be asked."""

    place: Place
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Look whether a lane is up again (from a timer)."""

    place: Place


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Something has changed: see who may run."""


@dataclass(frozen=True, slots=True)
class Drain(Ask[None]):
    """Close admission; answered when nothing is prepared, queued or running any more."""


@dataclass(frozen=True, slots=True)
class GetFigures(Ask[SchedulerFigures]):
    """The scheduler's figures."""


SchedulerMessage: TypeAlias = (
    Submit
    | Cancel
    | Prepared
    | PreparationFailed
    | Borrowed
    | RowPublished
    | RowEnded
    | Terminated
    | LaneLooked
    | Look
    | Dispatch
    | Drain
    | GetFigures
)


@dataclass(slots=True)
class _Preparing:
    answer: Deferred[Admission]
    arrived_s: float


@dataclass(slots=True, eq=False)
class _Waiting:
    asked: Asked
    answer: Deferred[Admission]
    overtaken: int = 0

    @property
    def tokens(self) -> TokenIds:
        return self.asked.tokens

    @property
    def namespace(self) -> str:
        return self.asked.row.namespace

    @property
    def due_s(self) -> float:
        return self.asked.due_s


@dataclass(slots=True)
class _Borrowing:
    """A request for which a row of ``place`` is kept while residency looks for its prefix."""

    who: _Waiting | Running
    place: Place
    task: asyncio.Task[Taken]


class SchedulerActor(Actor[SchedulerMessage]):
    """See the module. Policy: ``Backlog``'s order, ``Places``' load, ``Admittance``'s limits, ``judge``.

    ``chance`` draws the seeds of rows whose clients gave none: it must be unpredictable outside of tests.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        codec: TextCodec,
        model: ModelInfo,
        pool: BlockingPool,
        options: SchedulerOptions,
        *,
        ledger: Ledger,
        residency: Residency | None = None,
        chance: Callable[[], int] = lambda: secrets.randbits(63),
    ) -> None:
        self._places = Places(lanes, options.batch)
        self._codec = codec
        self._model = model
        self._pool = pool
        self._options = options
        self._admittance = Admittance(model, options, chance, publish=residency is not None)
        self._preparing: dict[str, _Preparing] = {}
        self._backlog: Backlog[_Waiting] = Backlog()
        self._borrowing: dict[str, _Borrowing] = {}
        self._resuming = Resuming()
        self._residency = residency
        self._drains: list[Deferred[None]] = []
        self._ledger = ledger

    async def started(self) -> None:
        """Watch the lanes and compare what they have with the ledger."""
        for place in self._places:
            self.ctx.watch(place.lane.ref)
        await asyncio.gather(*(self._find_rows(place) for place in self._places))
        for running in self._ledger:
            self._take_up(running)
        if len(self._resuming):
            self.ctx.self.tell(Dispatch())

    async def receive(self, message: SchedulerMessage) -> None:  # noqa: C901, PLR0912 - one line a message
        """Keep the queue moving."""
        match message:
            case Submit():
                self._submit(message)
            case Prepared():
                self._prepared(message)
            case PreparationFailed():
                self._unprepared(message)
            case Borrowed():
                self._borrowed(message.request_id, message.taken)
            case RowPublished():
                self._backlog.published(message.row_id)
                self._dispatch()
            case RowEnded():
                self._row_ended(message)
            case Terminated():
                self._lane_ended(message)
            case LaneLooked():
                self._looked(message)
            case Look():
                self._look_for(message.place)
            case Dispatch():
                self._dispatch()
            case Cancel():
                self._cancel(message.request_id)
            case Drain():
                self._ledger.open = False
                self._drains.append(self.ctx.defer(message))
                self._settle_drains()
            case GetFigures():
                self.ctx.reply(message, self._figures())
            case _:
                assert_never(message)

    # -- in -------------------------------------------------------------------------------------------

    def _submit(self, message: Submit) -> None:
        answer, request = self.ctx.defer(message), message.request
        self._forget_leavers()
        waiting = len(self._preparing) + len(self._backlog)
        if not self._ledger.open:
            after_s = self._retry_after_s(waiting + len(self._ledger))
            self._refuse(answer, Refused("draining", "the server is shutting down", retry_after_s=after_s))
            return
        if waiting >= self._options.queue + max(0, self._places.capacity - self._running):
            text = f"{waiting} requests are waiting already"
            self._refuse(answer, Refused("queue_full", text, retry_after_s=self._retry_after_s(waiting)))
            return
        self._preparing[request.id] = _Preparing(answer, self.ctx.now_s())
        self.ctx.spawn(
            self._pool.run(self._codec.render_chat, request.messages, request.template_kwargs),
            lambda prompt: Prepared(message, prompt),
            lambda error: PreparationFailed(message, error),
        )

    def _prepared(self, message: Prepared) -> None:
        preparing = self._preparing.pop(message.submit.request.id)
        asked = self._admittance.prepare(message.submit.request, message.prompt, preparing.arrived_s)
        if isinstance(asked, Refused):
            self._refuse(preparing.answer, asked)
        elif (cause := self._ledger.convicts.cause(asked.fingerprint, self.ctx.now_s())) is not None:
            self._refuse(preparing.answer, Refused("lane_crashed", cause))
        else:
            self._backlog.add(_Waiting(asked, preparing.answer))
        self._dispatch()

    def _unprepared(self, message: PreparationFailed) -> None:
        answer = self._preparing.pop(message.submit.request.id).answer
        error = message.error
        if isinstance(error, EngineError) and not error.retryable:
            self._refuse(answer, Refused(error.code, str(error), "messages"))
        else:
            answer.reject(error)
        self._dispatch()

    def _refuse(self, answer: Deferred[Admission], refusal: Refused) -> None:
        self._ledger.counts.refused += 1
        answer.reply(refusal)

    def _retry_after_s(self, ahead: int) -> float:
        return self._ledger.turnover.retry_after_s(ahead, self._places.capacity)

    def _forget_leavers(self) -> None:
        """Drop queued requests whose client has gone."""
        self._ledger.counts.cancelled += self._backlog.drop(lambda waiting: waiting.answer.closed)

    # -- placement --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Let those go on who lost their lane, then those who wait, as far as there is room."""
        self._forget_leavers()
        while (found := self._resuming.next(self._places)) is not None:
            self._seat(*found)
        while self._places.free > len(self._resuming):
            waiting, place = self._backlog.next(self._fits), self._places.lightest()
            if waiting is None or place is None:
                break
            self._seat(waiting, place)
        self._settle_drains()

    def _fits(self, waiting: _Waiting) -> bool:
        """Whether a request fits beside all that run; what fits at all fits alone."""
        budget, taken = self._options.kv_budget_bytes, self._kv_bytes
        return not budget or not taken or taken + waiting.asked.kv_bytes <= budget

    @property
    def _kv_bytes(self) -> int:
        return self._ledger.kv_bytes + sum(waiting.asked.kv_bytes for waiting in self._unadmitted)

    @property
    def _unadmitted(self) -> list[_Waiting]:
        """The requests that have a row and wait for their prefix, but no stream yet."""
        return [each.who for each in self._borrowing.values() if isinstance(each.who, _Waiting)]

    def _seat(self, who: _Waiting | Running, place: Place) -> None:
        """Ask for the longest prefix there is; a row of ``place`` is kept meanwhile."""
        asked = who.asked
        if self._residency is None:
            self._start(who, place, None)
            return
        tokens = asked.tokens
        if isinstance(who, Running):
            if who.mark is not None:
                place.trial = asked.id
            tokens = TokenIds.of([*tokens.tolist(), *who.stream.emitted])
        self._announce(asked, 0)
        place.kept[asked.id] = asked
        work = self._residency.take(
            tokens,
            asked.row.namespace,
            asked.request.session_id,
            self._ledger.prefill_tps,
            self.ctx.self,
            TAKE_S,
        )
        task = self.ctx.spawn(
            work, lambda taken: Borrowed(asked.id, taken), lambda _: Borrowed(asked.id, None)
        )
        self._borrowing[asked.id] = _Borrowing(who, place, task)

    def _announce(self, asked: Asked, cached: int) -> None:
        """Let others wait for what this request is about to prefill."""
        tokens = asked.tokens[:-1]
        if len(tokens) - cached >= self._options.publish_min_tokens:
            prefilling = Prefilling(tokens, asked.row.namespace, cached, self._model.trims)
            self._backlog.began(asked.id, prefilling)
        else:
            self._backlog.published(asked.id)

    def _borrowed(self, request_id: str, taken: Taken | None) -> None:
        """Run a request with what residency gave, or from nothing when it could not be asked."""
        borrowing = self._borrowing.pop(request_id, None)
        if borrowing is not None:
            del borrowing.place.kept[request_id]
            self._start(borrowing.who, borrowing.place, taken)
        elif taken is not None and taken.lease is not None:
            self._let_go(request_id, taken.lease.id)  # cancelled while this answer was on its way
        self._dispatch()

    def _start(self, who: _Waiting | Running, place: Place, taken: Taken | None) -> None:
        """Hand a request to a lane, with its stream and the prefix that it borrowed."""
        lease = None if taken is None else taken.lease
        running = self._admit(who, taken) if isinstance(who, _Waiting) else who
        if running is None:
            self._let_go(who.asked.id, None if lease is None else lease.id)
            return
        running.lease_id = None if lease is None else lease.id
        if self._residency is not None:
            self._announce(running.asked, 0 if lease is None else lease.length)
        row = replace(
            running.asked.row,
            emitted=tuple(running.stream.emitted),
            prefix=None if lease is None else Prefix(lease.checkpoint, lease.length),
        )
        if not self._places.has_room(place):  # it was lost meanwhile
            self._strand(running)
        elif place.lane.start(row, running.stream, self.ctx.self, running.asked.request.session_id):
            self._put_on(running, place, 0 if lease is None else lease.length)
        else:
            place.up = False
            self._look_for(place)
            self._strand(running)

    def _admit(self, waiting: _Waiting, taken: Taken | None) -> Running | None:
        """Answer a client and take its request into the ledger; None when the client has left."""
        asked = waiting.asked
        stream = RequestStream(asked.id, self._ask_to_cancel)
        if not waiting.answer.reply(Admitted(stream, len(asked.tokens), self._reuse(taken))):
            self._ledger.counts.cancelled += 1
            return None
        stream.started_s = self.ctx.now_s()
        running = Running(asked, stream)
        self._ledger.admit(running)
        return running

    def _put_on(self, running: Running, place: Place, cached: int) -> None:
        """Note that a lane has taken a request."""
        running.stream.prefill_left = len(running.asked.tokens) + running.stream.emitted_tokens - cached
        running.lane = place.lane.ref.path
        self._ledger.counts.resumed += running.starts > 0
        running.starts += 1
        place.rows[running.id] = running

    def _reuse(self, taken: Taken | None) -> PrefixReuse:
        if taken is None:
            reason = "cache_off" if self._residency is None else "cache_unavailable"
            return PrefixReuse("none", 0, 0.0, reason)
        return PrefixReuse(taken.tier, taken.length, taken.restore_ms, taken.miss_reason, taken.diverged_at)

    def _let_go(self, request_id: str, lease_id: int | None) -> None:
        """Nobody needs to wait for this request any more, and nothing of it is borrowed."""
        self._backlog.published(request_id)
        if lease_id is not None and self._residency is not None:
            self._residency.release(lease_id)

    def _ask_to_cancel(self, request_id: str) -> None:
        self.ctx.self.tell(Cancel(request_id))

    # -- out ------------------------------------------------------------------------------------------

    def _cancel(self, request_id: str) -> None:
        place, running = self._places.holding(request_id), self._ledger.get(request_id)
        if running is not None:
            running.stream.cancelled = True
        if place is not None:
            place.lane.cancel(request_id)
            return
        borrowing = self._borrowing.pop(request_id, None)
        if borrowing is not None:
            # Its client has left. A restore that nobody else wants ends with the task.
            borrowing.task.cancel()
            del borrowing.place.kept[request_id]
            self._backlog.published(request_id)
        if running is not None:
            self._resuming.drop(request_id)
            self._end(running, Cancelled(request_id))
        elif borrowing is not None:
            self._ledger.counts.cancelled += 1
        self._dispatch()

    def _row_ended(self, message: RowEnded) -> None:
        running = self._places.on(message.lane).rows.pop(message.event.id, None)
        if running is not None:
            if isinstance(message.event, Finished):
                self._learn(message.event)
            self._end(running, message.event)
        self._dispatch()

    def _end(self, running: Running, event: Finished | Cancelled | Failed) -> None:
        """Forget a request, with ``event`` as its last unless it has had one."""
        running.stream.push(event)
        self._let_go(running.id, running.lease_id)
        self._ledger.close(running)

    def _learn(self, finished: Finished) -> None:
        """Follow the rate at which prompts are prefilled, against which a restore is weighed."""
        tokens = finished.prompt_tokens - finished.cached_tokens
        if tokens < RATE_MIN_TOKENS or finished.prefill_ms <= 0:
            return
        rate = tokens / (finished.prefill_ms / 1e3)
        before = self._ledger.prefill_tps
        self._ledger.prefill_tps = rate if before is None else before + RATE_SMOOTHING * (rate - before)

    def _settle_drains(self) -> None:
        if self._preparing or self._backlog or self._borrowing or self._ledger:
            return
        for drain in self._drains:
            drain.reply(None)
        self._drains.clear()

    # -- lanes that come and go ---------------------------------------------------------------------------

    async def _find_rows(self, place: Place) -> None:
        """Note the rows that a lane has. One that does not answer is between incarnations: it has none."""
        rows: tuple[StartRow, ...] = ()
        try:
            rows = await place.lane.rows(LANE_ASK_S)
        except (ActorCrashed, ActorGone, AskTimeout):
            place.up = False
            self._look_for(place)
        for row in rows:
            running = self._ledger.get(row.request.id)
            if running is None or running.stream is not row.stream:
                place.lane.cancel(row.request.id)
            else:
                place.rows[running.id] = running

    def _take_up(self, running: Running) -> None:
        """Account for a request that ran before this incarnation of the scheduler."""
        stream = running.stream
        running.lease_id = None  # it ended with the incarnation that took it
        place = self._places.holding(running.id)
        stream.cancelled = stream.cancelled or not stream.claimed
        if stream.terminal is not None:
            if place is not None:
                del place.rows[running.id]
            self._end(running, stream.terminal)
        elif place is None:
            self._strand(running)
        elif stream.cancelled:
            place.lane.cancel(running.id)

    def _strand(self, running: Running) -> None:
        """Let a request without a lane wait for one, unless it needs none."""
        self._let_go(running.id, running.lease_id)
        running.lease_id = None
        if (terminal := running.stream.terminal) is not None:
            self._end(running, terminal)
        elif running.stream.cancelled:
            self._end(running, Cancelled(running.id))
        else:
            self._resuming.add(running)

    def _lane_ended(self, message: Terminated) -> None:
        """Find out who is to blame, let everybody else go on, and watch the lane's next incarnation."""
        place = self._places.on(message.ref)
        place.up = False
        self.ctx.watch(message.ref)
        self._look_for(place)
        rows, place.rows = list(place.rows.values()), {}
        error = None if message.failure is None else message.failure.error
        verdict = judge(rows, error)
        for running, mark in verdict.suspects:
            running.suspect(mark, self._cleared)
        for running in rows:
            if running is verdict.convicted:
                self._convict(running, error)
            else:
                self._strand(running)
        self._dispatch()

    def _cleared(self) -> None:
        self.ctx.self.tell(Dispatch())

    def _convict(self, running: Running, error: BaseException | None) -> None:
        """End a request that has crashed a lane twice, and remember it for when it is sent again."""
        cause = f"this request crashed the lane that served it, twice: {told(error)}"
        self._ledger.convicts.add(running.asked.fingerprint, cause, self.ctx.now_s())
        self._end(running, Failed(running.id, "lane_crashed", cause, shown=True))

    def _look_for(self, place: Place) -> None:
        """Wait beside the mailbox until a lane answers again."""
        if place.looking:
            return
        place.looking = True
        self.ctx.spawn(
            place.lane.rows(LANE_UP_S),
            lambda _: LaneLooked(place),
            lambda error: LaneLooked(place, error),
        )

    def _looked(self, message: LaneLooked) -> None:
        place = message.place
        place.looking = False
        if message.error is None:
            place.up = True
            self._dispatch()
        elif not isinstance(message.error, ActorGone):
            self.ctx.after(LOOK_AGAIN_S, Look(place))

    # -- figures ----------------------------------------------------------------------------------------

    @property
    def _running(self) -> int:
        return len(self._ledger) + len(self._unadmitted)

    def _figures(self) -> SchedulerFigures:
        return SchedulerFigures(
            queued=len(self._preparing) + len(self._backlog),
            running=self._running,
            kv_bytes=self._kv_bytes,
            kv_budget_bytes=self._options.kv_budget_bytes,
            **asdict(self._ledger.counts),
        )


class Scheduler:
    """The typed face of the scheduler for those who submit requests."""

    def __init__(self, ref: ActorRef[SchedulerMessage]) -> None:
        self.ref = ref

    async def submit(self, request: GenerationRequest, timeout_s: float) -> Admission:
        """Submit a request and wait until it runs or is refused.

        A scheduler that crashed, or was restarted with another actor, before the request ran is survived by
        submitting once more. Raises AskError: AskTimeout when it did not get to run in time; being cancelled
        withdraws the request.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        try:
            try:
                admission = await self.ref.ask(Submit(request), timeout_s)
            except (ActorCrashed, ActorGone):
                left_s = until_s - asyncio.get_running_loop().time()
                admission = await self.ref.ask(Submit(request), left_s)
        except asyncio.CancelledError:
            # It may have got its row in the very moment in which its client left.
            self.ref.tell(Cancel(request.id))
            raise
        if isinstance(admission, Admitted):
            admission.stream.claimed = True
        return admission

    async def drain(self, timeout_s: float) -> None:
        """Close admission and wait until every request has ended. Raises AskError: AskTimeout."""
        until_s = asyncio.get_running_loop().time() + timeout_s
        try:
            await self.ref.ask(Drain(), timeout_s)
        except (ActorCrashed, ActorGone):
            await self.ref.ask(Drain(), until_s - asyncio.get_running_loop().time())

    async def figures(self, timeout_s: float) -> SchedulerFigures:
        """Return the scheduler's figures. Raises AskError."""
        return await self.ref.ask(GetFigures(), timeout_s)
