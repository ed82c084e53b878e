"""Admission, queueing, placement and cancellation of requests.

A request is prepared (rendered and tokenised on the blocking pool), waits in the queue, and runs as a row
of a lane. Its ``Submit`` stays open until a row is its own: so a crash of the scheduler reaches exactly
the unstarted requests as ActorCrashed, and a client that leaves while queued is simply skipped. Rows that
run are the lanes' knowledge; a restarted scheduler asks for them and goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from ..runtime.engine.errors import EngineError
from ..runtime.engine.port import Cancelled, Failed, Finished, RowRequest
from ..runtime.kernel import Actor, ActorCrashed, ActorRef, Ask, Deferred, Terminated
from .generation import Lane, RowEnded
from .requests import Admission, Admitted, GenerationRequest, Refused
from .stream import RequestStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..runtime.engine.port import ModelInfo, RenderedPrompt, TextCodec
    from ..runtime.kernel import BlockingPool

LANE_ASK_S = 5.0
RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits: rows per lane, requests that may wait beyond free rows, tokens where a request says none."""

    batch: int
    queue: int
    max_tokens: int


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
class Drain(Ask[None]):
    """Close admission; answered when nothing is prepared, queued or running any more."""


@dataclass(frozen=True, slots=True)
class GetFigures(Ask[SchedulerFigures]):
    """The scheduler's figures."""


SchedulerMessage: TypeAlias = (
    Submit | Cancel | Prepared | PreparationFailed | RowEnded | Terminated | Drain | GetFigures
)


@dataclass(slots=True)
class _Waiting:
    request: GenerationRequest
    answer: Deferred[Admission]
    row: RowRequest


@dataclass(slots=True)
class _Place:
    """One lane and the rows placed on it."""

    lane: Lane
    rows: dict[str, RequestStream] = field(default_factory=dict[str, RequestStream])


class SchedulerActor(Actor[SchedulerMessage]):
    """See the module. Policy: first come, first served; the lane with the fewest rows."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        codec: TextCodec,
        model: ModelInfo,
        pool: BlockingPool,
        options: SchedulerOptions,
        *,
        counts: SchedulerCounts,
    ) -> None:
        self._places = [_Place(lane) for lane in lanes]
        self._codec = codec
        self._model = model
        self._pool = pool
        self._options = options
        self._preparing: dict[str, Deferred[Admission]] = {}
        self._queue: deque[_Waiting] = deque()
        self._drains: list[Deferred[None]] = []
        self._open = True
        self._counts = counts

    async def started(self) -> None:
        """Watch the lanes and account for rows that run since before a restart."""
        for place in self._places:
            self.ctx.watch(place.lane.ref)
            for row in await place.lane.rows(LANE_ASK_S):
                place.rows[row.request.id] = row.stream

    async def receive(self, message: SchedulerMessage) -> None:
        """Keep the queue moving."""
        match message:
            case Submit():
                self._submit(message)
            case Prepared():
                self._prepared(message)
            case PreparationFailed():
                self._unprepared(message)
            case RowEnded():
                self._row_ended(message)
            case Cancel():
                self._cancel(message.request_id)
            case Terminated():
                self._lane_ended(message)
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
        waiting = len(self._preparing) + len(self._queue)
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
            self._queue.append(_Waiting(request, answer, self._row(request, tokens, max_tokens)))
        self._dispatch()

    def _unprepared(self, message: PreparationFailed) -> None:
        answer = self._preparing.pop(message.submit.request.id)
        error = message.error
        if isinstance(error, EngineError) and not error.retryable:
            self._refuse(answer, Refused(error.code, str(error), "messages"))
        else:
            answer.reject(error)
        self._dispatch()

    def _row(self, request: GenerationRequest, tokens: Sequence[int], max_tokens: int) -> RowRequest:
        sampling = request.sampling
        if not request.temperature_given:
            sampling = replace(sampling, temperature=self._model.default_temperature)
        return RowRequest(request.id, tokens, max_tokens, sampling, request.stop, request.top_logprobs)

    def _refuse(self, answer: Deferred[Admission], refusal: Refused) -> None:
        self._counts.refused += 1
        answer.reply(refusal)

    # -- placement --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        self._forget_leavers()
        while self._queue and self._free_rows() > 0:
            place = min(self._places, key=lambda place: len(place.rows))
            self._place(self._queue.popleft(), place)
        self._settle_drains()

    def _place(self, waiting: _Waiting, place: _Place) -> None:
        request_id = waiting.request.id
        stream = RequestStream(request_id, lambda _: self._ask_to_cancel(request_id))
        if not waiting.answer.reply(Admitted(stream, len(waiting.row.tokens))):
            return  # the client left
        stream.started_s = self.ctx.now_s()
        self._counts.admitted += 1
        if place.lane.start(waiting.row, stream, self.ctx.self):
            place.rows[request_id] = stream
        else:
            self._counts.failed += 1
            stream.push(Failed(request_id, "lane_unavailable", f"{place.lane.ref.path} takes no requests"))

    def _ask_to_cancel(self, request_id: str) -> None:
        self.ctx.self.tell(Cancel(request_id))

    def _free_rows(self) -> int:
        return sum(self._options.batch - len(place.rows) for place in self._places)

    def _forget_leavers(self) -> None:
        """Drop queued requests whose client has gone."""
        staying = [waiting for waiting in self._queue if not waiting.answer.closed]
        if len(staying) < len(self._queue):
            self._counts.cancelled += len(self._queue) - len(staying)
            self._queue = deque(staying)

    # -- out ------------------------------------------------------------------------------------------

    def _cancel(self, request_id: str) -> None:
        for place in self._places:
            if request_id in place.rows:
                place.lane.cancel(request_id)

    def _row_ended(self, message: RowEnded) -> None:
        place = self._place_of(message.lane)
        if place.rows.pop(message.event.id, None) is not None:
            match message.event:
                case Finished():
                    self._counts.finished += 1
                case Cancelled():
                    self._counts.cancelled += 1
                case Failed():
                    self._counts.failed += 1
        self._dispatch()

    def _lane_ended(self, message: Terminated) -> None:
        """Report a lane's end to every client that it touched and watch its next incarnation."""
        place = self._place_of(message.ref)
        rows, place.rows = place.rows, {}
        cause = message.failure.error if message.failure is not None else message.reason
        for request_id, stream in rows.items():
            self._counts.failed += 1
            stream.push(Failed(request_id, "lane_crashed", f"the lane serving this request failed: {cause}"))
        self.ctx.watch(message.ref)
        self._dispatch()

    def _place_of(self, lane: ActorRef[Any]) -> _Place:
        return next(place for place in self._places if place.lane.ref is lane)

    def _settle_drains(self) -> None:
        if self._preparing or self._queue or any(place.rows for place in self._places):
            return
        for drain in self._drains:
            drain.reply(None)
        self._drains.clear()

    # -- figures ----------------------------------------------------------------------------------------

    def _figures(self) -> SchedulerFigures:
        return SchedulerFigures(
            queued=len(self._preparing) + len(self._queue),
            running=sum(len(place.rows) for place in self._places),
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
