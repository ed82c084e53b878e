"""The real engine over a tiny model, failing by plan: at the n-th time that a lane comes to a phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from samovar.runtime.engine.batching.backend import MlxBackend
from samovar.runtime.engine.batching.suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samovar.runtime.engine.batching.rows import Row
    from samovar.runtime.engine.port import Phase

    from tests.kit.tiny import TinyEngine


class DeviceLost(RuntimeError):
    """What a planned fault raises."""


@dataclass
class Fault:
    """The ``nth`` time from now that a lane comes to ``phase`` with rows, it fails."""

    phase: Phase
    nth: int = 1


@dataclass
class FaultyEngine:
    """``app.Engine`` over ``engine``. ``faults`` may be added at any time; ``struck`` are those that came."""

    engine: TinyEngine
    faults: list[Fault] = field(default_factory=list)
    struck: list[tuple[Phase, frozenset[str]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def backend(self) -> MlxBackend:
        return _FaultyBackend(self)

    def came_to(self, phase: Phase, rows: tuple[Row, ...]) -> None:
        """Raise if it is time (on a lane's thread)."""
        for fault in [fault for fault in self.faults if fault.phase == phase]:
            fault.nth -= 1
            if fault.nth == 0:
                self.faults.remove(fault)
                self.struck.append((phase, frozenset(row.id for row in rows)))
                raise DeviceLost(f"in {phase}")


class _FaultyBackend(MlxBackend):
    def __init__(self, faulty: FaultyEngine) -> None:
        loaded = faulty.engine.backend()
        super().__init__(loaded._handle, loaded._options)
        self._suspects = _FaultySuspects(faulty)


class _FaultySuspects(Suspects):
    """Where a backend says what it begins, the plan says whether that fails."""

    def __init__(self, faulty: FaultyEngine) -> None:
        super().__init__()
        self._faulty = faulty

    def note(self, phase: Phase, rows: Iterable[Row]) -> None:
        super().note(phase, rows)
        if self._rows:
            self._faulty.came_to(phase, self._rows)
