"""The scripted engine of the simulation: its replies and its states follow from prompt and place alone."""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.engine.port import KvCost
from samovar.storage.tokens import TokenIds

from tests.cache.turns import Strand
from tests.kit.engine import FakeEngine
from tests.kit.states import FakeState

from .plan import POISON

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from samovar.runtime.engine.checkpoint import MemoryGauge
    from samovar.runtime.engine.port import Phase, RowRequest

    from tests.cache.turns import Turns

    from .plan import Plan, Shape

RING_TOKENS = 150
LATE_TOKENS = 60


class Planned(RuntimeError):
    """A fault of the plan."""


def token_of(prompt: int, place: int) -> int:
    """Return the token at a place of the reply to a prompt whose checksum is given."""
    return 33 + zlib.crc32(place.to_bytes(4, "little"), prompt) % 90


def ends(prompt: int, place: int, max_tokens: int) -> bool:
    """Whether the reply is over before a place."""
    return place >= max_tokens or (place > 0 and token_of(prompt, place) % 17 == 0)


def reply_to(prompt: str, max_tokens: int) -> str:
    """Return the whole reply: a character is a token."""
    checksum, made = zlib.crc32(prompt.encode()), ""
    while not ends(checksum, len(made), max_tokens):
        made += chr(token_of(checksum, len(made)))
    return made


def serves_from(kind: str, length: int) -> int:
    """Return the shortest prefix that a state of ``length`` tokens serves; its length if only itself."""
    match kind:
        case "plain":
            return 0
        case "ring":
            return 0 if length <= RING_TOKENS else length
        case "late":
            return min(length, LATE_TOKENS)
        case _:
            return length


class SimEngine(FakeEngine):
    """One process's engine. ``blamed``: the rows at work in each fault; ``excess``: bytes too many."""

    def __init__(self, plan: Plan, turns: Turns, chance: Random, heard: Callable[[str, bytes], None]) -> None:
        shape = plan.shape
        super().__init__(
            context_length=shape.context,
            token_bytes=shape.token_bytes,
            prefill_tokens=shape.prefill_tokens,
            trims=shape.kind == "plain",
            kv=KvCost(token_bytes=1.0 if shape.kv_rows else 0.0),
        )
        self.shape: Shape = shape
        self.poison = plan.poison
        self.faults: list[list[object]] = []
        self.blamed: list[frozenset[str]] = []
        self.excess = 0
        self._turns, self._chance, self._heard = turns, chance, heard
        self._checksums: dict[str, int] = {}

    def _checksum(self, row: RowRequest) -> int:
        known = self._checksums.get(row.id)
        if known is None:
            known = self._checksums[row.id] = zlib.crc32(bytes(TokenIds.of(row.tokens).tolist()))
        return known

    def token(self, row: RowRequest, n: int) -> int:
        return token_of(self._checksum(row), n)

    def reply(self, row: RowRequest, n: int) -> str | None:
        checksum = self._checksum(row)
        return None if ends(checksum, n, row.max_tokens) else chr(token_of(checksum, n))

    def state(self, row: RowRequest, tokens: Sequence[int]) -> FakeState:
        ids, length = TokenIds.of(tokens), len(tokens)
        lowest = serves_from(self.shape.kind, length)
        self._heard(row.namespace, ids.to_bytes())
        return FakeState.of(
            ids,
            self.token_bytes,
            trims=lowest < length,
            namespace=row.namespace,
            reusable_from=lowest,
        )

    def memory(self) -> MemoryGauge:
        """Return a gauge by which ``kv_rows`` of the longest rows fit, or that knows no limit."""
        limit = int(self.shape.kv_rows * self.shape.context / 0.85)
        return lambda: MemoryReading(850 + self.excess, 1000) if self.excess else MemoryReading(0, limit)

    # -- on the lanes' threads

    def pause(self) -> None:
        strand = threading.current_thread()
        assert isinstance(strand, Strand)
        self._turns.park(strand, None, self.shape.step_s * self._chance.uniform(0.5, 1.5))

    def fault(self, phase: Phase, rows: Sequence[RowRequest]) -> Exception | None:
        due = False
        for fault in self.faults:
            if fault[0] == phase:
                fault[1] -= 1  # type: ignore[operator]
                due = due or fault[1] == 0
        poisoned = phase == self.poison and any(row.tokens[0] == ord(POISON) for row in rows)
        if not (due or poisoned):
            return None
        self.blamed.append(frozenset(row.id for row in rows))
        return Planned(f"in {phase}")
