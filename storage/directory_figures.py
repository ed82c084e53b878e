"""What the SSD directory says about itself: after opening, and at any time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .entry import StoredEntry
    from .scan import Tally

Departure: TypeAlias = Literal["evicted", "quarantined", "missing", "cleared"]


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A durable entry has gone, and nothing else that is stored serves its tokens.

    Whoever holds a shorter prefix of them as durable because of it must ask ``covers`` again.
    """

    entry: StoredEntry
    why: Departure


@dataclass(frozen=True, slots=True)
class ForeignFolder:
    """Files in the root that belong to somebody else. ``differs``: fields of the identity, if it says any."""

    name: str
    tally: Tally
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What a start found, and what was found later. ``problems``: by code, files that cannot be used."""

    entries: int
    entry_bytes: int
    swept: int
    trimmed: int
    problems: Mapping[str, Tally] = field(default_factory=dict[str, "Tally"])
    foreign: tuple[ForeignFolder, ...] = ()
    failures: tuple[str, ...] = ()
    """What could not be done, and stops no start: a folder not listed, a description not written.

    ``CheckpointDirectory.recover`` tries it again.
    """

    @property
    def needs_attention(self) -> bool:
        """Whether one warning is due."""
        return bool(self.problems or self.failures or self.foreign)


@dataclass(frozen=True, slots=True)
class DirectoryFigures:
    """Present sizes, and counts since the start. ``total_bytes`` is what the cap is compared with.

    ``unrecovered``: failures of the last pass over the files, to be tried again. Where one was a folder's
    listing, its files are in no figure; those of a folder that was listed are ``unread_bytes``.
    """

    entries: int
    entry_bytes: int
    total_bytes: int
    max_bytes: int
    reserved_bytes: int
    foreign_bytes: int
    unread_bytes: int
    unrecovered: int
    outdated_files: int
    outdated_bytes: int
    quarantined: int
    quarantined_bytes: int
    stuck_bytes: int
    longest_tokens: int
    corrupt: int
    evictions: int
    superseded: int
    missing: int
    cleared: int
    unlink_failures: int
    touch_failures: int
    problems: Mapping[str, int] = field(default_factory=dict[str, int])
