"""A lane: one pinned thread, one model, one running batch.

The actor is the lane's ear and mouth on the event loop. It owns no policy: which request runs where is
the scheduler's business. Every row that it took ends with exactly one terminal event on the row's stream
and one ``RowEnded`` to the row's owner; if the lane crashes, the owner sees ``Terminated`` instead.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ..runtime.engine.lane import Drop, Insert, LaneCommand, Step, run_lane
from ..runtime.engine.port import (
    Cancelled,
    Failed,
    Finished,
    LaneFigures,
    Prefilled,
    Published,
    RowRequest,
    Terminal,
)
from ..runtime.kernel import Actor, ActorRef, Ask, PinnedThread, ThreadPort

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime.engine.port import LaneBackend, ModelInfo
    from .residency import Residency
    from .stream import RequestStream

PRESSURE_STEPS: Final = 256
"""Steps after which residency looks at the engine's memory."""


@dataclass(frozen=True, slots=True)
class RowEnded:
    """Told to a row's owner when the row has left the batch by itself or was cancelled."""

    lane: ActorRef[LaneMessage]
    event: Terminal


@dataclass(frozen=True, slots=True)
class RowPublished:
    """Told to a row's owner when residency has a checkpoint of the row."""

    row_id: str


@dataclass(frozen=True, slots=True)
class StartRow:
    """Let a row join the batch; its events go to ``stream``, its end also to ``owner``.

    What it publishes is kept for ``session_id`` by preference. Once the stream is at a later ``attempt`` than
    this one, its owner has given the row up: it does not start, or says no more.
    """

    request: RowRequest
    stream: RequestStream
    owner: ActorRef[RowPublished | RowEnded]
    session_id: str | None
    attempt: int

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for this row any more."""
        return self.stream.ended or self.attempt != self.stream.attempt


@dataclass(frozen=True, slots=True)
class CancelRow:
    """Take a row out before the next step. Unknown ids are ignored."""

    row_id: str


@dataclass(frozen=True, slots=True)
class GetRows(Ask[tuple[StartRow, ...]]):
    """Which rows the lane has, so that a restarted owner can account for them again."""


@dataclass(frozen=True, slots=True)
class GetFigures(Ask[LaneFigures]):
    """The lane's figures, at most a tenth of a second old."""


@dataclass(frozen=True, slots=True)
class LaneSteps:
    """Steps that the lane's thread has done (from the thread alone)."""

    steps: tuple[Step, ...]


@dataclass(slots=True)
class LaneTotals:
    """What a lane's ended incarnations did. Outlives them: counters never go backwards."""

    peak_rows: int = 0
    steps: int = 0
    decoded_tokens: int = 0
    prefilled_tokens: int = 0

    def absorb(self, figures: LaneFigures) -> None:
        """Add an incarnation that has ended."""
        total = self.with_(figures)
        self.peak_rows, self.steps = total.peak_rows, total.steps
        self.decoded_tokens, self.prefilled_tokens = total.decoded_tokens, total.prefilled_tokens

    def with_(self, figures: LaneFigures) -> LaneFigures:
        """Return ``figures`` of the present incarnation with the earlier ones counted in."""
        return replace(
            figures,
            peak_rows=max(self.peak_rows, figures.peak_rows),
            steps=self.steps + figures.steps,
            decoded_tokens=self.decoded_tokens + figures.decoded_tokens,
            prefilled_tokens=self.prefilled_tokens + figures.prefilled_tokens,
        )


LaneMessage: TypeAlias = StartRow | CancelRow | GetRows | GetFigures | LaneSteps


class GenerationActor(Actor[LaneMessage]):
    """One lane. ``backend`` makes a fresh backend; it is opened, used and closed on the lane's thread."""

    def __init__(
        self, backend: Callable[[], LaneBackend], totals: LaneTotals, residency: Residency | None = None
    ) -> None:
        self._residency = residency
        self._backend = backend
        self._totals = totals
        self._rows: dict[str, StartRow] = {}
        self._successors: dict[str, StartRow] = {}
        self._figures = LaneFigures()
        self._steps_watched = 0
        self._thread: PinnedThread[LaneCommand, Step] | None = None

    async def started(self) -> None:
        """Start the thread and wait until its model is loaded. Raises what loading raises."""
        self.ctx.on_end(self._leave_totals)
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[ModelInfo] = loop.create_future()

        def body(port: ThreadPort[LaneCommand, Step]) -> None:
            def ready(info: ModelInfo) -> None:
                loop.call_soon_threadsafe(_settle, opened, info, None)

            try:
                run_lane(self._backend(), port, ready)
            except BaseException as error:
                loop.call_soon_threadsafe(_settle, opened, None, error)
                raise

        self._thread = self.ctx.run_thread("engine", body, lambda steps: LaneSteps(tuple(steps)))
        await opened

    async def receive(self, message: LaneMessage) -> None:
        """Pass commands to the thread and its events to the streams."""
        match message:
            case LaneSteps():
                for step in message.steps:
                    self._publish(step)
            case StartRow():
                self._start(message)
            case CancelRow():
                self._cancel(message.row_id)
            case GetRows():
                rows = (*self._rows.values(), *self._successors.values())
                self.ctx.reply(message, tuple(row for row in rows if not row.given_up))
            case GetFigures():
                self.ctx.reply(message, self._totals.with_(self._figures))
            case _:
                assert_never(message)

    async def _leave_totals(self) -> None:
        self._totals.absorb(self._figures)

    def _start(self, row: StartRow) -> None:
        """Insert a row, after an earlier attempt of it has left: its owner could not reach this lane."""
        if row.given_up:
            return  # while the message was under way
        if row.request.id in self._rows:
            self._successors[row.request.id] = row
            self._send(Drop(row.request.id))
            return
        self._rows[row.request.id] = row
        self._send(Insert(row.request))

    def _cancel(self, row_id: str) -> None:
        successor = self._successors.pop(row_id, None)
        if successor is not None:
            self._end(successor, Cancelled(row_id))
        elif row_id in self._rows:
            self._send(Drop(row_id))

    def _publish(self, step: Step) -> None:
        if step.figures is not None:
            self._figures = step.figures
        self._steps_watched += 1
        if self._steps_watched >= PRESSURE_STEPS:
            self._watch_memory()
        for event in step.events:
            if isinstance(event, Prefilled) and event.done == event.total:
                self._watch_memory()
            row = self._rows.get(event.id)
            if row is None:
                continue
            if isinstance(event, Published):
                self._keep(event, row)
            elif isinstance(event, Finished | Cancelled | Failed):
                del self._rows[event.id]
                self._end(row, event)
                if (successor := self._successors.pop(event.id, None)) is not None:
                    self._start(successor)
            elif row.attempt == row.stream.attempt:
                row.stream.push(event)
            else:
                self._send(Drop(event.id))

    def _end(self, row: StartRow, event: Terminal) -> None:
        if row.attempt == row.stream.attempt:
            row.stream.push(event)
            row.owner.tell(RowEnded(self.ctx.self, event))

    def _watch_memory(self) -> None:
        """Let residency look at the memory: prompts and decoding make it grow (REQUIREMENTS D10)."""
        self._steps_watched = 0
        if self._residency is not None:
            self._residency.pressure()

    def _keep(self, event: Published, row: StartRow) -> None:
        """Hand a checkpoint to residency before anybody can hear of it: a later take finds it."""
        if self._residency is not None:
            self._residency.put(event.checkpoint, row.session_id, provisional=event.provisional)
            row.owner.tell(RowPublished(event.id))

    def check_integrity(self) -> None:
        """Assert that rows are known by their own ids and streams. No I/O; between two messages."""
        for row_id, row in self._rows.items():
            assert row_id == row.request.id == row.stream.id, f"row {row_id} is another's"
        assert self._successors.keys() <= self._rows.keys()

    def _send(self, command: LaneCommand) -> None:
        if self._thread is None:
            raise RuntimeError(f"{self.ctx.path} has no thread")
        self._thread.send(command)


def _settle(opened: asyncio.Future[ModelInfo], info: ModelInfo | None, error: BaseException | None) -> None:
    if opened.done():
        return  # opened long ago (a crash later on is the kernel's to report), or nobody waits any more
    if error is not None:
        opened.set_exception(error)
    elif info is not None:
        opened.set_result(info)


class Lane:
    """The typed face of a lane for its owner."""

    def __init__(self, ref: ActorRef[LaneMessage]) -> None:
        self.ref = ref

    def start(
        self,
        request: RowRequest,
        stream: RequestStream,
        owner: ActorRef[RowPublished | RowEnded],
        session_id: str | None = None,
    ) -> bool:
        """Let a row join; False when the lane cannot take messages (it has stopped, or is flooded)."""
        return self.ref.tell(StartRow(request, stream, owner, session_id, stream.attempt))

    def cancel(self, row_id: str) -> None:
        """Drop a row before the next step; the terminal event follows."""
        self.ref.tell(CancelRow(row_id))

    async def rows(self, timeout_s: float) -> tuple[StartRow, ...]:
        """Return the rows in hand. Raises AskError."""
        return await self.ref.ask(GetRows(), timeout_s)

    async def figures(self, timeout_s: float) -> LaneFigures:
        """Return the lane's figures. Raises AskError."""
        return await self.ref.ask(GetFigures(), timeout_s)
