"""What is said about checkpoints that are not on disk yet. ``flushing.py`` keeps the records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from .tokens import TokenIds

P = TypeVar("P")

FailureKind: TypeAlias = Literal["disk", "crash", "room", "refused"]
"""``disk``: it failed or is full. ``crash``: the writer itself failed. ``room``: none for this one now.

``refused``: this one can never be stored. The last two say nothing about the disk.
"""
Key: TypeAlias = "tuple[str, TokenIds]"

CRASH_LIMIT = 2
"""Crashes of writers after which a record is parked: one that crashes every writer must not end them all."""


@dataclass(frozen=True, slots=True)
class DirtyLimits:
    """``writers``: attempts at a time. ``write_behind`` off: only urgent records and flushes write.

    ``lost``: how many lost prefixes are remembered one by one; further ones are only counted.
    """

    writers: int
    write_behind: bool = True
    lost: int = 1024


@dataclass(frozen=True, slots=True)
class Dirty(Generic[P]):
    """One version of one checkpoint. ``payload`` is what its writer needs; it is let go as soon as may be.

    ``reusable_from`` is the shortest prefix that it can serve: its own length if it cannot be trimmed.
    """

    namespace: str
    tokens: TokenIds
    trimmable: bool
    reusable_from: int
    nbytes: int
    version: int
    payload: P
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """Names one version of one checkpoint."""

    namespace: str
    tokens: TokenIds
    version: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Records now, and what the present flush has done. ``failed``: tried by it and still dirty.

    ``missing``: lost and not covered; ``dropped``: those of them that were lost during this flush.
    """

    pending: int
    pending_bytes: int
    queued: int
    writing: int
    missing: int
    flushed: int = 0
    failed: int = 0
    dropped: int = 0

    @property
    def clean(self) -> bool:
        """Whether everything that was announced and not superseded is durable or covered."""
        return not self.pending and not self.missing


@dataclass(slots=True)
class Rider(Generic[P]):
    """A checkpoint that its host will cover. Without ``item`` it is no entry of the cache any more."""

    version: int
    item: Dirty[P] | None
    dropped: bool = False


@dataclass(slots=True, eq=False)
class Record(Generic[P]):
    """A version in hand. ``run``: the flush that tried it last. ``ticket``: its place in the queue, 0: none.

    What an index sees of it never changes.
    """

    namespace: str
    tokens: TokenIds
    trimmable: bool
    reusable_from: int
    item: Dirty[P]
    urgent: bool
    riders: dict[int, Rider[P]] = field(default_factory=dict[int, "Rider[P]"])
    live: bool = False
    dropped: bool = False
    parked: bool = False
    failures: int = 0
    crashes: int = 0
    retry_at_s: float = 0.0
    run: int = 0
    ticket: int = 0

    @property
    def key(self) -> Key:
        """What there is one record of."""
        return (self.namespace, self.tokens)

    @property
    def hopeful(self) -> bool:
        """Whether nothing says yet that it might not get written: only then do others rely on it."""
        return not self.failures and not self.parked

    def serves(self, length: int) -> bool:
        """Whether its first ``length`` tokens can be served from it."""
        return length == len(self.tokens) or (
            self.trimmable and self.reusable_from <= length < len(self.tokens)
        )

    def note_failure(self, kind: FailureKind) -> None:
        """Count a failed attempt."""
        self.failures += 1
        self.crashes += kind == "crash"
        self.parked = kind == "refused" or self.crashes >= CRASH_LIMIT


@dataclass(frozen=True, slots=True)
class Attempt(Generic[P]):
    """A write to be made now; it ends as ``succeeded`` or ``failed``. ``run``: the flush that forces it."""

    item: Dirty[P]
    record: Record[P] = field(repr=False)
    epoch: int
    run: int


def record_of(item: Dirty[P]) -> Record[P]:
    """Return a fresh record."""
    return Record(item.namespace, item.tokens, item.trimmable, item.reusable_from, item, item.urgent)
