"""What the HTTP layer sees of the cache, and its part of ``/stats``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ..actors.requests import Refused
from ..actors.spilling.spill_reports import FlushReport
from .engine.errors import EngineError
from .http.cache_page import page_of
from .http.cache_serving import CacheExplanation
from .kernel import AskError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..actors.caching.tiers import ClearReport, DrainReport
    from ..actors.generation import Lane
    from ..actors.requests import GenerationRequest
    from .engine.port import TextCodec
    from .http.cache_serving import CachePage, TierChoice
    from .kernel import BlockingPool
    from .tiers import DiskTier, Tiers

ASK_S = 5.0
STATS_ASK_S = 2.0
CLEAR_S = 60.0
FLUSH_TRIES = 3
NO_DISK = "there is no disk tier (cache.ssd.dir is off)"


class TreeCache:
    """Implements ``http.cache_serving.CacheServing`` over the actors of the tiers. Loop thread only."""

    def __init__(
        self, tiers: Tiers, lanes: Sequence[Lane], codec: Callable[[], TextCodec], pool: BlockingPool
    ) -> None:
        self._lanes = lanes
        self._residency = tiers.residency
        self._disk = tiers.disk
        self._codec = codec
        self._pool = pool

    async def flush(self, timeout_s: float) -> FlushReport:
        """Bring everything published so far to disk; without a disk tier say so."""
        if self._disk is None:
            undurable = await self._residency.announce(ASK_S)
            return FlushReport(
                durable=False,
                flushed=0,
                missing=0,
                pending=undurable,
                pending_bytes=0,
                dropped=0,
                failed=0,
                entries=0,
                longest_durable_prefix_tokens=0,
                elapsed_ms=0.0,
                reason=NO_DISK,
            )
        return await self._without_withdrawn(await self._flush_disk(self._disk, timeout_s))

    async def settle(self, timeout_s: float) -> FlushReport | None:
        """Flush at the end of the process; None without a disk tier.

        What the disk tier let go to make room there does not count: that is its cap at work, and no later end
        would change it.
        """
        return None if self._disk is None else await self._flush_disk(self._disk, timeout_s)

    async def _flush_disk(self, disk: DiskTier, timeout_s: float, tries: int = FLUSH_TRIES) -> FlushReport:
        """Flush; again where durability forgot what it was told meanwhile, as by a restart or a clear.

        It may have answered before it was told anew.
        """
        loop = asyncio.get_running_loop()
        begun_s, forgets = loop.time(), disk.writes.forgets
        await self._residency.announce(ASK_S)
        reply = await disk.durability.flush(timeout_s)
        if not reply.durable or disk.writes.forgets == forgets:
            return reply
        if tries == 1:
            reason = "the disk tier restarts or is cleared again and again"
            return replace(reply, durable=False, reason=reason)
        left_s = max(0.0, timeout_s - (loop.time() - begun_s))
        return await self._flush_disk(disk, left_s, tries - 1)

    async def _without_withdrawn(self, reply: FlushReport) -> FlushReport:
        """Take back a "durable" where the disk tier's cap took what was written, then or by this flush."""
        withdrawn = (await self._residency.figures(ASK_S)).withdrawn if reply.durable else 0
        if not withdrawn:
            return reply
        reason = f"{withdrawn} left the disk again to make room there (cache.ssd.max, free space)"
        return replace(reply, durable=False, pending=reply.pending + withdrawn, reason=reason)

    async def cache_page(self, tier: TierChoice, offset: int, limit: int) -> CachePage:
        """Return entries, most recently used first."""
        ram = () if tier == "ssd" else await self._residency.entries(ASK_S)
        ssd = () if tier == "ram" or self._disk is None else await self._disk.archive.entries(ASK_S)
        return page_of(ram, ssd, tier, offset=offset, limit=limit, now_s=time.time())

    async def clear_cache(self, tier: TierChoice) -> ClearReport:
        """Empty a tier or both."""
        return await self._residency.clear(tier, CLEAR_S)

    async def explain(self, request: GenerationRequest) -> CacheExplanation | Refused:
        """Say what a request would reuse."""
        codec = self._codec()
        try:
            prompt = await self._pool.run(codec.render, request.prompt, request.constraint)
        except EngineError as error:
            return Refused(error.code, str(error), request.prompt_field)
        rate = await self._prefill_tps()
        found = await self._residency.explain(prompt.tokens, request.namespace, rate, ASK_S)
        would_save = max(0, found.ssd_tokens - found.ram_tokens)
        return CacheExplanation(
            prompt_tokens=found.prompt_tokens,
            tier=found.tier,
            cached_tokens=found.length,
            ram_tokens=found.ram_tokens,
            ssd_tokens=found.ssd_tokens,
            stored_tokens=found.stored_tokens,
            diverged_at=found.diverged_at,
            boundary=prompt.boundary,
            reason=found.reason,
            restore_ms=found.restore_ms,
            prefill_ms=1e3 * would_save / rate if rate else None,
        )

    async def drain_cache(self, timeout_s: float) -> DrainReport:
        """Demote what is or becomes durable."""
        return await self._residency.drain(timeout_s)

    async def close_session(self, session_id: str) -> bool:
        """Forget a session."""
        return await self._residency.close_session(session_id, ASK_S) > 0

    @property
    def degraded(self) -> str | None:
        """What works worse than configured; None when all is well."""
        if self._disk is not None and self._disk.writes.degraded:
            return "the disk tier cannot write: what is published stays in memory and is tried again seldom"
        return None

    async def stats(self) -> dict[str, object]:
        """Return ``prompt_cache`` and ``ssd_cache`` of ``/stats``; a part that does not answer is null."""
        return {
            "prompt_cache": await self._ram_stats(),
            "ssd_cache": None if self._disk is None else await _disk_stats(self._disk),
        }

    async def _prefill_tps(self) -> float | None:
        """Return the rate of the first lane that has measured one."""
        for lane in self._lanes:
            with contextlib.suppress(AskError):
                rate = (await lane.figures(STATS_ASK_S)).prefill_tps
                if rate > 0:
                    return rate
        return None

    async def _ram_stats(self) -> Mapping[str, object] | None:
        try:
            figures = await self._residency.figures(STATS_ASK_S)
        except AskError:
            return None
        # There is no object cache yet; the names are the contract's.
        return {**asdict(figures), "object_hits": 0, "object_misses": 0}


async def _disk_stats(disk: DiskTier) -> Mapping[str, object] | None:
    try:
        files = await disk.archive.figures(STATS_ASK_S)
        writes = await disk.durability.figures(STATS_ASK_S)
    except AskError:
        return None
    reads = disk.readers.counts
    return {
        "dir": str(disk.root),
        "entries": files.entries,
        "bytes": files.total_bytes,
        "max_bytes": files.max_bytes,
        "foreign_bytes": files.foreign_bytes,
        "unread_bytes": files.unread_bytes,
        "unrecovered": files.unrecovered,
        "restores": reads.restores,
        "restore_failures": reads.failed,
        "restore_ms_last": reads.restore_ms_last,
        "restored_bytes": reads.restored_bytes,
        "longest_durable_prefix_tokens": files.longest_tokens,
        "corrupt": files.corrupt,
        "quarantined": files.quarantined,
        "evictions": files.evictions,
        "unlink_failures": files.unlink_failures,
        "problems": dict(files.problems),
        **asdict(writes),
    }
