"""The kinds of trouble that a run may meet, and how their details are drawn. What they do: ``mishaps.py``."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

PHASES: Final = ("prefill", "join", "decode", "extract", "publish")
ERRNOS: Final = {
    "create": (errno.ENOSPC, errno.EIO, errno.EPERM),
    "write": (errno.ENOSPC, errno.EIO),
    "sync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.EPERM),
    "sync_folder": (errno.EIO,),
    "unlink": (errno.EPERM, errno.EBUSY, errno.EIO),
    "touch": (errno.EPERM, errno.EIO),
    "open": (errno.EMFILE, errno.EIO),
    "read": (errno.EIO,),
    "space": (errno.EIO,),
    "make_folder": (errno.ENOSPC, errno.EIO),
}
FAULTS: Final = tuple((kind, number) for kind, numbers in ERRNOS.items() for number in numbers)


@dataclass(frozen=True)
class Trouble:
    """Something that happens ``at_s`` seconds after the beginning."""

    name: str
    at_s: float
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Drawn:
    """How often a kind comes, and its details."""

    weight: float
    details: Callable[[Random], dict[str, Any]] = lambda _: {}

    def draw(self, name: str, at_s: float, chance: Random) -> Trouble:
        """Return one trouble of this kind."""
        return Trouble(name, at_s, self.details(chance))


def _fault(chance: Random) -> dict[str, Any]:
    kind, number = chance.choice(FAULTS)
    return {
        "kind": kind,
        "number": number,
        "often": chance.choice([0.3, 1.0]),
        "times": chance.choice([1, 3, None]),
        "for_s": chance.uniform(0.1, 5.0),
    }


TROUBLES: Final[dict[str, Drawn]] = {
    "crash": Drawn(10, lambda chance: {"place": chance.random()}),
    "crash_on": Drawn(10, lambda chance: {"place": chance.random(), "nth": chance.randint(1, 25)}),
    "storm": Drawn(
        1.5,
        lambda chance: {
            "place": chance.random(),
            "times": chance.randint(2, 14),
            "every_s": chance.choice([0.01, 0.3]),
        },
    ),
    "step_fault": Drawn(8, lambda chance: {"phase": chance.choice(PHASES), "nth": chance.randint(1, 12)}),
    "panic": Drawn(3, lambda chance: {"kind": chance.choice(["write", "read", "rename", "sync", "touch"])}),
    "disk_fault": Drawn(10, _fault),
    "full": Drawn(
        2, lambda chance: {"free": chance.choice([0, 50_000, 300_000]), "for_s": chance.uniform(0.1, 5.0)}
    ),
    "short": Drawn(
        2, lambda chance: {"write": chance.choice([None, 4096]), "read": chance.choice([None, 7000])}
    ),
    "slow": Drawn(
        3, lambda chance: {"mean_s": chance.choice([0.05, 2.0, 40.0]), "for_s": chance.uniform(0.1, 5.0)}
    ),
    "rot": Drawn(2, lambda chance: {"place": chance.random(), "at": chance.randint(0, 1 << 17)}),
    "clock": Drawn(3, lambda chance: {"by_s": chance.choice([-86_400.0, -3.0, 3600.0, 1e8])}),
    "clear": Drawn(
        3,
        lambda chance: {
            "tier": chance.choice(["ram", "ssd", "all", "all", "all"]),
            "op_s": chance.choice([None, 0.01, 0.05]),
        },
    ),
    "drain": Drawn(2),
    "flush": Drawn(6, lambda chance: {"timeout_s": chance.choice([0.0, 0.05, 5.0, 600.0])}),
    "close_session": Drawn(1, lambda chance: {"session": f"s{chance.randint(0, 4)}"}),
    "pressure": Drawn(
        2, lambda chance: {"excess": chance.choice([40_000, 1_000_000]), "for_s": chance.uniform(0.1, 2.0)}
    ),
    "stop": Drawn(2, lambda chance: {"timeout_s": chance.choice([0.05, 5.0, 120.0])}),
    "kill": Drawn(3),
    "power": Drawn(3, lambda chance: {"seed": chance.randint(0, 1 << 30)}),
    "plug": Drawn(3, lambda chance: {"operation": chance.randint(1, 60), "seed": chance.randint(0, 1 << 30)}),
}
