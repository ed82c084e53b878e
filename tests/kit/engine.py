"""A scripted engine: the real lane, scheduler and HTTP layers run over it without MLX or a model."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samovar.runtime.engine.errors import TemplateError
from samovar.runtime.engine.port import (
    Cancelled,
    Delta,
    Finished,
    LaneFigures,
    ModelInfo,
    Prefilled,
    RenderedPrompt,
    RowEvent,
    RowRequest,
)
from samovar.storage.tokens import TokenIds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEP_LIMIT_S = 10.0


@dataclass
class _Row:
    request: RowRequest
    sent: int = 0
    prefilled: bool = False


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
        return RenderedPrompt(TokenIds.of(self.encode(text)))

    def encode(self, text: str) -> Sequence[int]:
        return [ord(character) % 256 for character in text]

    def remember(self, tokens: TokenIds) -> None:
        """Nothing to keep: here every text has one encoding."""

    def detokenizer(self) -> FakeDetokenizer:
        return FakeDetokenizer()


@dataclass
class FakeEngine:
    """What its backends do. ``reply(row, n)`` gives the n-th piece of a row's text, None at its end.

    While ``gate`` is set, every step takes one permit: ``allow(n)`` lets n steps happen. ``crash`` makes
    the next step of whichever backend raise it. Everything may be called from any thread.
    """

    context_length: int = 1000
    gated: bool = False
    open_error: Exception | None = None
    crash: Exception | None = None
    step_s: float = 0.0
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
        return ModelInfo("fake", self.context_length, 256, "none", 0.0, 0)


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
        self._rows[request.id] = _Row(request)

    def cancel(self, row_id: str) -> None:
        if self._rows.pop(row_id, None) is not None:
            self._cancelled.append(row_id)

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._cancelled)

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
        request = row.request
        if not row.prefilled:
            row.prefilled = True
            return [Prefilled(request.id, len(request.tokens), len(request.tokens))]
        piece = self._engine.reply(request, row.sent)
        if piece is None:
            del self._rows[request.id]
            reason = "length" if row.sent >= request.max_tokens else "stop"
            return [Finished(request.id, reason, "", len(request.tokens), row.sent, 1.0, 1.0)]
        row.sent += 1
        self._decoded += 1
        return [Delta(request.id, piece, (row.sent,))]

    def figures(self) -> LaneFigures:
        return LaneFigures(
            rows=len(self._rows), peak_rows=self._peak, steps=self._steps, decoded_tokens=self._decoded
        )

    def close(self) -> None:
        self._engine.closed += 1
