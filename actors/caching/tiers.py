"""What residency is told, answers and relies on, as plain data and narrow ports.

The ports are the faces of ``archive.py``, ``reader.py`` and ``durability.py`` as far as residency uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from ...storage.restore_cost import RestoreCost
from ...storage.retention import LeastRecentlyUsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runtime.engine.checkpoint import Checkpoint
    from ...runtime.kernel import ActorRef
    from ...storage.entry import StoredEntry
    from ...storage.index import Match
    from ...storage.residence import Resident
    from ...storage.retention import Retention
    from ...storage.tokens import TokenIds
    from ..durability import DirtyCheckpoint
    from ..reader import Restored, RestoreJob

Tier: TypeAlias = Literal["none", "ram", "ssd"]
ClearTier: TypeAlias = Literal["ram", "ssd", "all"]
MissReason: TypeAlias = Literal[
    "cache_off",
    "too_short",
    "empty",
    "no_match",
    "untrimmable",
    "below_min_tokens",
    "below_restore_min",
    "restore_slower",
    "restore_failed",
    "lookup_failed",
    "busy",
    "no_room",
    "cleared",
    "borrower_gone",
]
"""Why a prompt was not served, or not served more:

``cache_off`` the RAM tier is disabled · ``too_short`` a prompt of one token has no prefix to lend · ``empty``
nothing is stored · ``no_match`` nothing stored begins like it · ``untrimmable`` what begins like it cannot be
shortened to the common part · ``below_min_tokens`` the match is shorter than cache.ram.min_tokens ·
``below_restore_min`` SSD would add fewer than cache.ssd.restore_min_tokens · ``restore_slower`` prefilling is
estimated to be faster than reading · ``restore_failed``, ``lookup_failed`` the SSD tier failed · ``busy`` too
many takes wait for it · ``no_room`` the read would take RAM above its hard ceiling · ``cleared`` the cache
was cleared meanwhile · ``borrower_gone`` the borrower ended.
"""


@dataclass(frozen=True, slots=True)
class ResidencyOptions:
    """Limits and policy of the RAM tier.

    Args:
        max_bytes: the target; 0 disables the tier. Soft with an SSD tier: what is not durable stays.
        hard_max_bytes: never passed, whatever is lost by it.
        min_tokens: shorter prefixes are neither kept nor lent, except for a session.
        restore_min_tokens: SSD must add at least so many tokens to what RAM has.
        demote_idle_s: entries unused for so long leave RAM once durable; 0 keeps them.
        pressure: the part of the engine's memory limit above which RAM entries are let go.
        max_sessions: how many session references are kept.
        lookups: how many takes may wait for the SSD tier at a time.
        restores: how many restores may run or wait for a reader at a time.
        find_timeout_s, restore_timeout_s, clear_timeout_s: deadlines of what is asked below.
        shun_s: for how long an entry is not tried again after its restore failed without harm to the file.
        retention: makes the order in which entries go.
    """

    max_bytes: int
    hard_max_bytes: int
    min_tokens: int = 1
    restore_min_tokens: int = 1
    demote_idle_s: float = 300.0
    pressure: float = 0.85
    max_sessions: int = 10_000
    lookups: int = 128
    restores: int = 32
    find_timeout_s: float = 2.0
    restore_timeout_s: float = 60.0
    clear_timeout_s: float = 60.0
    shun_s: float = 30.0
    retention: Callable[[], Retention[Resident[Checkpoint]]] = LeastRecentlyUsed

    def __post_init__(self) -> None:
        if not 0 <= self.max_bytes <= self.hard_max_bytes:
            raise ValueError(f"hard_max_bytes {self.hard_max_bytes} is below max_bytes {self.max_bytes}")

    @property
    def tick_s(self) -> float:
        """How often the idle are looked for: an entry leaves at most a quarter late."""
        return min(max(self.demote_idle_s / 4, 1.0), 30.0) if self.demote_idle_s else 30.0


@dataclass(slots=True)
class ResidencyCounts:
    """What happened since the process started, and what was learned. Outlives the actor's incarnations.

    ``versions`` numbers publications: a late answer for one of an earlier incarnation fits none of this one.
    """

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    evictions: int = 0
    demotions: int = 0
    lost: int = 0
    session_hits: int = 0
    restores: int = 0
    restore_failures: int = 0
    restored_bytes: int = 0
    restore_ms_last: float = 0.0
    versions: int = 0
    cost: RestoreCost = field(default_factory=RestoreCost)

    def next_version(self) -> int:
        """Return a number that was never returned before."""
        self.versions += 1
        return self.versions


@dataclass(frozen=True, slots=True)
class ResidencyFigures:
    """Entries, bytes, sessions, leases, restores in flight and dirty entries are now; the others are counts.

    ``hits``: takes that lent something, from either tier; ``hit_tokens`` of ``prompt_tokens`` were lent.
    ``evictions`` made room, ``demotions`` left RAM idle or drained, ``lost`` left it without being durable.
    ``withdrawn``: entries that were durable and are not any more, since their files have left the disk.
    """

    entries: int
    bytes: int
    max_bytes: int
    hits: int
    misses: int
    hit_tokens: int
    prompt_tokens: int
    evictions: int
    demotions: int
    lost: int
    sessions: int
    session_hits: int
    restores: int
    restore_failures: int
    restored_bytes: int
    restore_ms_last: float
    leases: int
    waiting: int
    restoring: int
    undurable: int
    undurable_bytes: int
    withdrawn: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The first ``length`` tokens of ``checkpoint`` are lent until ``release(id)``."""

    id: int
    checkpoint: Checkpoint
    length: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What a prompt got. ``tier`` is where it came from, ``length`` its tokens, 0 without a lease.

    ``restore_ms``: how long the read took that this waited for. ``miss_reason``: why it is nothing, or not as
    much as another tier holds. ``diverged_at``: how many tokens of the prompt anything known shares.
    """

    lease: Lease | None
    tier: Tier
    length: int
    restore_ms: float
    miss_reason: MissReason | None
    diverged_at: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a take of the same prompt would get now, and why not more. Nothing is lent or read for it.

    ``stored_tokens``: the length of the entry that would be lent, of which ``length`` fit. ``ram_tokens``,
    ``ssd_tokens``: what each tier could serve. ``diverged_at``: how many tokens anything known shares;
    the prompt is alone from there on. ``restore_ms``: how long reading SSD's match would take.
    """

    prompt_tokens: int
    tier: Tier
    length: int
    stored_tokens: int
    ram_tokens: int
    ssd_tokens: int
    diverged_at: int
    reason: MissReason | None
    restore_ms: float | None


@dataclass(frozen=True, slots=True)
class EntryFigures:
    """One RAM entry, without its token ids."""

    namespace: str
    tokens: int
    bytes: int
    trimmable: bool
    reusable_from: int
    durable: bool
    leases: int
    sessions: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class DrainReport:
    """``demoted`` entries left RAM; ``remaining`` could not: lent, not durable, or nowhere to go."""

    demoted: int
    remaining: int
    remaining_bytes: int


@dataclass(frozen=True, slots=True)
class ClearReport:
    """How many entries each tier let go."""

    ram: int
    ssd: int


@dataclass(frozen=True, slots=True)
class Sought:
    """What SSD has for a prompt. ``shared``: how many of its tokens any file begins with, usable or not."""

    match: Match[StoredEntry] | None = None
    shared: int = 0


NOTHING_SOUGHT: Final = Sought()
"""What is known of SSD where it could not be asked."""


class ArchivePort(Protocol):
    """The SSD tier's index and files."""

    async def find(self, tokens: TokenIds, namespace: str, longer_than: int, timeout_s: float, /) -> Sought:
        """Return the longest stored prefix of more than ``longer_than`` tokens. Raises AskError."""
        ...

    def touch(self, entry_id: str, /) -> object:
        """Note a use of a file; unknown ids are ignored."""
        ...

    def quarantine(self, entry_id: str, reason: str, /) -> object:
        """Set a bad file aside."""
        ...

    def forget(self, entry_id: str, /) -> object:
        """Take out an entry whose file is missing."""
        ...

    async def clear(self, timeout_s: float, /) -> int:
        """Remove all files of this identity; return how many. Raises AskError."""
        ...


class ReadersPort(Protocol):
    """The readers' pool."""

    async def restore(self, job: RestoreJob, timeout_s: float, /) -> Restored:
        """Read and verify a checkpoint. Raises AskError. Being cancelled gives the job up."""
        ...


class DurabilityPort(Protocol):
    """Who brings entries to disk. A tell that returns False was not taken."""

    @property
    def ref(self) -> ActorRef[Any]:
        """Its address, to watch."""
        ...

    def dirty(self, checkpoint: DirtyCheckpoint, /) -> object:
        """Announce a version that is not durable."""
        ...

    def urge(self, tokens: TokenIds, namespace: str, /) -> object:
        """Ask for an announced one to be written first."""
        ...

    def dropped(self, tokens: TokenIds, namespace: str, version: int, /) -> object:
        """Tell that a version was lost before it was durable."""
        ...

    def reset(self) -> object:
        """Forget everything that was announced."""
        ...
