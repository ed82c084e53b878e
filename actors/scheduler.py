"""Admission, queueing, placement and cancellation of requests.

A request is prepared (rendered and tokenised on the blocking pool), waits in the backlog, borrows the longest
prefix that residency has, and runs as a row of a lane. Its ``Submit`` stays open until a row is its own: so
a crash of the scheduler reaches exactly the unstarted requests as ActorCrashed, and a client that leaves
while queued is simply skipped. Rows that run are the lanes' knowledge; a restarted scheduler asks for them
and goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, assert_never

from ..runtime.engine.checkpoint import Prefix
from ..runtime.engine.errors import EngineError
from ..runtime.engine.port import Cancelled, Failed, Finished, RowRequest
from ..runtime.kernel import Actor, ActorCrashed, ActorRef, Ask, Deferred, Terminated
from .backlog import Backlog, Prefilling
from .generation import Lane, RowEnded, RowPublished
from .places import Places, Running
from .requests import Admission, Admitted, GenerationRequest, PrefixReuse, Refused
from .stream import RequestStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..runtime.engine.port import ModelInfo, RenderedPrompt, TextCodec
    from ..runtime.kernel import BlockingPool
    from ..storage.tokens import TokenIds
    from .residency import Residency, Taken

LANE_ASK_S = 5.0
TAKE_S = 300.0
RATE_SMOOTHING = 0.3
RATE_MIN_TOKENS = 64
RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits: rows per lane, requests that may wait beyond free rows, tokens where a request says none.

    ``publish_min_tokens``: the shortest state that rows publish.
    """

    batch: int
    queue: int
    max_tokens: int
    publish_min_tokens: int = 32


@dataclass(slots=True)
class SchedulerCounts:
    """How many requests went which way. Outlives the actor's incarnations: counters never go backwards."""

    admitted: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    finished: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerFigures:
    """``queued`` and ``running`` are now; the others count since the process started."""

    queued: int
    running: int
    admitted: int
    refused: int
    cancelled: int
    failed: int
    finished: int


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
    | Drain
    | GetFigures
)


@dataclass(slots=True)
class _Waiting:
    request: GenerationRequest
    answer: Deferred[Admission]
    row: RowRequest
    tokens: TokenIds

    @property
    def namespace(self) -> str:
        return self.row.namespace


class SchedulerActor(Actor[SchedulerMessage]):
    """See the module. Policy: ``Backlog``'s order; the lane with the fewest rows."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        codec: TextCodec,
        model: ModelInfo,
        pool: BlockingPool,
        options: SchedulerOptions,
        *,
        counts: SchedulerCounts,
        residency: Residency | None = None,
    ) -> None:
        self._places = Places(lanes, options.batch)
        self._codec = codec
        self._model = model
        self._pool = pool
        self._options = options
        self._preparing: dict[str, Deferred[Admission]] = {}
        self._backlog: Backlog[_Waiting] = Backlog()
        self._borrowing: dict[str, tuple[_Waiting, asyncio.Task[Taken]]] = {}
        self._residency = residency
        self._prefill_tps: float | None = None
        self._drains: list[Deferred[None]] = []
        self._open = True
        self._counts = counts

    async def started(self) -> None:
        """Watch the lanes and account for rows that run since before a restart."""
        for place in self._places:
            self.ctx.watch(place.lane.ref)
            for row in await place.lane.rows(LANE_ASK_S):
                place.rows[row.request.id] = Running(row.stream)

    async def receive(self, message: SchedulerMessage) -> None:
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
            case RowPublished() | RowEnded() | Terminated():
                self._lane_said(message)
            case Cancel():
                self._cancel(message.request_id)
            case Drain():
                self._open = False
                self._drains.append(self.ctx.defer(message))
                self._settle_drains()
            case GetFigures():
                self.ctx.reply(message, self._figures())
            case _:
                assert_never(message)

    # -- in -------------------------------------------------------------------------------------------

    def _submit(self, message: Submit) -> None:
        if not self._open:
            refusal = Refused("draining", "the server is shutting down", retry_after_s=RETRY_AFTER_S)
            self._refuse(self.ctx.defer(message), refusal)
            return
        self._forget_leavers()
        waiting = len(self._preparing) + len(self._backlog)
        if waiting >= self._options.queue + self._free_rows():
            refusal = Refused(
                "queue_full", f"{waiting} requests are waiting already", retry_after_s=RETRY_AFTER_S
            )
            self._refuse(self.ctx.defer(message), refusal)
            return
        request = message.request
        self._preparing[request.id] = self.ctx.defer(message)
        self.ctx.spawn(
            self._pool.run(self._codec.render_chat, request.messages, request.template_kwargs),
            lambda prompt: Prepared(message, prompt),
            lambda error: PreparationFailed(message, error),
        )

    def _prepared(self, message: Prepared) -> None:
        answer = self._preparing.pop(message.submit.request.id)
        request, tokens = message.submit.request, message.prompt.tokens
        room = self._model.context_length - len(tokens)
        if not tokens:
            self._refuse(answer, Refused("empty_prompt", "the messages render to no tokens", "messages"))
        elif room < 1:
            self._refuse(answer, _beyond_context(len(tokens), self._model.context_length))
        else:
            max_tokens = min(request.max_tokens or self._options.max_tokens, room)
            row = self._row(request, message.prompt, max_tokens)
            self._backlog.add(_Waiting(request, answer, row, tokens))
        self._dispatch()

    def _unprepared(self, message: PreparationFailed) -> None:
        answer = self._preparing.pop(message.submit.request.id)
        error = message.error
        if isinstance(error, EngineError) and not error.retryable:
            self._refuse(answer, Refused(error.code, str(error), "messages"))
        else:
            answer.reject(error)
        self._dispatch()

    def _row(self, request: GenerationRequest, prompt: RenderedPrompt, max_tokens: int) -> RowRequest:
        sampling = request.sampling
        if not request.temperature_given:
            sampling = replace(sampling, temperature=self._model.default_temperature)
        return RowRequest(
            request.id,
            prompt.tokens,
            max_tokens,
            sampling,
            request.stop,
            request.top_logprobs,
            boundary=prompt.boundary,
            publish=self._residency is not None,
        )

    def _refuse(self, answer: Deferred[Admission], refusal: Refused) -> None:
        self._counts.refused += 1
        answer.reply(refusal)

    # -- placement --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        self._forget_leavers()
        while self._free_rows() > 0 and (waiting := self._backlog.next()) is not None:
            if self._residency is None:
                self._place(waiting, None)
            else:
                self._borrow(waiting, self._residency)
        self._settle_drains()

    def _borrow(self, waiting: _Waiting, residency: Residency) -> None:
        """Ask for the longest prefix there is; the request's row is reserved meanwhile."""
        request = waiting.request
        self._announce(waiting, 0)
        work = residency.take(
            waiting.tokens,
            waiting.namespace,
            request.session_id,
            self._prefill_tps,
            self.ctx.self,
            TAKE_S,
        )
        task = self.ctx.spawn(
            work, lambda taken: Borrowed(request.id, taken), lambda _: Borrowed(request.id, None)
        )
        self._borrowing[request.id] = waiting, task

    def _announce(self, waiting: _Waiting, cached: int) -> None:
        """Let others wait for what this request is about to prefill."""
        tokens = waiting.tokens[:-1]
        if len(tokens) - cached >= self._options.publish_min_tokens:
            prefilling = Prefilling(tokens, waiting.namespace, cached, self._model.trims)
            self._backlog.began(waiting.request.id, prefilling)
        else:
            self._backlog.published(waiting.request.id)

    def _borrowed(self, request_id: str, taken: Taken | None) -> None:
        """Run a request with what residency gave, or from nothing when it could not be asked."""
        borrowing = self._borrowing.pop(request_id, None)
        if borrowing is not None:
            self._place(borrowing[0], taken)
        elif taken is not None and taken.lease is not None:
            self._let_go(request_id, taken.lease.id)  # cancelled while this answer was on its way
        self._dispatch()

    def _place(self, waiting: _Waiting, taken: Taken | None) -> None:
        request_id, lease = waiting.request.id, None if taken is None else taken.lease
        stream = RequestStream(request_id, lambda _: self._ask_to_cancel(request_id))
        if not waiting.answer.reply(Admitted(stream, len(waiting.tokens), self._reuse(taken))):
            self._counts.cancelled += 1  # the client left
            self._let_go(request_id, None if lease is None else lease.id)
            return
        stream.started_s = self.ctx.now_s()
        self._counts.admitted += 1
        row = waiting.row
        if lease is not None:
            row = replace(row, prefix=Prefix(lease.checkpoint, lease.length))
        if self._residency is not None:
            self._announce(waiting, 0 if lease is None else lease.length)
        self._start(row, stream, None if lease is None else lease.id, waiting.request.session_id)

    def _start(
        self, row: RowRequest, stream: RequestStream, lease_id: int | None, session_id: str | None
    ) -> None:
        place = self._places.emptiest()
        if place.lane.start(row, stream, self.ctx.self, session_id):
            place.rows[row.id] = Running(stream, lease_id)
        else:
            self._counts.failed += 1
            stream.push(Failed(row.id, "lane_unavailable", f"{place.lane.ref.path} takes no requests"))
            self._let_go(row.id, lease_id)

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

    def _free_rows(self) -> int:
        return self._places.free - len(self._borrowing)

    def _forget_leavers(self) -> None:
        """Drop queued requests whose client has gone."""
        self._counts.cancelled += self._backlog.drop(lambda waiting: waiting.answer.closed)

    # -- out ------------------------------------------------------------------------------------------

    def _cancel(self, request_id: str) -> None:
        place = self._places.holding(request_id)
        if place is not None:
            place.lane.cancel(request_id)
        elif request_id in self._borrowing:
            # Its client has left. A restore that nobody else wants ends with the task.
            _, task = self._borrowing.pop(request_id)
            task.cancel()
            self._counts.cancelled += 1
            self._backlog.published(request_id)
            self._dispatch()

    def _lane_said(self, message: RowPublished | RowEnded | Terminated) -> None:
        match message:
            case RowPublished():
                self._backlog.published(message.row_id)
            case RowEnded():
                self._row_ended(message)
            case Terminated():
                self._lane_ended(message)
        self._dispatch()

    def _row_ended(self, message: RowEnded) -> None:
        place = self._places.on(message.lane)
        row = place.rows.pop(message.event.id, None)
        if row is not None:
            self._let_go(message.event.id, row.lease_id)
            match message.event:
                case Finished():
                    self._counts.finished += 1
                    self._learn(message.event)
                case Cancelled():
                    self._counts.cancelled += 1
                case Failed():
                    self._counts.failed += 1

    def _learn(self, finished: Finished) -> None:
        """Follow the rate at which prompts are prefilled, against which a restore is weighed."""
        tokens = finished.prompt_tokens - finished.cached_tokens
        if tokens < RATE_MIN_TOKENS or finished.prefill_ms <= 0:
            return
        rate = tokens / (finished.prefill_ms / 1e3)
        before = self._prefill_tps
        self._prefill_tps = rate if before is None else before + RATE_SMOOTHING * (rate - before)

    def _lane_ended(self, message: Terminated) -> None:
        """Report a lane's end to every client that it touched and watch its next incarnation."""
        place = self._places.on(message.ref)
        rows, place.rows = place.rows, {}
        cause = message.failure.error if message.failure is not None else message.reason
        for request_id, row in rows.items():
            self._counts.failed += 1
            self._let_go(request_id, row.lease_id)
            row.stream.push(
                Failed(request_id, "lane_crashed", f"the lane serving this request failed: {cause}")
            )
        self.ctx.watch(message.ref)

    def _settle_drains(self) -> None:
        if self._preparing or self._backlog or self._borrowing or self._places.running:
            return
        for drain in self._drains:
            drain.reply(None)
        self._drains.clear()

    # -- figures ----------------------------------------------------------------------------------------

    def _figures(self) -> SchedulerFigures:
        return SchedulerFigures(
            queued=len(self._preparing) + len(self._backlog),
            running=len(self._borrowing) + self._places.running,
            **asdict(self._counts),
        )


def _beyond_context(tokens: int, context_length: int) -> Refused:
    return Refused(
        "context_length_exceeded",
        f"the prompt has {tokens} tokens; the model's context holds {context_length}, reply included",
        "messages",
    )


class Scheduler:
    """The typed face of the scheduler for those who submit requests."""

    def __init__(self, ref: ActorRef[SchedulerMessage]) -> None:
        self.ref = ref

    async def submit(self, request: GenerationRequest, timeout_s: float) -> Admission:
        """Submit a request and wait until it runs or is refused.

        A scheduler crash before it ran is survived by submitting once more. Raises AskError: AskTimeout when
        it did not get to run in time; being cancelled withdraws the request.
        """
        try:
            try:
                return await self.ref.ask(Submit(request), timeout_s)
            except ActorCrashed:
                return await self.ref.ask(Submit(request), timeout_s)
        except asyncio.CancelledError:
            # It may have got its row in the very moment in which its client left.
            self.ref.tell(Cancel(request.id))
            raise

    async def drain(self, timeout_s: float) -> None:
        """Close admission and wait until every request has ended. Raises AskTimeout."""
        await self.ref.ask(Drain(), timeout_s)

    async def figures(self, timeout_s: float) -> SchedulerFigures:
        """Return the scheduler's figures. Raises AskError."""
        return await self.ref.ask(GetFigures(), timeout_s)
