"""The configuration of prompt cache and checkpoints: ``[cache.ram]``, ``[cache.ssd]``, ``[checkpoint]``.

Part of ``schema.py``; the same units and rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .compounds import Either
from .declare import GIB, MIB, PATH_PATTERN, key
from .folders import kv_folder
from .kinds import Choice, Flag, Int, Text
from .quantities import Duration, Percent, Size


@dataclass(frozen=True, slots=True)
class Ram:
    """The prefix cache in memory."""

    max: int = key(Size(zero_means="no cache"), 8 * GIB, 'Target size; "0" switches the cache off.')
    hard_max: int | None = key(
        Either(Size(), "auto", "one and a half times max"),
        None,
        "Above this, entries go even if not yet on disk.",
    )
    pressure: float = key(
        Percent(least=0.1), 0.85, "Share of the device's memory at which the cache starts to give way."
    )
    min_tokens: int = key(Int(1, 2**24), 32, "Shortest prefix worth keeping.")
    retention: str = key(Choice(("lru", "cost-size")), "lru", "Which entry leaves first.")

    @property
    def hard_max_bytes(self) -> int:
        """The hard ceiling, with "auto" resolved."""
        return self.max + self.max // 2 if self.hard_max is None else self.hard_max


@dataclass(frozen=True, slots=True)
class Ssd:
    """The prefix cache on disk, which outlives a restart."""

    dir: str = key(
        Text('a folder without "$" or "file:", "auto" (the user\'s cache folder) or "off"', PATH_PATTERN),
        "auto",
        'A folder, "auto", or "off".',
    )
    max: int = key(Size(least=MIB), 20 * GIB, "Target size.")
    free_floor: float = key(Percent(most=0.9), 0.05, "Share of the file system that stays free.")
    demote_idle: float = key(
        Duration(zero_means="never"),
        300.0,
        "Entries idle for this long leave memory for the disk; 0 for never.",
    )
    verify: str = key(
        Choice(("fast", "full", "off")),
        "fast",
        "Check restored data: fast checksum, cryptographic hash, or not.",
    )
    write_behind: bool = key(
        Flag(), default=True, doc="Write what is published in the background; else at eviction and flush."
    )
    layout: str = key(Choice(("whole", "blocks", "delta")), "whole", "How a checkpoint lies on disk.")
    writers: int = key(Int(1, 64), 2, "Threads that write.")
    readers: int = key(Int(1, 64), 2, "Threads that restore.")
    restore_min_tokens: int = key(Int(1, 2**24), 32, "Shortest prefix worth a restore.")

    @property
    def enabled(self) -> bool:
        """Whether there is a disk cache."""
        return self.dir != "off"

    def folder(self) -> Path | None:
        """Return the folder, absolute, ``~`` and "auto" resolved, or None when off.

        Raises RuntimeError for the home of a user that does not exist.
        """
        if not self.enabled:
            return None
        return kv_folder() if self.dir == "auto" else Path(self.dir).expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Cache:
    """The prompt cache, in two tiers."""

    ram: Ram = field(default_factory=Ram)
    ssd: Ssd = field(default_factory=Ssd)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Checkpoints of replies in the making, so that a crash does not lose them."""

    interval_tokens: int = key(Int(0, 2**24), 0, "Tokens between two checkpoints of a reply; 0 for none.")
    queue: int = key(Size(least=MIB), 2 * GIB, "Bytes of checkpoints that may wait for the disk.")
