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
    LaneFigures,
    ModelInfo,
    Prefilled,
    Published,
    RenderedPrompt,
    RowEvent,
    RowRequest,
)
from samovar.storage.identity import Identity
from samovar.storage.tokens import TokenIds

from tests.kit.states import FakeRestorer, FakeState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from samovar.runtime.engine.checkpoint import MemoryGauge

STEP_LIMIT_S = 10.0


@dataclass
class _Row:
    request: RowRequest
    sent: int = 0
    prefilled: int = 0
    cached: int = 0
    ready: bool = False


class FakeDetokenizer:
    def add(self, token: int) -> str:
        return f"<{token}>"

    def flush(self) -> str:
        return ""


class FakeCodec:
    """One token per character of the messages' contents; a content of "!bad" is refused by the template."""

    def render_chat(
        self, messages: Sequence[Mapping[str, object]], template_kwargs: Mapping[str, object]
    ) -> RenderedPrompt:
        text = "".join(str(message["content"]) for message in messages)
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
    whose bytes are wrong fails. ``prefill_tokens``: how many a step prefills.
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

    def allow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.permits.release()

    def reply(self, row: RowRequest, n: int) -> str | None:
        return f"{row.tokens[0]}.{n} " if n < row.max_tokens else None

    def backend(self) -> FakeBackend:
        return FakeBackend(self)

    def codec(self) -> FakeCodec:
        return FakeCodec()

    def info(self) -> ModelInfo:
        return ModelInfo("fake", self.context_length, 256, "none", 0.0, 0, trims=self.trims)

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

    def open(self) -> ModelInfo:
        if self._engine.open_error is not None:
            raise self._engine.open_error
        self._engine.opened += 1
        return self._engine.info()

    def insert(self, request: RowRequest) -> None:
        self._engine.inserted.append(request.id)
        cached = 0 if request.prefix is None else request.prefix.length
        self._rows[request.id] = _Row(request, prefilled=cached, cached=cached)

    def cancel(self, row_id: str) -> None:
        if self._rows.pop(row_id, None) is not None:
            self._cancelled.append(row_id)

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._cancelled)

    @property
    def at_work(self) -> AtWork:
        return AtWork("step", frozenset(self._rows))

    def step(self) -> list[RowEvent]:
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
        for row in list(self._rows.values()):
            events.extend(self._advance(row))
        return events

    def _advance(self, row: _Row) -> list[RowEvent]:
        request, last = row.request, len(row.request.tokens) - 1
        if request.prefix is not None and not row.ready:
            state = request.prefix.checkpoint
            assert isinstance(state, FakeState)
            if (wrong := state.wrong()) is not None:
                del self._rows[request.id]
                return [Failed(request.id, "wrong_state", wrong)]
        if not row.ready:
            return self._prefill(row, last)
        piece = self._engine.reply(request, row.sent)
        if piece is None:
            del self._rows[request.id]
            reason = "length" if row.sent >= request.max_tokens else "stop"
            end = Finished(request.id, reason, "", last + 1, row.sent, 1.0, 1.0, cached_tokens=row.cached)
            fed = [*request.tokens, *range(1, row.sent)]
            return [*self._published(request, fed), end]
        row.sent += 1
        self._decoded += 1
        return [Delta(request.id, piece, (row.sent,))]

    def _prefill(self, row: _Row, last: int) -> list[RowEvent]:
        count = min(self._engine.prefill_tokens, last - row.prefilled)
        row.prefilled += count
        self._engine.prefilled += count
        if row.prefilled < last:
            return [Prefilled(row.request.id, row.prefilled, last + 1)]
        row.ready = True
        progress = Prefilled(row.request.id, last + 1, last + 1)
        if not count:
            return [progress]
        return [progress, *self._published(row.request, row.request.tokens[:-1], provisional=True)]

    def _published(
        self, request: RowRequest, tokens: Sequence[int], *, provisional: bool = False
    ) -> list[RowEvent]:
        if not request.publish:
            return []
        state = FakeState.of(TokenIds.of(tokens), self._engine.token_bytes, trims=self._engine.trims)
        return [Published(request.id, state, provisional)]

    def figures(self) -> LaneFigures:
        return LaneFigures(
            rows=len(self._rows), peak_rows=self._peak, steps=self._steps, decoded_tokens=self._decoded
        )

    def close(self) -> None:
        self._engine.closed += 1
