"""The scripted engine as chaos runs need it: faults by plan, threads in turns, replies known beforehand."""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cache.turns import Strand
from tests.kit.engine import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samovar.runtime.engine.port import Phase, RowRequest

    from tests.cache.turns import Turns

PHASES: tuple[Phase, ...] = ("prefill", "join", "decode", "extract", "publish")
POISON = "!"


class Planned(RuntimeError):
    """A fault of the plan."""


@dataclass
class StepFault:
    """The ``nth`` time from now that any lane comes to ``phase``, it fails."""

    phase: Phase
    nth: int


class ChaosEngine(FakeEngine):
    """Its replies follow from prompt and place alone. ``blamed``: who was at work in each crash of a step."""

    turns: Turns
    pace: Callable[[], float]
    faults: list[StepFault]
    poison_phase: Phase | None
    blamed: list[frozenset[str]]

    def plan(
        self, turns: Turns, pace: Callable[[], float], faults: list[StepFault], poison: Phase | None
    ) -> None:
        self.turns, self.pace, self.faults, self.poison_phase = turns, pace, faults, poison
        self.blamed = []

    def token(self, row: RowRequest, n: int) -> int:
        return zlib.crc32(bytes([*row.tokens, n % 256])) % 251

    def reply(self, row: RowRequest, n: int) -> str | None:
        """Half of the rows end by themselves somewhere."""
        ends = n > 0 and self.token(row, n) % 29 == 0
        return None if ends or n >= row.max_tokens else f"{self.token(row, n)} "

    def whole(self, row: RowRequest) -> tuple[str, tuple[int, ...]]:
        """Return the text and the tokens of a row's whole reply."""
        pieces: list[str] = []
        while (piece := self.reply(row, len(pieces))) is not None:
            pieces.append(piece)
        return "".join(pieces), tuple(self.token(row, n) for n in range(len(pieces)))

    def pause(self) -> None:
        strand = threading.current_thread()
        assert isinstance(strand, Strand)
        self.turns.park(strand, None, self.pace())

    def fault(self, phase: Phase, rows: Sequence[RowRequest]) -> Exception | None:
        due = False
        for fault in self.faults:
            if fault.phase == phase:
                fault.nth -= 1
                due = due or fault.nth == 0
        poisoned = phase == self.poison_phase and any(row.tokens[0] == ord(POISON) for row in rows)
        if not (due or poisoned):
            return None
        self.blamed.append(frozenset(row.id for row in rows))
        return Planned(f"in {phase}")
