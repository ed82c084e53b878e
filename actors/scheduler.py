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
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ..runtime.engine.port import Finished
from ..runtime.kernel import Actor, ActorCrashed, ActorGone, ActorRef, Ask, Deferred, Terminated
from .generation import Lane, RowEnded, RowPublished
from .requests import Admission, Admitted, GenerationRequest
from .scheduling.admission import Admittance
from .scheduling.backlog import Backlog
from .scheduling.intake import Intake, PreparationFailed, Prepared, Submit, Waiting
from .scheduling.lanewatch import LaneLooked, LaneWatch, Look
from .scheduling.options import SchedulerFigures, SchedulerOptions
from .scheduling.places import Places
from .scheduling.resuming import Resuming
from .scheduling.seating import Borrowed, Seating

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..runtime.engine.port import ModelInfo, TextCodec
    from ..runtime.kernel import BlockingPool
    from .residency import Residency
    from .scheduling.ledger import Ledger
    from .scheduling.places import Place

RATE_SMOOTHING: Final = 0.3
RATE_MIN_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop a running request. Unknown ids are ignored."""

    request_id: str


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


class SchedulerActor(Actor[SchedulerMessage]):
    """See the module. Policy: ``Backlog``'s order, ``Places``' load, ``Admittance``'s limits, ``judge``.

    ``Intake`` has requests before they have a row, ``Seating`` those that have one, ``LaneWatch`` looks after
    the lanes. ``chance`` draws the seeds of rows whose clients gave none: it must be unpredictable outside of
    tests.
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
        self._backlog: Backlog[Waiting] = Backlog()
        self._resuming = Resuming()
        self._residency = residency
        self._drains: list[Deferred[None]] = []
        self._ledger = ledger

    async def started(self) -> None:
        """Go on with what the ledger knows."""
        self._intake = Intake(
            self.ctx,
            self._places,
            self._backlog,
            self._ledger,
            admittance=self._admittance,
            codec=self._codec,
            pool=self._pool,
        )
        self._seating = Seating(
            self.ctx,
            self._places,
            self._backlog,
            self._resuming,
            self._ledger,
            residency=self._residency,
            model=self._model,
            publish_min_tokens=self._options.publish_min_tokens,
            cancel=self._ask_to_cancel,
            gone=self._lane_gone,
        )
        self._lanes = LaneWatch(self.ctx, self._places, self._seating, self._ledger, self._ask_to_dispatch)
        await self._lanes.begin()
        if len(self._resuming):
            self._ask_to_dispatch()

    async def receive(self, message: SchedulerMessage) -> None:
        """Keep the queue moving."""
        match message:
            case GetFigures():
                self.ctx.reply(message, self._figures())
                return
            case Submit():
                self._intake.submit(message, self._seating.running)
                return
            case Prepared():
                self._intake.prepared(message)
            case PreparationFailed():
                self._intake.unprepared(message)
            case Borrowed():
                self._seating.borrowed(message.request_id, message.taken)
            case Cancel():
                self._seating.cancel(message.request_id)
            case RowPublished() | RowEnded() | Terminated() | LaneLooked() | Look():
                self._lane_said(message)
            case Drain():
                self._ledger.open = False
                self._drains.append(self.ctx.defer(message))
            case Dispatch():
                pass
            case _:
                assert_never(message)
        self._dispatch()

    def _lane_gone(self, place: Place) -> None:
        self._lanes.lost(place)

    def _lane_said(self, message: RowPublished | RowEnded | Terminated | LaneLooked | Look) -> None:
        match message:
            case RowPublished():
                self._backlog.published(message.row_id)
            case RowEnded():
                self._row_ended(message)
            case Terminated():
                self._lanes.ended(message)
            case LaneLooked():
                self._lanes.looked(message)
            case Look():
                self._lanes.lost(message.place)

    def _dispatch(self) -> None:
        """Let those go on who lost their lane, then those who wait, as far as there is room."""
        self._intake.forget_leavers()
        while (found := self._resuming.next(self._places)) is not None:
            self._seating.seat(*found)
        while self._places.free > len(self._resuming):
            place = self._places.lightest()
            waiting = None if place is None else self._backlog.next(self._fits)
            if place is None or waiting is None:
                break
            self._seating.seat(waiting, place)
        self._settle_drains()

    def _fits(self, waiting: Waiting) -> bool:
        """Whether a request fits beside all that run; what fits at all fits alone."""
        budget = self._options.kv_budget_bytes
        if not budget:
            return True
        taken = self._seating.kv_bytes
        return not taken or taken + waiting.asked.kv_bytes <= budget

    def _row_ended(self, message: RowEnded) -> None:
        running = self._places.on(message.lane).rows.pop(message.event.id, None)
        if running is not None:
            if isinstance(message.event, Finished):
                self._learn(message.event)
            self._seating.end(running, message.event)

    def _learn(self, finished: Finished) -> None:
        """Follow the rate at which prompts are prefilled, against which a restore is weighed."""
        tokens = finished.prompt_tokens - finished.cached_tokens
        if tokens < RATE_MIN_TOKENS or finished.prefill_ms <= 0:
            return
        rate = tokens / (finished.prefill_ms / 1e3)
        before = self._ledger.prefill_tps
        self._ledger.prefill_tps = rate if before is None else before + RATE_SMOOTHING * (rate - before)

    def _settle_drains(self) -> None:
        if self._intake.queued or self._seating.running:
            return
        for drain in self._drains:
            drain.reply(None)
        self._drains.clear()

    def _ask_to_cancel(self, request_id: str) -> None:
        self.ctx.self.tell(Cancel(request_id))

    def _ask_to_dispatch(self) -> None:
        self.ctx.self.tell(Dispatch())

    def check_integrity(self) -> None:
        """Assert that all books agree. For tests and idle moments, between two messages."""
        self._seating.check_integrity()

    def _figures(self) -> SchedulerFigures:
        return SchedulerFigures(
            queued=self._intake.queued,
            running=self._seating.running,
            kv_bytes=self._seating.kv_bytes,
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
