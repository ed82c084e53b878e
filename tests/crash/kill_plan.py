"""How lives end, drawn from a seed: every kind of file operation, and every moment of a life, in turn."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

LIVES = 5
"""How many lives are killed on one directory."""

Moment: TypeAlias = Literal["point", "start", "restore", "any", "response", "flush", "shutdown", "sigterm"]

_STARTING = {
    "create": (1, 1),
    "write": (1, 2),
    "sync": (1, 1),
    "rename": (1, 1),
    "sync_folder": (1, 5),
    "unlink": (1, 1),
    "touch": (1, 1),
    "list": (1, 6),
    "open": (1, 6),
    "read": (1, 10),
}
"""Numbers of operations, counted from the start on: most of them are in its recovery."""
_SERVING = {
    "create": (1, 12),
    "write": (1, 40),
    "sync": (1, 12),
    "rename": (1, 12),
    "sync_folder": (1, 12),
    "unlink": (1, 4),
    "touch": (1, 6),
    "open": (1, 8),
    "read": (1, 12),
}
"""Numbers of operations, counted from the first chat on."""
_ONLY_AT_START = frozenset({"list"})
_RARE_AT_START = frozenset({"create", "write", "sync", "rename", "touch"})
"""At a start only the first one on a directory does these: it writes who it is."""


@dataclass(frozen=True)
class Ending:
    """``order`` is the server's kill point; ``delay_s``: how long after ``moment`` began it is killed."""

    moment: Moment
    order: str = ""
    delay_s: float = 0.0

    @property
    def name(self) -> str:
        """The point without its number: what the summary counts by."""
        if self.moment != "point":
            return self.moment
        phase, place = self.order.split("/")
        kind, _, when = place.split(":")
        return f"{phase} {kind} {when}"


def endings(seed: int, world: int) -> list[Ending]:
    """Return how the lives of a world end: killed LIVES times, and once of its own accord."""
    first = world * LIVES
    chosen = list(itertools.islice(_deck(random.Random(f"deck {seed}")), first, first + LIVES))
    chance = random.Random(f"world {seed} {world}")
    chosen.insert(chance.randint(0, LIVES), Ending("sigterm"))
    return chosen


def _deck(chance: random.Random) -> Iterator[Ending]:
    """Deal rounds of 20 kills: each kind of operation, writes in three ways, each moment."""
    while True:
        dealt = [_point(chance, kind, _when(chance)) for kind in (*_SERVING, "list") if kind != "write"]
        dealt += [_point(chance, "write", when) for when in ("before", "torn", "after")]
        dealt += [
            Ending("start", delay_s=chance.uniform(0.0, 0.15)),
            Ending("restore", delay_s=chance.uniform(0.0, 0.03)),
            Ending("any", delay_s=chance.uniform(0.0, 0.5)),
            Ending("any", delay_s=chance.uniform(0.0, 0.1)),
            Ending("response"),
            Ending("flush", delay_s=chance.uniform(0.0, 0.02)),
            Ending("flush", delay_s=chance.uniform(0.0, 0.005)),
            Ending("shutdown", delay_s=chance.uniform(0.0, 0.04)),
        ]
        chance.shuffle(dealt)
        yield from dealt


def _point(chance: random.Random, kind: str, when: str) -> Ending:
    at_start = kind in _ONLY_AT_START or chance.random() < (0.1 if kind in _RARE_AT_START else 0.4)
    phase, numbers = ("start", _STARTING) if at_start else ("serving", _SERVING)
    return Ending("point", f"{phase}/{kind}:{chance.randint(*numbers[kind])}:{when}")


def _when(chance: random.Random) -> str:
    return chance.choice(("before", "after"))
