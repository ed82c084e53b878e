"""What the administration of the cache needs of the rest of Samovar, and the values that pass.

Apart from ``Serving``, since a server without a cache has none of it. Nothing here carries prompt text or
token ids. Everything is called on the event loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from ...actors.caching.tiers import ClearReport, DrainReport
    from ...actors.requests import GenerationRequest, Refused
    from ...actors.spilling.spill_reports import FlushReport

Tier: TypeAlias = Literal["ram", "ssd"]
TierChoice: TypeAlias = Literal["ram", "ssd", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One checkpoint in one tier.

    ``tokens`` is how many tokens it covers, ``reusable_from`` the shortest prefix that it can serve.
    ``idle_s``: seconds since it was last used. ``sessions``: how many sessions refer to it, ``leases``: how
    many requests use it now; None where that is not known.
    """

    tier: Tier
    namespace: str
    tokens: int
    bytes: int
    durable: bool
    trimmable: bool
    reusable_from: int
    idle_s: float
    sessions: int | None = None
    leases: int | None = None


@dataclass(frozen=True, slots=True)
class CachePage:
    """Some of ``total`` entries, most recently used first. ``bytes``: of all of them."""

    entries: tuple[CacheEntry, ...]
    total: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheExplanation:
    """What a request would reuse if it came now. Nothing is lent, read or generated for it.

    ``cached_tokens`` of ``prompt_tokens`` would come from ``tier``, where they are part of an entry of
    ``stored_tokens``. ``ram_tokens``, ``ssd_tokens``: what each tier could serve. ``diverged_at``: how many
    tokens of the prompt anything stored shares. ``boundary``: how many the next turn will render again.
    ``reason``: why it is not more, as ``miss_reason`` in usage. Times are estimates of reading and of
    prefilling what SSD would add; None when unknown.
    """

    prompt_tokens: int
    tier: Literal["none", "ram", "ssd"]
    cached_tokens: int
    ram_tokens: int
    ssd_tokens: int
    stored_tokens: int
    diverged_at: int
    boundary: int
    reason: str | None
    restore_ms: float | None = None
    prefill_ms: float | None = None


class CacheServing(Protocol):
    """The cache of both tiers. Methods that wait raise an AskError: a retryable one becomes 503."""

    async def flush(self, timeout_s: float) -> FlushReport:
        """Bring everything published so far to disk. Never raises for a slow or failing disk, but reports."""
        ...

    async def cache_page(self, tier: TierChoice, offset: int, limit: int) -> CachePage:
        """Return ``limit`` entries from ``offset`` on."""
        ...

    async def clear_cache(self, tier: TierChoice) -> ClearReport:
        """Let every entry of a tier go; requests that run keep what they have. SSD: of this model only."""
        ...

    async def explain(self, request: GenerationRequest) -> CacheExplanation | Refused:
        """Return what ``request`` would reuse; Refused where its prompt cannot be made."""
        ...

    async def drain_cache(self, timeout_s: float) -> DrainReport:
        """Demote everything that is or becomes durable and free its RAM. Without SSD nothing leaves."""
        ...

    async def close_session(self, session_id: str) -> bool:
        """Forget a session; its entries stay, no longer preferred. False when there is no such session."""
        ...
