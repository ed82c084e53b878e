"""The HTTP benchmark over the real actor tree: ``--serving benchmarks.http_tree:over_tree``.

Scheduler, lane actor, lane thread and streams are the real ones; only the backend is scripted. It gives
every row one token a step, at a fixed rate or, for "max", in steps of a millisecond and at most 40,000
tokens a second in all: a thread of Python that never pauses would only measure the fight for the interpreter.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from samovar.runtime.app import build_tree
from samovar.runtime.config import load
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.engine.port import (
    AtWork,
    Cancelled,
    Delta,
    Finished,
    LaneFigures,
    ModelInfo,
    Prefilled,
    RowEvent,
    RowRequest,
)
from samovar.runtime.engine.prompt import RenderedPrompt
from samovar.runtime.kernel import ActorSystem, SupervisorSpec
from samovar.storage.fs import OsFilesystem
from samovar.storage.tokens import TokenIds

from .http_server import INFO, WORDS, NoLog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from samovar.runtime.engine.checkpoint import MemoryGauge
    from samovar.runtime.serving import TreeServing

ROWS = 1024
MOST_TOKENS_PER_S = 40_000.0
NO_CACHE = ("cache.ram.max=0", "cache.ssd.dir=off")


class SilentCodec:
    """Renders every conversation to one token."""

    def render(self, prompt: object, constraint: object = None) -> RenderedPrompt:  # noqa: ARG002
        """Return one token."""
        return RenderedPrompt(TokenIds.of((1,)))


class PacedBackend:
    """A LaneBackend: one word per row and step."""

    def __init__(self, steps_per_s: float) -> None:
        self._steps_per_s = steps_per_s
        self._due_s = 0.0
        self._rows: dict[str, list[int]] = {}
        self._gone: list[RowEvent] = []
        self.tokens = 0

    def open(self) -> ModelInfo:
        """Return the model."""
        return INFO

    def insert(self, request: RowRequest) -> None:
        """Start a row at once."""
        self._rows[request.id] = [0, request.max_tokens]
        self._gone.append(Prefilled(request.id, 1, 1))

    def cancel(self, row_id: str) -> None:
        """Drop a row."""
        if self._rows.pop(row_id, None) is not None:
            self._gone.append(Cancelled(row_id))

    @property
    def busy(self) -> bool:
        """Whether there is a row."""
        return bool(self._rows or self._gone)

    @property
    def at_work(self) -> AtWork:
        """All rows."""
        return AtWork("step", frozenset(self._rows))

    def step(self) -> list[RowEvent]:
        """Wait for the step's time and give every row its word."""
        now_s = time.monotonic()
        if self._due_s > now_s:
            time.sleep(self._due_s - now_s)
        pause_s = (
            1.0 / self._steps_per_s if self._steps_per_s else max(0.001, len(self._rows) / MOST_TOKENS_PER_S)
        )
        self._due_s = max(self._due_s, now_s - pause_s) + pause_s
        events, self._gone = self._gone, []
        for row_id, row in list(self._rows.items()):
            word = WORDS[row[0] % len(WORDS)]
            row[0] += 1
            events.append(Delta(row_id, word, (row[0],)))
            self.tokens += 1
            if row[0] >= row[1]:
                del self._rows[row_id]
                events.append(Finished(row_id, "length", "", 1, row[0], 0.0, 0.0))
        return events

    def figures(self) -> LaneFigures:
        """Return what is known."""
        return LaneFigures(rows=len(self._rows), decoded_tokens=self.tokens)

    def close(self) -> None:
        """Drop everything."""
        self._rows.clear()


class PacedEngine:
    """The engine of the tree: one backend, no text side."""

    def __init__(self, steps_per_s: float) -> None:
        self.made = PacedBackend(steps_per_s)

    def backend(self) -> PacedBackend:
        """Return the backend."""
        return self.made

    def codec(self) -> SilentCodec:
        """Return the codec."""
        return SilentCodec()

    def info(self) -> ModelInfo:
        """Return the model."""
        return INFO

    def memory(self) -> MemoryGauge:
        """Return a gauge of nothing."""
        return lambda: MemoryReading(0, 0)


class CountedServing:
    """The tree's serving, with the token count that the benchmark reads."""

    def __init__(self, serving: TreeServing, engine: PacedEngine) -> None:
        self._serving = serving
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._serving, name)

    async def stats(self) -> Mapping[str, object]:
        """Return the tokens decoded so far."""
        return {"tokens": self._engine.made.tokens}


@asynccontextmanager
async def over_tree(steps_per_s: float) -> AsyncGenerator[CountedServing]:
    """Run the tree without its HTTP actor, whose place the benchmark takes."""
    settings = [f"lanes.batch={ROWS}", "lanes.max_tokens=10000000", *NO_CACHE]
    engine = PacedEngine(steps_per_s)
    tree = build_tree(load([], {}, settings, []).config, engine, NoLog(), OsFilesystem())
    system = ActorSystem(
        SupervisorSpec("root", [child for child in tree.root.children if child.id != "http"])
    )
    tree.serving.system = system
    await system.start()
    try:
        yield CountedServing(tree.serving, engine)
    finally:
        await system.stop()
        tree.close()
