"""A page of the cache's entries from what the tiers tell of theirs. Pure."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING

from .cache_serving import CacheEntry, CachePage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...actors.tiers import EntryFigures
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
    rest costs a comparison each.
    """
    ram = ram if tier != "ssd" else ()
    ssd = ssd if tier != "ram" else ()
    ages = [(entry.idle_s, 0, index) for index, entry in enumerate(ram)]
    ages += [(max(0.0, now_s - entry.last_used_s), 1, index) for index, entry in enumerate(ssd)]
    chosen = nsmallest(offset + limit, ages)[offset:]
    entries = tuple(
        _stored(ssd[index], age) if disk else _resident(ram[index]) for age, disk, index in chosen
    )
    size_bytes = sum(entry.bytes for entry in ram) + sum(entry.file_bytes for entry in ssd)
    return CachePage(entries, len(ages), size_bytes)


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
