"""The two tiers of the cache as parts of the tree, from the configuration."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..actors.archive import Archive, ArchiveActor, ArchiveTotals, archive_pool
from ..actors.caching.tiers import ResidencyCounts, ResidencyOptions
from ..actors.durability import Durability, DurabilityActor, DurabilityOptions
from ..actors.reader import ReaderActor, ReaderCounts, Readers
from ..actors.residency import Residency, ResidencyActor
from ..actors.spilling.spill_reports import DurabilityCounts
from ..actors.writer import WriterActor, Writers, checkpoint_writer
from ..storage.directory import CheckpointDirectory
from ..storage.room import Limits
from .kernel import ChildSpec, RestartLimit, SupervisorSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..actors.archive import ArchiveMessage
    from ..actors.durability import DurabilityMessage
    from ..actors.reader import ReaderMessage
    from ..actors.residency import ResidencyMessage
    from ..actors.spilling.spill_reports import SpillNotice
    from ..actors.writer import WriteJob, WriterMessage
    from ..storage.container import StoredCheckpoint
    from ..storage.directory_figures import OpenReport
    from ..storage.entry import StoredEntry
    from ..storage.filesystem import Filesystem
    from ..storage.identity import Identity
    from .config import Config
    from .config.schema import Ssd
    from .engine.checkpoint import MemoryGauge, Restorer
    from .kernel import ActorRef, BlockingPool

SCAN_S = 600.0
"""How long opening a big directory on a slow disk may take at the start."""
RESTARTS = RestartLimit(5, 60.0)


class StatefulEngine(Protocol):
    """What the tiers need of an engine."""

    def identity(self) -> Identity:
        """Return what its states depend on. May read the model's files."""
        ...

    def restorer(self) -> Restorer:
        """Return a fresh maker of buffers; it is used on one reader's thread only."""
        ...

    def memory(self) -> MemoryGauge:
        """Return the gauge of its device's memory."""
        ...


class TierLog(Protocol):
    """Told, on the loop's thread, what an operator should read."""

    def directory_opened(self, root: Path, report: OpenReport) -> None:
        """Take what the scan of the SSD directory found; again when what it failed to do has changed."""
        ...

    def restore_failed(self, entry: StoredEntry, error: Exception | None) -> None:
        """Take a file that could not be restored; None for one that holds another prefix than it says."""
        ...

    def spill_noticed(self, notice: SpillNotice) -> None:
        """Take a warning about writes that fail, or the end of it."""
        ...


@dataclass(frozen=True)
class DiskTier:
    """The SSD tier: its part of the tree and the faces of its actors. ``pool`` is closed after the tree."""

    root: Path
    spec: SupervisorSpec
    archive: Archive
    readers: Readers
    durability: Durability
    writes: DurabilityCounts
    pool: BlockingPool


@dataclass(frozen=True)
class Tiers:
    """The cache: RAM, and SSD where there is one."""

    spec: ChildSpec[ResidencyMessage]
    residency: Residency
    disk: DiskTier | None


def build_tiers(
    config: Config, engine: StatefulEngine, fs: Filesystem, log: TierLog, wrote: Callable[[float], None]
) -> Tiers | None:
    """Lay out the tiers; None when the cache is off. Blocks: the model's identity may read its files.

    ``wrote`` gets the seconds of every durable write, on the writer's thread.
    """
    ram, ssd = config.cache.ram, config.cache.ssd
    if ram.max == 0:
        return None
    waiting = config.lanes.queue + config.lanes.count * config.lanes.batch
    options = ResidencyOptions(
        max_bytes=ram.max,
        hard_max_bytes=ram.hard_max_bytes,
        min_tokens=ram.min_tokens,
        restore_min_tokens=ssd.restore_min_tokens,
        demote_idle_s=ssd.demote_idle,
        pressure=ram.pressure,
    )
    counts, memory = ResidencyCounts(), engine.memory()
    residency: list[ActorRef[ResidencyMessage]] = []
    root = ssd.folder()
    disk = None
    if root is not None:
        disk = _disk_tier(ssd, root, lambda: residency[0], engine=engine, fs=fs, log=log, wrote=wrote)

    def actor() -> ResidencyActor:
        if disk is None:
            return ResidencyActor(None, None, None, memory, options, counts=counts)
        return ResidencyActor(
            disk.archive,
            disk.readers,
            disk.durability,
            memory,
            options,
            counts=counts,
            failed=log.restore_failed,
        )

    spec = ChildSpec("residency", actor, capacity=16 * waiting + 1024, max_tasks=4 * waiting + 256)
    residency.append(spec.ref)
    return Tiers(spec, Residency(spec.ref), disk)


def _disk_tier(
    ssd: Ssd,
    root: Path,
    residency: Callable[[], ActorRef[ResidencyMessage]],
    *,
    engine: StatefulEngine,
    fs: Filesystem,
    log: TierLog,
    wrote: Callable[[float], None],
) -> DiskTier:
    identity, pool = engine.identity(), archive_pool()
    write = checkpoint_writer(fs, time.time, "blake3-128" if ssd.verify == "full" else "xxh3-128")
    writers = _writers(ssd.writers, _timed(write, wrote))
    read_counts = ReaderCounts()
    readers = _readers(ssd.readers, engine, fs, identity.id, read_counts, verify=ssd.verify != "off")
    limits, totals = Limits(ssd.max, ssd.free_floor), ArchiveTotals()
    archive: ChildSpec[ArchiveMessage] = ChildSpec(
        "archive",
        lambda: ArchiveActor(
            lambda: CheckpointDirectory(fs, root, identity, limits),
            pool,
            residency,
            totals,
            lambda report: log.directory_opened(root, report),
        ),
        capacity=4096,
        start_s=SCAN_S,
    )
    faces = Archive(archive.ref), Writers([spec.ref for spec in writers])
    options = DurabilityOptions(identity.id, write_behind=ssd.write_behind)
    counts = DurabilityCounts()
    durability: ChildSpec[DurabilityMessage] = ChildSpec(
        "durability",
        lambda: DurabilityActor(
            *faces,
            options,
            residency,
            counts=counts,
            chance=random.Random(),  # noqa: S311 - spreads retries, guards nothing
            notify=log.spill_noticed,
        ),
        capacity=8192,
        on_restart="drop",  # a flush must not be answered by one that does not know yet what is dirty
        max_tasks=ssd.writers + 8,
    )
    spec = SupervisorSpec(
        "storage",
        [
            SupervisorSpec("writers", writers, limit=RESTARTS),
            SupervisorSpec("readers", readers, limit=RESTARTS),
            archive,
            durability,
        ],
        strategy="rest_for_one",
        limit=RESTARTS,
    )
    reading = Readers([spec.ref for spec in readers], read_counts)
    return DiskTier(root, spec, faces[0], reading, Durability(durability.ref), counts, pool)


def _writers(count: int, write: Callable[[WriteJob], StoredCheckpoint]) -> list[ChildSpec[WriterMessage]]:
    return [ChildSpec(str(n), lambda: WriterActor(write), capacity=64) for n in range(count)]


def _timed(
    write: Callable[[WriteJob], StoredCheckpoint], wrote: Callable[[float], None]
) -> Callable[[WriteJob], StoredCheckpoint]:
    def timed(job: WriteJob) -> StoredCheckpoint:
        begun_s = time.perf_counter()
        stored = write(job)
        wrote(time.perf_counter() - begun_s)
        return stored

    return timed


def _readers(
    count: int, engine: StatefulEngine, fs: Filesystem, identity: str, counts: ReaderCounts, *, verify: bool
) -> list[ChildSpec[ReaderMessage]]:
    def actor() -> ReaderActor:
        return ReaderActor(engine.restorer, fs, identity, counts, verify=verify)

    return [ChildSpec(str(n), actor, capacity=256) for n in range(count)]
