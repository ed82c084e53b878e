"""A page of the cache's entries from what the tiers tell of theirs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .cache_serving import CacheEntry, CachePage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...actors.caching.tiers import EntryFigures
    from ...storage.entry import StoredEntry
    from .cache_serving import TierChoice


def page_of(
    ram: Sequence[EntryFigures],
    ssd: Sequence[StoredEntry],
    tier: TierChoice,
    *,
    offset: int,
    limit: int,
    now_s: float,
) -> CachePage:
    """Return entries ``offset`` to ``offset + limit`` of the chosen tiers, most recently used first.

    ``now_s`` is Unix time: files tell when they were last used. Only the entries of the page are built; the
    others cost one attribute and their part of a sort by numpy (10,000: some milliseconds).
    """
    ram, ssd = ram[: 0 if tier == "ssd" else None], ssd[: 0 if tier == "ram" else None]
    idle_s = [entry.idle_s for entry in ram]
    ages_s = np.array(idle_s + [max(0.0, now_s - entry.last_used_s) for entry in ssd], dtype=np.float64)
    chosen: list[int] = np.argsort(ages_s, kind="stable")[offset : offset + limit].tolist()
    entries = tuple(
        _resident(ram[index]) if index < len(ram) else _stored(ssd[index - len(ram)], float(ages_s[index]))
        for index in chosen
    )
    size_bytes = sum([entry.bytes for entry in ram]) + sum([entry.file_bytes for entry in ssd])
    return CachePage(entries, len(ages_s), size_bytes)


def _resident(entry: EntryFigures) -> CacheEntry:
    return CacheEntry(
        tier="ram",
        namespace=entry.namespace,
        tokens=entry.tokens,
        bytes=entry.bytes,
        durable=entry.durable,
        trimmable=entry.trimmable,
        reusable_from=entry.reusable_from,
        idle_s=entry.idle_s,
        sessions=entry.sessions,
        leases=entry.leases,
    )


def _stored(entry: StoredEntry, idle_s: float) -> CacheEntry:
    return CacheEntry(
        tier="ssd",
        namespace=entry.namespace,
        tokens=len(entry.tokens),
        bytes=entry.file_bytes,
        durable=True,
        trimmable=entry.trimmable,
        reusable_from=entry.reusable_from,
        idle_s=idle_s,
    )
