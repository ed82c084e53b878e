"""Trace replay through the real cache: the actors of both tiers, in virtual time.

Real, as shipped: ResidencyActor with its lender, RAM tier, index and retention; DurabilityActor with its
records, their order and supersession; ArchiveActor with the directory, its catalogue, cap and eviction; the
kernel that carries their messages. Not real: the bytes (``retention_world.py``), the clock (the test kit's,
which jumps to whatever is due next), and the lane, of which only what it publishes is here, as
``runtime/engine/batching/publishing.py`` does for a model whose state trims: the prompt's state,
provisionally, when it was not nearly all borrowed, and the whole row's at its end.

A request arrives when the trace says, or once the one before has its prefix; prefilling and reading take no
time, a reply takes 20 ms a token, and meanwhile its lease holds. The cost gate is open. What the replies are
is not in the traces, so the state at the end is the prompt's.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from samovar.actors.archive import Archive, ArchiveActor, ArchiveTotals
from samovar.actors.caching.tiers import ResidencyCounts, ResidencyOptions
from samovar.actors.durability import Durability, DurabilityActor, DurabilityOptions
from samovar.actors.residency import Residency, ResidencyActor
from samovar.actors.spilling.spill_reports import DurabilityCounts
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.kernel import Actor, ActorSystem, ChildSpec, SupervisorSpec
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.identity import Identity
from samovar.storage.room import Limits

from tests.kit.loop import VirtualLoop

from .retention_orders import Books, Clairvoyant, Watched, coming_uses
from .retention_traces import DECODE_TPS
from .retention_world import TOKEN_BYTES, InlinePool, SizedDisk, SizedReaders, SizedState, SizedWriters

if TYPE_CHECKING:
    from collections.abc import Callable

    from samovar.storage.retention import Retention

    from .retention_traces import Request, Trace

IDENTITY: Final = Identity("replay", {"model": "replay"})
MIN_TOKENS: Final = 32
HARD_SHARE: Final = 1.5
SSD_SHARE: Final = 2.5
"""SSD for each byte of RAM, as the defaults have it (8 and 20 GiB)."""
WRITERS, WRITE_BYTES_PER_S = 2, 2e9
TIMEOUT_S: Final = 600.0
AFTER_S: Final = 120.0
SAMPLE: Final = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay counted. Bytes are of states of ``TOKEN_BYTES`` a token. ``repeated`` is a mean."""

    hit_tokens: int
    prompt_tokens: int
    restores: int
    written_bytes: int
    peak_ram_bytes: int
    peak_ssd_bytes: int
    evictions: int
    lost: int
    repeated: float


class Row(Actor[Any]):
    """Who borrows."""

    async def receive(self, message: Any) -> None:
        """Nobody tells it anything."""


class CacheUnderReplay:
    """The tree of one replay. Build it on the loop that runs it."""

    def __init__(
        self, trace: Trace, ram_bytes: int, ssd_bytes: int, retention: Callable[[], Retention[Any]]
    ) -> None:
        self.trace = trace
        self.disk = SizedDisk()
        self.counts = ResidencyCounts()
        self.writes = DurabilityCounts()
        self.row: ChildSpec[Any] = ChildSpec("row", Row, capacity=16)
        options = ResidencyOptions(
            ram_bytes,
            int(ram_bytes * HARD_SHARE),
            min_tokens=MIN_TOKENS,
            restore_min_tokens=MIN_TOKENS,
            retention=retention,
        )
        tiers = self._disk_tier(ssd_bytes) if ssd_bytes else None
        parts = (None, None, None) if tiers is None else tiers[1:]
        spec: ChildSpec[Any] = ChildSpec(
            "residency",
            lambda: ResidencyActor(*parts, _no_pressure, options, counts=self.counts),
            capacity=100_000,
            max_tasks=1000,
        )
        self._residency_ref = spec.ref
        self.residency = Residency(spec.ref)
        children = [self.row, *([] if tiers is None else tiers[0]), spec]
        self.system = ActorSystem(SupervisorSpec("root", children), chance=random.Random(1))

    def _disk_tier(self, ssd_bytes: int) -> tuple[list[Any], Archive, SizedReaders, Durability]:
        directory = lambda: CheckpointDirectory(  # noqa: E731
            self.disk, Path("/replay"), IDENTITY, Limits(ssd_bytes), asyncio.get_running_loop().time
        )
        subscriber = lambda: self._residency_ref  # noqa: E731
        archive: ChildSpec[Any] = ChildSpec(
            "archive",
            lambda: ArchiveActor(directory, InlinePool(), subscriber, ArchiveTotals()),
            capacity=100_000,
        )
        writers: Any = SizedWriters(self.disk, IDENTITY.id, WRITERS, WRITE_BYTES_PER_S)
        durability: ChildSpec[Any] = ChildSpec(
            "durability",
            lambda: DurabilityActor(
                Archive(archive.ref),
                writers,
                DurabilityOptions(IDENTITY.id),
                subscriber,
                counts=self.writes,
                chance=random.Random(1),
            ),
            capacity=100_000,
        )
        faces = Archive(archive.ref), SizedReaders(self.disk), Durability(durability.ref)
        return [archive, durability], *faces

    async def serve(self, request: Request) -> None:
        """Let a request arrive: borrow, publish the prompt, and end in its time."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, request.at_s - loop.time()))
        tokens = self.trace.tokens_of(request)
        taken = await self.residency.take(tokens, "", None, None, self.row.ref, TIMEOUT_S)
        last = len(tokens) - 1
        if last - taken.length >= MIN_TOKENS:
            self.residency.put(SizedState.of(tokens[:last]), None, provisional=True)

        def end() -> None:
            self.residency.put(SizedState.of(tokens), None)
            if taken.lease is not None:
                self.residency.release(taken.lease.id)

        loop.call_later(request.reply_tokens / DECODE_TPS, end)


def _no_pressure() -> MemoryReading:
    return MemoryReading(0, 0)


async def _replayed(
    trace: Trace, ram_bytes: int, ssd_bytes: int, order: Callable[[Books], Retention[Any]], at: list[int]
) -> Outcome:
    books = Books()
    cache = CacheUnderReplay(trace, ram_bytes, ssd_bytes, lambda: order(books))
    await cache.system.start()
    every = max(1, len(trace.requests) // SAMPLE)
    for number, request in enumerate(trace.requests):
        at[0] = number
        await cache.serve(request)
        if number % every == every - 1:
            books.sample()
    await asyncio.sleep(AFTER_S)
    figures = await cache.residency.figures(TIMEOUT_S)
    await cache.system.stop()
    if cache.system.dead_letters:
        raise RuntimeError(f"messages were lost: {list(cache.system.dead_letters)[:3]}")
    return Outcome(
        hit_tokens=figures.hit_tokens,
        prompt_tokens=figures.prompt_tokens,
        restores=figures.restores,
        written_bytes=cache.writes.written_bytes,
        peak_ram_bytes=books.peak_bytes,
        peak_ssd_bytes=cache.disk.peak_bytes,
        evictions=figures.evictions + figures.demotions,
        lost=figures.lost,
        repeated=float(np.mean(books.repeated)) if books.repeated else 0.0,
    )


def replay(trace: Trace, ram_tokens: int, ssd_tokens: int = 0) -> Outcome:
    """Replay a trace through the cache with the shipped retention."""
    return _replay(trace, ram_tokens, ssd_tokens, Watched, [0])


def replay_clairvoyant(trace: Trace, ram_tokens: int) -> Outcome:
    """Replay a trace through the RAM tier with a retention that knows what will come."""
    at, uses = [0], coming_uses(trace)
    return _replay(trace, ram_tokens, 0, lambda books: Clairvoyant(books, uses, at), at)


def _replay(
    trace: Trace, ram_tokens: int, ssd_tokens: int, order: Callable[[Books], Retention[Any]], at: list[int]
) -> Outcome:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        run = _replayed(trace, ram_tokens * TOKEN_BYTES, ssd_tokens * TOKEN_BYTES, order, at)
        return runner.run(run)
