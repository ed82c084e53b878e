"""How much must go so that something fits: the cap of a root and the volume's free-space floor. Pure.

The cap is for the whole root. Files of other identities and unknown formats count towards it, since a user
who says 20 GiB means the folder; they are never deleted unasked. So what is left of the cap is this
identity's share, and when the others fill it alone nothing is written until they are removed on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .directory_errors import RoomReason
    from .filesystem import Space

DEFAULT_QUARANTINE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What a directory may take. ``max_bytes`` 0: no cap. ``free_floor``: share of the volume kept free.

    ``quarantine_max_bytes`` bounds the quarantine, which also takes at most a tenth of the cap.
    ``retry_s``: how long a file that could not be removed is left alone.
    """

    max_bytes: int
    free_floor: float = 0.05
    quarantine_max_bytes: int = DEFAULT_QUARANTINE_BYTES
    retry_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_bytes < 0 or not 0 <= self.free_floor < 1 or self.quarantine_max_bytes < 0:
            raise ValueError(f"impossible limits: {self}")

    @property
    def quarantine_bytes(self) -> int:
        """The effective bound of the quarantine."""
        share = self.max_bytes // 10 if self.max_bytes else self.quarantine_max_bytes
        return min(self.quarantine_max_bytes, share)


@dataclass(slots=True)
class Usage:
    """Bytes of a root by what they are. ``reserved_bytes`` are promised to writers, written or not.

    ``unread_bytes`` are of files that were listed and may be entries, and could not be taken up so far.
    """

    entry_bytes: int = 0
    outdated_bytes: int = 0
    quarantined_bytes: int = 0
    stuck_bytes: int = 0
    foreign_bytes: int = 0
    unread_bytes: int = 0
    reserved_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """What counts towards the cap."""
        left = self.stuck_bytes + self.foreign_bytes + self.unread_bytes
        return self.reclaimable_bytes + left + self.reserved_bytes

    @property
    def reclaimable_bytes(self) -> int:
        """What may be removed to make room."""
        return self.entry_bytes + self.outdated_bytes + self.quarantined_bytes


@dataclass(frozen=True, slots=True)
class Shortage:
    """``excess_bytes`` must go, because of ``reason``; nothing when it is 0."""

    excess_bytes: int
    reason: RoomReason


def shortage(limits: Limits, usage: Usage, space: Space | None, needed_bytes: int) -> Shortage:
    """Return what must go before ``needed_bytes`` more fit. ``space`` None: the volume's room is unknown."""
    over_cap = usage.total_bytes + needed_bytes - limits.max_bytes if limits.max_bytes else 0
    below_floor = 0
    if space is not None and needed_bytes:
        floor_bytes = int(limits.free_floor * space.total_bytes)
        below_floor = floor_bytes + needed_bytes + usage.reserved_bytes - space.free_bytes
    if below_floor > over_cap:
        return Shortage(max(0, below_floor), "floor" if limits.free_floor else "disk_full")
    return Shortage(max(0, over_cap), "cap")
