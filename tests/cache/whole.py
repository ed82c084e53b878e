"""The whole cache as ``runtime/tiers.py`` lays it out, over a disk in memory: one life of one process."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from samovar.actors.archive import Archive, ArchiveActor, ArchiveTotals, archive_pool
from samovar.actors.caching.tiers import ResidencyCounts, ResidencyOptions
from samovar.actors.durability import Durability, DurabilityActor, DurabilityOptions
from samovar.actors.reader import ReaderActor, ReaderCounts, Readers
from samovar.actors.residency import Residency, ResidencyActor
from samovar.actors.spilling.spill_reports import DurabilityCounts
from samovar.actors.writer import WriterActor, Writers, checkpoint_writer
from samovar.runtime.caching import TreeCache
from samovar.runtime.kernel import ChildSpec, RestartLimit, SupervisorSpec
from samovar.runtime.tiers import DiskTier, Tiers
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.identity import Identity
from samovar.storage.room import Limits

from tests.kit import KitSystem, Probe
from tests.kit.checkpoints import FakeGauge
from tests.kit.states import FakeRestorer

from .states import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samovar.actors.durability import DirtyCheckpoint
    from samovar.actors.writer import WriteJob
    from samovar.runtime.engine.port import TextCodec
    from samovar.runtime.kernel import ActorRef
    from samovar.storage.container import StoredCheckpoint
    from samovar.storage.directory_figures import Departure, OpenReport, Withdrawal
    from samovar.storage.tokens import TokenIds

    from tests.kit.disk import FaultDisk

    from .states import Key
    from .turns import Turns

ROOT = Path("/cache")
IDENTITY = Identity("model-1", {"model": "1"})
EPOCH_S = 1_000_000.0
RESTARTS = RestartLimit(1000, 60.0)


@dataclass(frozen=True)
class Shape:
    """The sizes of one life. ``ssd_bytes`` 0: no cap."""

    ram_bytes: int = 300_000
    hard_bytes: int = 900_000
    ssd_bytes: int = 0
    writers: int = 2
    readers: int = 1
    write_behind: bool = True
    demote_idle_s: float = 300.0


class Ear:
    """Is told what must not be believed by anybody's word. Loop thread, but for ``withdrawn``."""

    def withdrawn(self, key: Key, why: Departure) -> None:
        """A file leaves the index, at that very moment."""

    def announced(self, key: Key) -> None:
        """Durability is told of a version."""

    def dropped(self, key: Key, ram_bytes: int) -> None:
        """RAM, of which ``ram_bytes`` were taken, lets go of what is not durable."""

    def reset(self) -> None:
        """Durability is told to forget everything."""

    def opened(self, report: OpenReport) -> None:
        """The disk was scanned."""

    def message(self, path: str, message: Any) -> None:
        """An actor is about to handle a message."""


class _Withdrawals(deque["Withdrawal"]):
    def __init__(self, before: Iterable[Withdrawal], ear: Ear) -> None:
        super().__init__(before)
        self._ear = ear

    def append(self, item: Withdrawal, /) -> None:
        super().append(item)
        self._ear.withdrawn(key_of(item.entry.namespace, item.entry.tokens), item.why)


class _Durability(Durability):
    """Durability's face, overheard."""

    def __init__(self, whole: Whole, ref: Any) -> None:
        super().__init__(ref)
        self._whole = whole

    def dirty(self, checkpoint: DirtyCheckpoint) -> bool:
        spec = checkpoint.checkpoint.spec
        self._whole.ear.announced(key_of(spec.namespace, spec.tokens))
        return super().dirty(checkpoint)

    def dropped(self, tokens: TokenIds, namespace: str, version: int) -> bool:
        self._whole.ear.dropped(key_of(namespace, tokens), self._whole.ram_taken_bytes())
        return super().dropped(tokens, namespace, version)

    def reset(self) -> bool:
        self._whole.ear.reset()
        return super().reset()


class Whole:
    """``async with Whole(...) as whole``: the cache runs. Leaving stops it in order."""

    def __init__(self, disk: FaultDisk, shape: Shape, turns: Turns, ear: Ear, seed: int) -> None:
        self.disk, self.shape, self.turns, self.ear = disk, shape, turns, ear
        self.gauge = FakeGauge()
        self.borrower = Probe("borrower")
        self.crash_writer = 0
        self.scanned = False
        self.directory: CheckpointDirectory | None = None
        self.residency_actor: ResidencyActor | None = None
        self.durability_actor: DurabilityActor | None = None
        self.residency_counts, self.durability_counts = ResidencyCounts(), DurabilityCounts()
        self.totals = ArchiveTotals()
        self.chance = random.Random(seed)
        self._write = checkpoint_writer(disk, self.clock)
        self.pool = archive_pool()
        self.kit: KitSystem
        self._lay_out()

    def _lay_out(self) -> None:
        shape = self.shape
        writers = [
            ChildSpec(str(n), lambda: WriterActor(self.write), capacity=64) for n in range(shape.writers)
        ]
        self.writers = Writers([spec.ref for spec in writers])
        self.reader_counts = ReaderCounts()
        readers = [ChildSpec(str(n), self._reader, capacity=256) for n in range(shape.readers)]
        self.readers = Readers([spec.ref for spec in readers], self.reader_counts)
        archive = ChildSpec("archive", self._archive, capacity=4096, start_s=600.0)
        self.archive = Archive(archive.ref)
        durability = ChildSpec("durability", self._durability, capacity=8192, max_tasks=shape.writers + 8)
        self.durability = _Durability(self, durability.ref)
        residency = ChildSpec("residency", self._residency, capacity=2048, max_tasks=512)
        self.residency = Residency(residency.ref)
        self.refs: list[ActorRef[Any]] = [
            spec.ref for spec in (*writers, *readers, archive, durability, residency)
        ]
        storage = [
            SupervisorSpec("writers", writers, limit=RESTARTS),
            SupervisorSpec("readers", readers, limit=RESTARTS),
            archive,
            durability,
        ]
        tier = SupervisorSpec("storage", storage, strategy="rest_for_one", limit=RESTARTS)
        disk = DiskTier(
            ROOT, tier, self.archive, self.readers, self.durability, self.durability_counts, self.pool
        )
        self.cache = TreeCache(Tiers(residency, self.residency, disk), (), no_codec, self.pool)
        self.root = SupervisorSpec(
            "root",
            [
                tier,
                SupervisorSpec(
                    "serving", [residency, self.borrower.spec], strategy="rest_for_one", limit=RESTARTS
                ),
            ],
            limit=RESTARTS,
        )

    # -- what is in it

    def clock(self) -> float:
        return EPOCH_S + self.turns.now_s()

    def write(self, job: WriteJob) -> StoredCheckpoint:
        """Write, unless the writer is to crash."""
        if self.crash_writer:
            self.crash_writer -= 1
            raise RuntimeError("the writer crashes on purpose")
        return self._write(job)

    def _reader(self) -> ReaderActor:
        return ReaderActor(FakeRestorer, self.disk, IDENTITY.id, self.reader_counts)

    def _archive(self) -> ArchiveActor:
        return ArchiveActor(self._directory, self.pool, lambda: self.residency.ref, self.totals, self._opened)

    def _opened(self, report: OpenReport) -> None:
        self.scanned = True
        self.ear.opened(report)

    def _directory(self) -> CheckpointDirectory:
        self.scanned = False
        limits = Limits(self.shape.ssd_bytes, 0.0)
        self.directory = made = CheckpointDirectory(self.disk, ROOT, IDENTITY, limits, self.clock)
        made._stock.withdrawals = _Withdrawals(made._stock.withdrawals, self.ear)
        return made

    def _durability(self) -> DurabilityActor:
        options = DurabilityOptions(IDENTITY.id, write_behind=self.shape.write_behind)
        self.durability_actor = DurabilityActor(
            self.archive,
            self.writers,
            options,
            lambda: self.residency.ref,
            counts=self.durability_counts,
            chance=self.chance,
        )
        return self.durability_actor

    def _residency(self) -> ResidencyActor:
        shape = self.shape
        options = ResidencyOptions(
            shape.ram_bytes, shape.hard_bytes, demote_idle_s=shape.demote_idle_s, lookups=64
        )
        self.residency_actor = ResidencyActor(
            self.archive, self.readers, self.durability, self.gauge, options, counts=self.residency_counts
        )
        return self.residency_actor

    # -- its life

    async def __aenter__(self) -> Self:
        self.disk.hook = self.turns.hook
        await self.pool.run(_nothing)  # its thread outlives the tree
        self.kit = KitSystem(self.root, seed=self.chance.randint(0, 1 << 30))
        steering, ear = self.kit._steering, self.ear
        before = steering.before

        async def overheard(cell: Any, message: Any) -> None:
            ear.message(cell.path, message)
            await before(cell, message)

        steering.before = overheard  # type: ignore[method-assign]
        await self.kit.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await self.kit.__aexit__(*error)  # type: ignore[arg-type]
        finally:
            self.pool.close()
            await self.kit.settle()

    # -- what it holds

    def ram(self) -> dict[Key, Any]:
        """Return the entries in RAM."""
        entries = self.residency_actor._ram.entries if self.residency_actor is not None else ()
        return {key_of(entry.namespace, entry.tokens): entry for entry in entries}

    def ram_taken_bytes(self) -> int:
        assert self.residency_actor is not None
        ram = self.residency_actor._ram
        return ram.entries.bytes + ram._reserved_bytes

    def files(self) -> dict[Key, Any]:
        """Return the entries in the index of the disk."""
        entries = self.directory.entries() if self.directory is not None else ()
        return {key_of(entry.namespace, entry.tokens): entry for entry in entries}

    @property
    def is_open(self) -> bool:
        """Whether the present archive has scanned the disk."""
        return self.scanned and self.directory is not None and self.directory._lock is not None

    def kept_bytes(self) -> int:
        """Return the bytes of everything on the disk that counts towards the cap."""
        return sum(
            len(data) for path, data in self.disk.files().items() if path.suffix in {".kv", ".tmp"}
        )  # the quarantine's names end as they did


def no_codec() -> TextCodec:
    """Stand in for a codec that is never asked for."""
    raise AssertionError("nobody renders here")


def _nothing() -> None:
    return
