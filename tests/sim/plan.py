"""What one seed means: sizes, clients with their conversations, and troubles. Plain data, drawn beforehand.

Nothing here depends on what happens in the run, so leaving out a client or a trouble leaves the others as
they are: that is how a failing seed is made smaller.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Literal, TypeAlias

from .troubles import TROUBLES, Trouble

Kind: TypeAlias = Literal["plain", "ring", "state", "late"]

SYSTEMS: Final = (
    "",
    "You are a samovar. Keep the water hot. " * 3,
    "Answer in few words, and never about tea. " * 5,
)
SALTS: Final = (None, None, None, "salt-a", "salt-b")
GROUPS: Final = {"small": (1, 5), "middle": (10, 30), "large": (60, 110), "huge": (200, 320)}
"""How many clients a run has."""
POISON: Final = "!"
"""A prompt that begins like this crashes whichever lane decodes it."""


@dataclass(frozen=True)
class Turn:
    """One thing that a client wants to know, and how it behaves meanwhile.

    ``think_s`` before it; ``read_s`` between two looks at the stream; it goes after ``leaves_s`` seconds or
    ``leaves_at`` tokens. ``again``: the very same request is sent a second time.
    """

    text: str
    max_tokens: int
    think_s: float
    read_s: float = 0.0
    leaves_s: float | None = None
    leaves_at: int | None = None
    again: bool = False


@dataclass(frozen=True)
class Client:
    """Somebody with one conversation."""

    name: str
    comes_s: float
    system: str
    salt: str | None
    session: str | None
    tier: Literal["default", "priority", "flex"]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Shape:
    """The sizes of the server."""

    kind: Kind
    lanes: int
    batch: int
    queue: int
    context: int
    token_bytes: int
    kv_rows: float
    prefill_tokens: int
    ram_bytes: int
    hard_bytes: int
    ssd: bool
    ssd_bytes: int
    min_tokens: int
    writers: int
    readers: int
    write_behind: bool
    demote_idle_s: float
    verify: Literal["fast", "full", "off"]
    step_s: float
    op_s: float
    handing_off: bool


@dataclass(frozen=True)
class Plan:
    """A run. ``ends``: how the last process but one ends."""

    seed: int
    shape: Shape
    clients: tuple[Client, ...]
    troubles: tuple[Trouble, ...]
    lasts_s: float
    ends: Literal["stop", "kill", "power"]
    poison: str | None = field(default=None)

    def without(self, clients: frozenset[int] = frozenset(), troubles: frozenset[int] = frozenset()) -> Plan:
        """Return the plan without some of its clients and troubles."""
        return replace(
            self,
            clients=tuple(one for n, one in enumerate(self.clients) if n not in clients),
            troubles=tuple(one for n, one in enumerate(self.troubles) if n not in troubles),
        )


def draw(seed: int, group: str | None = None) -> Plan:
    """Return the plan of a seed."""
    chance = Random(seed)
    group = group or chance.choices(list(GROUPS), [80, 17, 3, 0.3])[0]
    count = chance.randint(*GROUPS[group])
    lasts_s = chance.choice([0.5, 2.0, 8.0, 30.0])
    poison = chance.choice(["prefill", "decode"]) if chance.random() < 0.15 else None
    shape = _shape(chance, count)
    clients = [_client(chance, n, lasts_s, poisonous=poison is not None and n == 1) for n in range(count)]
    many = chance.choices([0, 1, 3, 6, 12, 25], [5, 20, 30, 25, 15, 5])[0]
    troubles = [_trouble(chance, lasts_s) for _ in range(many)]
    ends: list[Literal["stop", "kill", "power"]] = ["stop", "kill", "power"]
    return Plan(
        seed,
        shape,
        tuple(clients),
        tuple(sorted(troubles, key=lambda one: one.at_s)),
        lasts_s,
        chance.choice(ends),
        poison,
    )


def _trouble(chance: Random, lasts_s: float) -> Trouble:
    (name,) = chance.choices(list(TROUBLES), [each.weight for each in TROUBLES.values()])
    return TROUBLES[name].draw(name, chance.uniform(0.0, lasts_s), chance)


def _shape(chance: Random, clients: int) -> Shape:
    token_bytes = chance.choice([64, 200, 400])
    ram = chance.choice([150_000, 400_000, 4_000_000])
    lanes = chance.choice([1, 1, 2, 3])
    return Shape(
        kind=chance.choice(["plain", "plain", "plain", "ring", "state", "late"]),
        lanes=lanes,
        batch=chance.choice([1, 3, 8]),
        queue=chance.choice([2, 8, max(8, clients)]),
        context=chance.choice([350, 2000, 2000]),
        token_bytes=token_bytes,
        kv_rows=chance.choice([0.0, 0.0, 2.5]),
        prefill_tokens=chance.choice([40, 200, 5000]),
        ram_bytes=ram,
        hard_bytes=int(ram * chance.choice([1.0, 1.5, 4.0])),
        ssd=chance.random() < 0.9,
        ssd_bytes=chance.choice([1 << 20, 2 << 20, 1 << 30]),
        min_tokens=chance.choice([1, 8, 32]),
        writers=chance.choice([1, 2, 3]),
        readers=chance.choice([1, 2]),
        write_behind=chance.random() < 0.8,
        demote_idle_s=chance.choice([0.0, 2.0, 300.0]),
        verify=chance.choice(["fast", "fast", "full"]),
        step_s=chance.choice([0.001, 0.01, 0.05]),
        op_s=chance.choice([0.0, 0.0002, 0.005]),
        handing_off=chance.random() < 0.7,
    )


def _client(chance: Random, number: int, lasts_s: float, *, poisonous: bool) -> Client:
    burst = chance.random() < 0.5
    return Client(
        name=f"c{number}",
        comes_s=chance.choice([0.0, 0.1 * lasts_s]) if burst else chance.uniform(0.0, lasts_s),
        system=(POISON if poisonous else "") + chance.choice(SYSTEMS),
        salt=chance.choice(SALTS),
        session=chance.choice([None, None, f"s{number % 5}"]),
        tier=chance.choice(["default", "default", "default", "priority", "flex"]),
        turns=tuple(_turn(chance, lasts_s) for _ in range(chance.choice([1, 2, 3, 5]))),
    )


def _turn(chance: Random, lasts_s: float) -> Turn:
    leaving = chance.random()
    return Turn(
        text=chance.choice("abcde") * chance.choice([1, 5, 30, 120]) + chance.choice("xyz?"),
        max_tokens=chance.choice([1, 4, 12, 24]),
        think_s=chance.choice([0.0, 0.01, chance.uniform(0.0, 0.2 * lasts_s)]),
        read_s=chance.choice([0.0, 0.0, 0.0, 0.1, 1.0]),
        leaves_s=chance.uniform(0.0, 0.5) if leaving < 0.08 else None,
        leaves_at=chance.randint(0, 10) if 0.08 <= leaving < 0.16 else None,
        again=chance.random() < 0.15,
    )
