"""The MLX backend of a lane: continuous batching over one model, behind ``port.LaneBackend``.

A row's way: ``insert`` → waiting (first come, first served, until one of ``batch`` places is free) →
prefilling (prefill.py) → decoding (batch.py) → one terminal event. A step drops and joins rows, launches
the next decode step, reads the one before, and starts a prefill pass. While rows decode, a pass is left
running behind the step and is known to be done when a later step's tokens are read, so its time is not
added to the tokens that are already known; with nothing decoding, the step waits for the pass.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import mlx.core as mx
from mlx_lm.utils import maybe_set_recommended_wired_limit

from .batch import DecodeBatch
from .batchable import always_trims, require_batching
from .pace import ChunkSizer, RateWindow, StepMeter
from .port import AtWork, Delta, LaneFigures, TokenLogprob
from .prefill import PrefillPass, PrefillQueue, launch_pass
from .publishing import Publisher
from .rows import DETOKENIZER_ERRORS, Refusal, admit
from .snapshots import clone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .batch import Decoded, RawLogprobs
    from .batchable import LoadedModel, ModelHandle
    from .port import ModelInfo, RowEvent, RowRequest
    from .rows import Row

_CPU_CHUNK: Final = 512
_GPU_CHUNK: Final = 2048
_TEXTS_KEPT: Final = 65_536


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Limits of one lane.

    ``batch``: rows that hold state at once. ``prefill_chunk``: tokens of one pass (None: 512 on a CPU,
    else 2048). ``decode_gap_ms``: how long a pass may hold up rows that decode. ``publish_min_tokens``: the
    shortest state that rows publish.
    """

    batch: int = 8
    prefill_chunk: int | None = None
    decode_gap_ms: float = 250.0
    publish_min_tokens: int = 32


@dataclass(frozen=True, slots=True)
class _Opened:
    """What exists between ``open`` and ``close``."""

    loaded: LoadedModel
    stream: mx.ThreadLocalStream
    batch: DecodeBatch
    sizer: ChunkSizer
    publisher: Publisher


class MlxBackend:
    """``port.LaneBackend`` on MLX. One thread calls everything, from ``open`` to ``close``.

    ``completion_tokens`` counts the tokens of the row's deltas: an end token is neither text nor
    counted; the token that completed a stop string is counted. Every inserted row gets exactly one
    terminal event. Values a row cannot be decoded with are ``Failed`` for that row; what the model
    raises comes out of ``step`` and leaves the backend unusable.
    """

    def __init__(
        self,
        handle: ModelHandle,
        options: BackendOptions | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._handle = handle
        self._options = options or BackendOptions()
        self._clock = clock
        self._rows: dict[str, Row] = {}
        self._waiting: deque[Row] = deque()
        self._queue = PrefillQueue()
        self._ready: list[Row] = []
        self._pass: PrefillPass | None = None
        self._pass_began_s: float | None = None
        self._outbox: list[RowEvent] = []
        self._steps = StepMeter()
        self._passes = RateWindow()
        self._peak_rows = self._decode_steps = self._decoded = self._prefilled = 0
        self._texts: dict[int, str] = {}
        self._wired_limit: int | None = None
        self._opened: _Opened | None = None

    def open(self) -> ModelInfo:
        """Load the model and take a stream of this thread. Raises EngineError when it cannot batch."""
        loaded = self._handle.load()
        stream = mx.new_thread_local_stream(mx.default_device())
        with mx.stream(stream):
            require_batching(loaded.model)
        chunk = self._options.prefill_chunk
        if chunk is None:
            chunk = _CPU_CHUNK if mx.default_device() == mx.cpu else _GPU_CHUNK
        sizer = ChunkSizer(chunk, self._options.decode_gap_ms / 1e3)
        self._wired_limit = maybe_set_recommended_wired_limit()
        publisher = Publisher(
            self._options.publish_min_tokens, loaded.codec, always_trims=always_trims(loaded.model)
        )
        self._opened = _Opened(loaded, stream, DecodeBatch(loaded.model), sizer, publisher)
        return loaded.info

    def insert(self, request: RowRequest) -> None:
        """Queue a row. ValueError for an id that is already there: that is the caller's mistake."""
        opened = self._need_open()
        if request.id in self._rows:
            raise ValueError(f"row {request.id} is already in the lane")
        try:
            row = admit(request, opened.loaded.info.vocab_size, opened.loaded.codec.detokenizer)
        except Refusal as refusal:
            self._outbox.append(refusal.event(request.id))
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

    @property
    def at_work(self) -> AtWork:
        """All rows: a failing step does not say yet which of them it was about."""
        return AtWork("step", frozenset(self._rows))

    def step(self) -> list[RowEvent]:
        """Do one decode step and/or one prefill pass; see the module's docstring for the order."""
        opened = self._need_open()
        with mx.stream(opened.stream):
            events, self._outbox = self._outbox, []
            self._admit(opened)
            self._regroup(opened)
            events.extend(self._decode(opened))
            events.extend(self._prefill(opened))
            if not self._rows:
                self._rest(opened)
        return events

    def figures(self) -> LaneFigures:
        """Return the figures; step times are the gaps that decoding rows saw, prefill included."""
        decoding = 0 if self._opened is None else sum(not row.ended for row in self._opened.batch.rows)
        p50, p99 = self._steps.window.percentiles_ms()
        return LaneFigures(
            rows=decoding,
            prefilling=len(self._rows) - decoding,
            peak_rows=self._peak_rows,
            steps=self._decode_steps,
            decoded_tokens=self._decoded,
            prefilled_tokens=self._prefilled,
            step_ms_p50=p50,
            step_ms_p99=p99,
            decode_tps=self._steps.window.per_second,
            prefill_tps=self._passes.per_second,
        )

    def close(self) -> None:
        """Drop every row and buffer; the weights stay with the handle. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        with mx.stream(opened.stream):
            mx.synchronize(opened.stream)
            opened.batch.clear()
            self._rows.clear()
            self._waiting.clear()
            self._queue = PrefillQueue()
            self._ready, self._pass, self._outbox = [], None, []
        if self._wired_limit is not None:
            mx.set_wired_limit(self._wired_limit)
            self._wired_limit = None
        mx.clear_cache()

    def _need_open(self) -> _Opened:
        if self._opened is None:
            raise RuntimeError("the backend is not open")
        return self._opened

    def _admit(self, opened: _Opened) -> None:
        """Give free places to waiting rows, oldest first."""
        self._queue.discard([row for row in self._queue.rows if row.ended])
        self._ready = [row for row in self._ready if not row.ended]
        held = len(self._queue.rows) + len(self._ready) + sum(not row.ended for row in opened.batch.rows)
        while self._waiting and held < self._options.batch:
            row = self._waiting.popleft()
            if not row.ended:
                self._borrow(opened, row)
                self._queue.add(row)
                held += 1

    def _borrow(self, opened: _Opened, row: Row) -> None:
        """Give a row the state that it starts from, and say where it publishes its own."""
        prefix = row.request.prefix
        if prefix is not None:
            row.caches = clone(prefix.checkpoint, prefix.length)
        opened.publisher.plan(row)

    def _regroup(self, opened: _Opened) -> None:
        """Let ended rows leave the batch and prefilled ones join it."""
        opened.batch.drop_ended()
        if self._ready:
            now_s = self._clock()
            for row in self._ready:
                row.decode_started_s = now_s
            opened.batch.join(self._ready)
            self._ready = []
        self._peak_rows = max(self._peak_rows, len(opened.batch.rows))

    def _decode(self, opened: _Opened) -> Iterator[RowEvent]:
        batch = opened.batch
        if batch.rows:
            yield from self._advance(opened, batch)
        else:
            self._steps.paused()
        for row, events in opened.publisher.settle(wait=all(row.ended for row in batch.rows)):
            del self._rows[row.id]
            yield from events

    def _advance(self, opened: _Opened, batch: DecodeBatch) -> Iterator[RowEvent]:
        if not batch.in_flight:
            self._steps.started(self._clock())
        decoded = batch.advance()
        if not decoded:
            return
        now_s = self._clock()
        done = self._pass if self._pass is not None and self._pass.step < batch.read_step else None
        pass_s = self._steps.read(len(decoded), now_s, with_pass=done is not None)
        self._decode_steps += 1
        for each in decoded:
            if not each.row.ended:
                yield from self._deliver(opened, each, now_s)
        if done is not None:
            yield from self._settle(opened, done, pass_s)

    def _deliver(self, opened: _Opened, decoded: Decoded, now_s: float) -> Iterator[RowEvent]:
        row, token, raw = decoded
        self._decoded += 1
        try:
            logprobs = () if raw is None else (self._named(opened, token, raw),)
            events = row.accept(token, logprobs, opened.loaded.codec.end_tokens, now_s)
        except DETOKENIZER_ERRORS as error:
            yield row.failed("detokenizer_error", f"token {token} has no text: {error}")
            del self._rows[row.id]
            return
        for event in events:
            if isinstance(event, Delta):
                yield event
            elif not opened.publisher.leave(opened.batch, row, event):
                yield event
                del self._rows[row.id]

    def _named(self, opened: _Opened, token: int, raw: RawLogprobs) -> TokenLogprob:
        top = tuple((other, self._text_of(opened, other), value) for other, value in raw.top)
        return TokenLogprob(token, self._text_of(opened, token), raw.chosen, top)

    def _text_of(self, opened: _Opened, token: int) -> str:
        """Return a token's text on its own, as logprobs show it."""
        text = self._texts.get(token)
        if text is None:
            alone = opened.loaded.codec.detokenizer()
            text = alone.add(token) + alone.flush()
            if len(self._texts) < _TEXTS_KEPT:
                self._texts[token] = text
        return text

    def _prefill(self, opened: _Opened) -> Iterator[RowEvent]:
        """Start a pass, and see it through when no stream would be held up by that."""
        if self._pass is None and self._queue.rows:
            self._pass = self._launch(opened)
        running = self._pass
        if running is not None and all(row.ended for row in opened.batch.rows):
            began_s = self._clock() if self._pass_began_s is None else self._pass_began_s
            running.wait()
            yield from self._settle(opened, running, self._clock() - began_s)

    def _launch(self, opened: _Opened) -> PrefillPass:
        decoding = any(not row.ended for row in opened.batch.rows)
        turns = self._queue.plan(opened.sizer.size(decoding=decoding))
        self._pass_began_s = self._clock()
        for row, _ in turns:
            if row.prefill_started_s is None:
                row.prefill_started_s = self._pass_began_s
        return launch_pass(opened.loaded.model, turns, opened.batch.launched)

    def _settle(self, opened: _Opened, done: PrefillPass, seconds: float) -> Iterator[RowEvent]:
        """Account for a pass that is done: progress events, and rows that may decode now."""
        self._pass = self._pass_began_s = None
        if done.tokens:
            opened.sizer.record(done.tokens, seconds)
            self._passes.record(done.tokens, seconds)
            self._prefilled += done.tokens
        turns = [(row, count) for row, count in done.turns if not row.ended]
        for row, count in turns:
            row.prefilled += count
            yield row.progress()
            published = opened.publisher.reached(row) if count else None
            if published is not None:
                yield published
            if row.remaining == 0 and row.request.max_tokens == 0:
                yield row.finish_empty(self._clock())
                del self._rows[row.id]
        complete = [row for row, _ in turns if row.remaining == 0]
        self._queue.discard(complete)
        self._ready.extend(row for row in complete if not row.ended)

    def _rest(self, opened: _Opened) -> None:
        """Nothing is left to do: give the batch's state and the buffer pool back."""
        opened.batch.clear()
        self._pass = self._pass_began_s = None
        self._steps.paused()
        mx.clear_cache()
