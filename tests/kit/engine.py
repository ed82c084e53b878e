"""A scripted engine: the real lane, scheduler and HTTP layers run over it without MLX or a model."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.engine.errors import TemplateError
from samovar.runtime.engine.port import (
    AtWork,
    Cancelled,
    Delta,
    Failed,
    Finished,
    KvCost,
    LaneFigures,
    ModelInfo,
    Prefilled,
    Published,
    RowEvent,
    RowRequest,
)
from samovar.runtime.engine.prompt import Constraint, Prompt, RenderedPrompt
from samovar.storage.identity import Identity
from samovar.storage.tokens import TokenIds

from tests.kit.prompts import messages_of
from tests.kit.states import FakeRestorer, FakeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samovar.runtime.engine.checkpoint import MemoryGauge
    from samovar.runtime.engine.port import Phase

STEP_LIMIT_S = 10.0


@dataclass
class _Row:
    request: RowRequest
    context: list[int]
    sent: int = 0
    prefilled: int = 0
    cached: int = 0
    ready: bool = False
    joined: bool = False


class FakeDetokenizer:
    def add(self, token: int) -> str:
        return f"<{token}>"

    def flush(self) -> str:
        return ""


class FakeCodec:
    """One token per character of the messages' contents; a content of "!bad" is refused by the template."""

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        text = "".join(str(message["content"]) for message in messages_of(prompt))
        if text == "!bad":
            raise TemplateError("the template refuses these messages")
        ids = TokenIds.of(self.encode(text))
        return RenderedPrompt(ids, len(ids))

    def encode(self, text: str) -> Sequence[int]:
        return [ord(character) % 256 for character in text]

    def remember(self, tokens: TokenIds) -> None:
        """Nothing to keep: here every text has one encoding."""

    def seed_history(self, sequences: Sequence[TokenIds]) -> None:
        """Nothing to keep."""

    def detokenizer(self) -> FakeDetokenizer:
        return FakeDetokenizer()


@dataclass
class FakeEngine:
    """What its backends do. ``reply(row, n)`` gives the n-th piece of a row's text, None at its end.

    While ``gate`` is set, every step takes one permit: ``allow(n)`` lets n steps happen. ``crash`` makes
    the next step of whichever backend raise it. Everything may be called from any thread.

    A row publishes its prompt and its run as states of ``token_bytes`` a token; one that is lent a state
    whose bytes, tokens, namespace or length are wrong fails, as does one that is resumed behind tokens that
    it never emitted.
    ``prefill_tokens``: how many a step prefills.
    """

    context_length: int = 1000
    gated: bool = False
    open_error: Exception | None = None
    crash: Exception | None = None
    step_s: float = 0.0
    token_bytes: int = 16
    trims: bool = True
    prefill_tokens: int = 1_000_000
    prefilled: int = 0
    opened: int = 0
    closed: int = 0
    inserted: list[str] = field(default_factory=list)
    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    kv: KvCost = field(default_factory=KvCost)
    default_temperature: float = 0.0

    def allow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.permits.release()

    def reply(self, row: RowRequest, n: int) -> str | None:
        return f"{row.tokens[0]}.{n} " if n < row.max_tokens else None

    def token(self, row: RowRequest, n: int) -> int:
        """Return the n-th token of a row's reply: it follows from prompt and place alone."""
        return (row.tokens[0] + len(row.tokens) + n) % 256

    def state(self, row: RowRequest, tokens: Sequence[int]) -> FakeState:
        """Return what a row publishes after ``tokens``. On the lane's thread."""
        ids = TokenIds.of(tokens)
        return FakeState.of(ids, self.token_bytes, trims=self.trims, namespace=row.namespace)

    def fault(self, phase: Phase, rows: Sequence[RowRequest]) -> Exception | None:
        """Return what a phase of a step raises, given the rows that it is about. On the lane's thread."""
        return None

    def pause(self) -> None:
        """Wait before a step. On the lane's thread."""

    def backend(self) -> FakeBackend:
        return FakeBackend(self)

    def codec(self) -> FakeCodec:
        return FakeCodec()

    def info(self) -> ModelInfo:
        temperature = self.default_temperature
        return ModelInfo(
            "fake", self.context_length, 256, "none", temperature, 0, trims=self.trims, kv=self.kv
        )

    def identity(self) -> Identity:
        return Identity("fake", {"model": "scripted"})

    def restorer(self) -> FakeRestorer:
        return FakeRestorer()

    def memory(self) -> MemoryGauge:
        return lambda: MemoryReading(0, 0)


class FakeBackend:
    """A LaneBackend: one piece of text per row and step."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._rows: dict[str, _Row] = {}
        self._cancelled: list[str] = []
        self._peak = 0
        self._steps = 0
        self._decoded = 0
        self._at_work = AtWork("step", frozenset())

    def open(self) -> ModelInfo:
        if self._engine.open_error is not None:
            raise self._engine.open_error
        self._engine.opened += 1
        return self._engine.info()

    def insert(self, request: RowRequest) -> None:
        if request.id in self._rows:
            raise ValueError(f"row {request.id} is already in the lane")
        self._engine.inserted.append(request.id)
        cached = 0 if request.prefix is None else request.prefix.length
        context = [*request.tokens, *request.emitted]
        row = _Row(request, context, len(request.emitted), prefilled=cached, cached=cached)
        self._rows[request.id] = row

    def cancel(self, row_id: str) -> None:
        if self._rows.pop(row_id, None) is not None:
            self._cancelled.append(row_id)

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._cancelled)

    @property
    def at_work(self) -> AtWork:
        return self._at_work

    def step(self) -> list[RowEvent]:
        self._at_work = AtWork("step", frozenset(self._rows))
        self._engine.pause()
        events: list[RowEvent] = [Cancelled(row_id) for row_id in self._cancelled]
        self._cancelled.clear()
        # In short waits, so that commands are still obeyed between steps, as a real engine does.
        if self._engine.gated and not self._engine.permits.acquire(timeout=0.001):
            return events
        if self._engine.step_s:
            threading.Event().wait(self._engine.step_s)
        if self._engine.crash is not None:
            error, self._engine.crash = self._engine.crash, None
            raise error
        self._steps += 1
        self._peak = max(self._peak, len(self._rows))
        rows = [row for row in self._rows.values() if row.ready]
        self._begin("join", [row for row in rows if not row.joined])
        for row in rows:
            row.joined = True
        self._begin("decode", rows)
        ending = [row for row in rows if self._engine.reply(row.request, row.sent) is None]
        events.extend([self._decode(row) for row in rows if row not in ending])
        for row in ending:
            events.extend(self._end(row))
        events.extend(self._prefill_all())
        return events

    def _begin(self, phase: Phase, rows: Sequence[_Row]) -> None:
        """Say what is being done, and fail if that is planned."""
        if rows:
            self._at_work = AtWork(phase, frozenset(row.request.id for row in rows))
            error = self._engine.fault(phase, [row.request for row in rows])
            if error is not None:
                raise error

    def _decode(self, row: _Row) -> Delta:
        piece, token = self._engine.reply(row.request, row.sent), self._engine.token(row.request, row.sent)
        assert piece is not None
        row.sent += 1
        row.context.append(token)
        self._decoded += 1
        return Delta(row.request.id, piece, (token,))

    def _end(self, row: _Row) -> list[RowEvent]:
        request = row.request
        self._begin("extract", [row])
        published = self._published(row, row.context[:-1] if row.sent else row.context)
        del self._rows[request.id]
        reason = "length" if row.sent >= request.max_tokens else "stop"
        count = len(request.tokens)
        end = Finished(request.id, reason, "", count, row.sent, 1.0, 1.0, cached_tokens=row.cached)
        return [*published, end]

    def _prefill_all(self) -> list[RowEvent]:
        events: list[RowEvent] = []
        waiting = [row for row in self._rows.values() if not row.ready]
        for row in waiting:
            if (wrong := self._wrong(row)) is not None:
                del self._rows[row.request.id]
                events.append(Failed(row.request.id, "wrong_state", wrong))
        waiting = [row for row in waiting if row.request.id in self._rows]
        self._begin("prefill", waiting)
        for row in waiting:
            events.extend(self._prefill(row))
        return events

    def _wrong(self, row: _Row) -> str | None:
        """Say what is wrong with what a row starts from."""
        request = row.request
        expected = tuple(self._engine.token(request, n) for n in range(len(request.emitted)))
        if request.emitted != expected:
            return f"it never emitted {request.emitted}"
        if request.prefix is None:
            return None
        state = request.prefix.checkpoint
        assert isinstance(state, FakeState)
        return self._unfit(state, row) or state.wrong()

    @staticmethod
    def _unfit(state: FakeState, row: _Row) -> str | None:
        """Say why a row could not start from a state even if its bytes were right."""
        if state.spec.tokens.tolist()[: row.cached] != row.context[: row.cached]:
            return "the state is of other tokens"
        if state.spec.namespace != row.request.namespace:
            return f"the state is of namespace {state.spec.namespace!r}"
        if row.cached >= len(row.context):
            return "no token is left to compute"
        if not state.spec.serves(row.cached):
            return f"the state cannot serve {row.cached} tokens"
        return None

    def _prefill(self, row: _Row) -> list[RowEvent]:
        last = len(row.context) - 1
        count = min(self._engine.prefill_tokens, last - row.prefilled)
        row.prefilled += count
        self._engine.prefilled += count
        if row.prefilled < last:
            return [Prefilled(row.request.id, row.prefilled, last + 1)]
        row.ready = True
        progress = Prefilled(row.request.id, last + 1, last + 1)
        if not count or row.request.emitted:
            return [progress]
        return [progress, *self._published(row, row.context[:-1], provisional=True)]

    def _published(self, row: _Row, tokens: Sequence[int], *, provisional: bool = False) -> list[RowEvent]:
        if not row.request.publish:
            return []
        self._begin("publish", [row])
        return [Published(row.request.id, self._engine.state(row.request, tokens), provisional)]

    def figures(self) -> LaneFigures:
        return LaneFigures(
            rows=len(self._rows), peak_rows=self._peak, steps=self._steps, decoded_tokens=self._decoded
        )

    def close(self) -> None:
        self._engine.closed += 1
