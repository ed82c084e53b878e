"""What a lane does between ``open`` and ``close``: rows wait, prefill, decode and end.

A row's way: ``insert`` → waiting (first come, first served, until one of ``places`` is free) → prefilling
(prefill.py) → decoding (groups.py) → one terminal event. A step drops and joins rows, starts a prefill pass
behind the decode step in flight, launches the next one behind that, and reads the one in flight, which did
not wait for the pass. The pass is known to be done when the step behind it is read. On a CPU, where a launch
computes (cpu/attention.py), the pass is seen through between two steps instead, so that every step can have
one. With nothing decoding, a step is a pass, from its launch to its end.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ..port import Failed, Finished, LaneFigures
from ..state.snapshots import clone
from .admitting import Refusal, admit
from .pace import StepMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..models.batchable import LoadedModel
    from ..port import RowEvent, RowRequest
    from .delivery import Delivery
    from .groups import DecodeGroups
    from .pool import BufferPool
    from .prefill import Prefiller
    from .publishing import Publisher
    from .rows import Row
    from .suspects import Suspects


HELD_MOST_S: Final = 2.0
"""Rows that could decode wait no longer than this for others that came with them."""


class Runner:
    """The rows of an open lane. Lane thread only, under the lane's stream.

    Every inserted row gets exactly one terminal event. What the model raises comes out of ``step`` and
    leaves the runner unusable; ``suspects`` then names the phase and the rows.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        batch: DecodeGroups,
        prefill: Prefiller,
        publisher: Publisher,
        delivery: Delivery,
        pool: BufferPool,
        suspects: Suspects,
        places: int,
        launch_computes: bool,
        clock: Callable[[], float],
    ) -> None:
        self._loaded = loaded
        self._batch = batch
        self._prefill = prefill
        self._publisher = publisher
        self._delivery = delivery
        self._pool = pool
        self._suspects = suspects
        self._places = places
        self._launch_computes = launch_computes
        self._clock = clock
        self._rows: dict[str, Row] = {}
        self._waiting: deque[Row] = deque()
        self._ready: list[Row] = []
        self._flying: tuple[Row, ...] = ()
        self._outbox: list[RowEvent] = []
        self._steps = StepMeter()
        self._peak_rows = self._decode_steps = 0
        self._ready_since_s = 0.0

    def insert(self, request: RowRequest) -> None:
        """Queue a row. ValueError for an id that is already there: that is the caller's mistake."""
        if request.id in self._rows:
            raise ValueError(f"row {request.id} is already in the lane")
        try:
            codec = self._loaded.codec
            row = admit(request, self._loaded.info.vocab_size, codec.detokenizer, codec.end_tokens)
        except Refusal as refusal:
            self._outbox.append(refusal.event(request.id))
            return
        if row.complete:
            self._publisher.recall(row)
            self._outbox.append(row.finish(self._clock()))
            return
        self._rows[row.id] = row
        self._waiting.append(row)

    def cancel(self, row_id: str) -> None:
        """End a row now; it is out of every later launch, and ``Cancelled`` comes with the next step."""
        row = self._rows.get(row_id)
        if row is not None and not row.ended:  # one that has ended is on its way out with all it said
            del self._rows[row_id]
            self._outbox.append(row.cancelled())

    @property
    def busy(self) -> bool:
        """Whether rows are left or events are still to be handed out."""
        return bool(self._rows or self._outbox)

    def step(self) -> list[RowEvent]:
        """Do one decode step and/or one prefill pass; see the module's docstring for the order."""
        events, self._outbox = self._outbox, []
        self._admit()
        fresh: list[RowEvent] = []
        # Not before the first step of rows that have just joined.
        if not self._regroup() and self._decoding_rows and self._prefill.running is None:
            fresh.extend(self._pass_beside())
        fresh.extend(self._decode())
        fresh.extend(self._pass_alone())
        for event in fresh:
            if isinstance(event, Finished | Failed):
                del self._rows[event.id]
        self._pool.stepped()
        if not self._rows:
            self._rest()
        return [*events, *fresh]

    def figures(self) -> LaneFigures:
        """Return the figures; step times are the gaps that decoding rows saw, prefill included."""
        decoding = self._decoding_rows
        p50, p99 = self._steps.window.percentiles_ms()
        return LaneFigures(
            rows=decoding,
            prefilling=len(self._rows) - decoding,
            peak_rows=self._peak_rows,
            steps=self._decode_steps,
            decoded_tokens=self._delivery.delivered,
            prefilled_tokens=self._prefill.prefilled_tokens,
            step_ms_p50=p50,
            step_ms_p99=p99,
            decode_tps=self._steps.window.per_second,
            prefill_tps=self._prefill.rates.per_second,
            solo_rows=self._batch.solo_rows,
            failed_publications=self._publisher.failed,
        )

    def clear(self) -> None:
        """Drop every row and its state."""
        self._rows.clear()
        self._waiting.clear()
        self._ready, self._outbox = [], []
        self._rest()

    def _admit(self) -> None:
        """Give free places to waiting rows, oldest first."""
        self._prefill.drop_ended()
        self._ready = [row for row in self._ready if not row.ended]
        held = len(self._prefill.queue.rows) + len(self._ready) + self._decoding_rows
        while self._waiting and held < self._places:
            row = self._waiting.popleft()
            if not row.ended:
                self._borrow(row)
                self._prefill.queue.add(row)
                held += 1

    def _borrow(self, row: Row) -> None:
        """Give a row the state that it starts from, and say where it publishes its own."""
        self._suspects.note("prefill", (row,))
        prefix = row.request.prefix
        if prefix is not None:
            row.caches = clone(prefix.checkpoint, prefix.length)
        self._publisher.plan(row)
        self._loaded.scheme.plan(row)

    def _regroup(self) -> bool:
        """Let ended rows leave the batch and prefilled ones join it; return whether any joined."""
        self._suspects.note("join", [row for row in self._batch.rows if not row.ended])
        self._batch.drop_ended()
        joining = [] if self._held_back() else self._ready
        if joining:
            self._ready = []
            self._suspects.note("join", joining)
            now_s = self._clock()
            for row in joining:
                row.decode_started_s = now_s
            self._batch.join(joining)
        self._peak_rows = max(self._peak_rows, len(self._batch.rows))
        return bool(joining)

    def _held_back(self) -> bool:
        """Whether rows that are ready wait a moment for others that came with them.

        Where nothing decodes yet and the other prompts take less time than steps between them would, all are
        sooner served so, but for the first few.
        """
        if not self._ready or self._decoding_rows:
            return False
        left_s = HELD_MOST_S - (self._clock() - self._ready_since_s)
        return self._prefill.worth_holding(self._steps.plain_s, left_s)

    @property
    def _decoding_rows(self) -> int:
        return sum(not row.ended for row in self._batch.rows)

    def _decode(self) -> Iterator[RowEvent]:
        batch = self._batch
        if batch.rows:
            yield from self._advance(batch)
        else:
            self._steps.paused()
        for _, events in self._publisher.settle(wait=self._decoding_rows == 0):
            yield from events

    def _advance(self, batch: DecodeGroups) -> Iterator[RowEvent]:
        if not batch.in_flight:
            self._steps.started(self._clock())
        running = self._prefill.running
        # Reading waits for the step in flight and for the pass behind it, and launches a step on the way.
        behind = [] if running is None else running.rows
        self._suspects.note("decode", [*self._flying, *batch.rows, *behind])
        decoded = batch.advance()
        self._flying = tuple(batch.rows) if batch.in_flight else ()
        if not decoded:
            return
        now_s = self._clock()
        passed = running is not None and running.step < batch.read_step
        pass_s = self._steps.read(len(decoded), now_s, running=running is not None, passed=passed)
        self._decode_steps += 1
        for each in decoded:
            if not each.row.ended:
                yield from self._delivery.events(batch, each, now_s)
        if passed:
            yield from self._settle(pass_s)

    def _pass_beside(self) -> Iterator[RowEvent]:
        """Start a pass beside rows that decode; where its launch computes it, see it through."""
        if self._launch_computes and self._prefill.queue.rows:
            self._suspects.note("decode", [*self._flying, *self._batch.rows])
            self._batch.wait()
        self._start_pass(decoding=True)
        if self._launch_computes and self._prefill.running is not None:
            seconds = self._prefill.wait()
            self._steps.interrupted(seconds)
            yield from self._settle(seconds)

    def _start_pass(self, *, decoding: bool) -> None:
        """Launch the next pass, if a row has something to prefill."""
        turns = self._prefill.plan(decoding=decoding, step_s=self._steps.plain_s)
        if turns:
            self._suspects.note("prefill", [row for row, _ in turns])
            self._prefill.launch(turns, self._batch.launched)

    def _pass_alone(self) -> Iterator[RowEvent]:
        """See a pass through, since no stream is held up by that; first start one if none runs.

        Not while rows are ready to decode: their first step would wait for it; unless they are held back.
        """
        if self._decoding_rows:
            return
        if self._prefill.running is None and (not self._ready or self._held_back()):
            self._start_pass(decoding=False)
        if self._prefill.running is not None:
            self._suspects.note("prefill", self._prefill.running.rows)
            yield from self._settle(self._prefill.wait())

    def _settle(self, seconds: float) -> Iterator[RowEvent]:
        """Account for a pass that is done: progress events, and rows that may decode now."""
        for row, count in self._prefill.done(seconds):
            self._pool.prefilled(count)
            yield row.progress()
            self._loaded.scheme.settle(row)
            published = self._publisher.reached(row) if count else None
            if published is not None:
                yield published
            if row.remaining == 0:
                if row.request.max_tokens == 0:
                    yield row.finish(self._clock())
                else:
                    if not self._ready:
                        self._ready_since_s = self._clock()
                    self._ready.append(row)

    def _rest(self) -> None:
        """Nothing is left to do: give the batch's state and the buffer pool back."""
        self._batch.clear()
        self._prefill.forget()
        self._flying = ()
        self._suspects.note("step", ())  # a row keeps the state that it was lent
        self._steps.paused()
        self._pool.empty()
