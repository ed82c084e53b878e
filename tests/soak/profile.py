"""What is served and how much of everything there is: small enough that both tiers are always full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import tiny_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MIB = 1 << 20
SETTINGS = (
    "server.port=0",
    "server.fault_injection=true",
    "logging.format=json",
    "cache.ssd.free_floor=0%",
    "cache.ssd.restore_min_tokens=1",
)


@dataclass(frozen=True)
class Profile:
    """A model and its load. ``bounds``: what may grow over two thirds of a life (RSS in bytes)."""

    name: str
    ram_mib: int
    ssd_mib: int
    max_tokens: tuple[int, int]
    turn_words: tuple[int, int]
    system_words: int
    bounds: Mapping[str, float]

    def model(self, folder: Path) -> str:
        """Return what to serve."""
        return str(tiny_model.write(folder / "model")) if self.name == "tiny" else "smollm2"

    @property
    def ssd_bytes(self) -> int:
        return self.ssd_mib * MIB

    def settings(self, root: Path) -> list[str]:
        own = (
            f"cache.ram.max={self.ram_mib}MiB",
            f"cache.ssd.max={self.ssd_mib}MiB",
            f"cache.ssd.dir={root}",
        )
        return [*SETTINGS, *own]


def profile(name: str) -> Profile:
    """Return the load for ``tiny`` or the default model. KeyError for another."""
    return PROFILES[name]


PROFILES = {
    "tiny": Profile(
        "tiny",
        ram_mib=3,
        ssd_mib=8,
        max_tokens=(16, 32),
        turn_words=(3, 30),
        system_words=50,
        bounds={"rss_bytes": 32.0 * MIB, "descriptors": 3.0, "threads": 2.0},
    ),
    "smollm2": Profile(
        "smollm2",
        ram_mib=96,
        ssd_mib=384,
        max_tokens=(16, 24),
        turn_words=(5, 40),
        system_words=60,
        bounds={"rss_bytes": 96.0 * MIB, "descriptors": 3.0, "threads": 2.0},
    ),
}
