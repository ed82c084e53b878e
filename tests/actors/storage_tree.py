"""Writers, readers, archive and durability over a disk in memory, as every storage test needs them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from samovar.actors.archive import Archive, ArchiveActor, ArchiveTotals, archive_pool
from samovar.actors.durability import (
    DirtyCheckpoint,
    Durability,
    DurabilityActor,
    DurabilityOptions,
    Persisted,
    PersistFailed,
)
from samovar.actors.reader import ReaderActor, ReaderCounts, Readers
from samovar.actors.spilling.spill_reports import DurabilityCounts, SpillNotice
from samovar.actors.writer import WriteJob, WriterActor, Writers, checkpoint_writer
from samovar.runtime.kernel import BlockingPool, ChildSpec, RestartLimit, SupervisorSpec
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.identity import Identity
from samovar.storage.room import Limits

from tests.kit import KitSystem, Probe
from tests.kit.checkpoints import FakeCheckpoint
from tests.kit.disk import FaultDisk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from samovar.actors.spilling.spill_reports import FlushReport
    from samovar.runtime.engine.checkpoint import Segments
    from samovar.storage.directory_figures import OpenReport
    from samovar.storage.spec import CheckpointSpec

    from tests.kit.faults import Operation

R = TypeVar("R")

ROOT = Path("/cache")
IDENTITY = Identity("model-1", {"model": "1"})
PATIENCE_S = 10.0


class Gate:
    """Holds operations of one kind on the disk's threads until the test lets them through."""

    def __init__(self, disk: FaultDisk, kind: str) -> None:
        self._kind = kind
        self._permits = threading.Semaphore(0)
        self._open = False
        self.held = 0
        self.passed = 0
        disk.hook = self._hook

    @property
    def blocked(self) -> int:
        """How many threads wait here."""
        return self.held - self.passed

    def _hook(self, operation: Operation) -> None:
        if operation.kind == self._kind and not self._open:
            self.held += 1
            assert self._permits.acquire(timeout=PATIENCE_S), "a gate was left closed"
            self.passed += 1

    def allow(self, count: int = 1) -> None:
        for _ in range(count):
            self._permits.release()

    def open(self) -> None:
        self._open = True
        self.allow(1000)


class FakeRestorer:
    """Restores FakeCheckpoints. ``log`` tells what was called on which thread."""

    def __init__(self, tree: StorageTree) -> None:
        self._tree = tree

    def open(self) -> None:
        self._log("open")
        if self._tree.open_error is not None:
            raise self._tree.open_error

    def allocate(self, spec: CheckpointSpec) -> FakeTarget:
        self._log("allocate")
        if self._tree.allocate_error is not None:
            raise self._tree.allocate_error
        return FakeTarget(spec)

    def close(self) -> None:
        self._log("close")

    def _log(self, what: str) -> None:
        self._tree.restorer_log.append((what, threading.current_thread().name))


class FakeTarget:
    def __init__(self, spec: CheckpointSpec) -> None:
        self._checkpoint = FakeCheckpoint(spec, spec.nbytes)
        self._checkpoint.data = bytearray(spec.nbytes)

    def segments(self) -> Segments:
        return [[memoryview(self._checkpoint.data)]]

    def finish(self) -> FakeCheckpoint:
        return self._checkpoint


@dataclass
class StorageTree:
    """``residency`` is a probe that hears what is persisted, failed and withdrawn."""

    disk: FaultDisk
    limits: Limits = field(default_factory=lambda: Limits(0, 0.0))
    writer_count: int = 1
    options: DurabilityOptions = field(default_factory=lambda: DurabilityOptions(IDENTITY.id))
    verify: bool = True
    residency: Probe = field(default_factory=lambda: Probe("residency"))
    notices: list[SpillNotice] = field(default_factory=list)
    opened: list[OpenReport] = field(default_factory=list)
    open_error: Exception | None = None
    allocate_error: Exception | None = None
    write_errors: list[Exception] = field(default_factory=list)
    restorer_log: list[tuple[str, str]] = field(default_factory=list)
    written: list[list[int]] = field(default_factory=list)
    gate: Gate | None = None
    kit: KitSystem = field(init=False)
    pool: BlockingPool = field(init=False)

    def __post_init__(self) -> None:
        self._write = checkpoint_writer(self.disk, lambda: 1.0)
        specs = [
            ChildSpec(str(n), lambda: WriterActor(self.write), capacity=100, on_restart="drop")
            for n in range(self.writer_count)
        ]
        self.writers = Writers([spec.ref for spec in specs])
        self.reader_counts = ReaderCounts()
        reader = ChildSpec("0", self._reader, capacity=100, on_restart="drop")
        self.readers = Readers([reader.ref], self.reader_counts)
        archive = ChildSpec("archive", self._archive, capacity=10_000, on_restart="drop")
        self.archive = Archive(archive.ref)
        durability = ChildSpec("durability", self._durability, capacity=10_000, on_restart="drop")
        self.durability = Durability(durability.ref)
        self.counts = DurabilityCounts()
        self.totals = ArchiveTotals()
        limit = RestartLimit(20, 60.0)
        storage = SupervisorSpec(
            "storage",
            [
                SupervisorSpec("writers", specs, limit=limit),
                SupervisorSpec("readers", [reader], limit=limit),
                archive,
                durability,
            ],
            strategy="rest_for_one",
            limit=limit,
        )
        self._root = SupervisorSpec("root", [self.residency.spec, storage], limit=limit)

    # -- what is in it

    def write(self, job: WriteJob) -> Any:
        """Write, unless the test wants a writer to crash."""
        if self.write_errors:
            raise self.write_errors.pop()
        stored = self._write(job)
        self.written.append(job.checkpoint.spec.tokens.tolist())
        return stored

    def directory(self) -> CheckpointDirectory:
        return CheckpointDirectory(self.disk, ROOT, IDENTITY, self.limits, self._clock())

    def _clock(self) -> Callable[[], float]:
        loop = asyncio.get_running_loop()
        return lambda: 1_000_000.0 + loop.time()

    def _reader(self) -> ReaderActor:
        restorer = partial(FakeRestorer, self)
        return ReaderActor(restorer, self.disk, IDENTITY.id, self.reader_counts, verify=self.verify)

    def _archive(self) -> ArchiveActor:
        return ArchiveActor(
            self.directory, self.pool, lambda: self.residency.ref, self.totals, self.opened.append
        )

    def _durability(self) -> DurabilityActor:
        return DurabilityActor(
            self.archive,
            self.writers,
            self.options,
            lambda: self.residency.ref,
            counts=self.counts,
            chance=random.Random(1),
            notify=self.notices.append,
        )

    # -- its life

    async def __aenter__(self) -> Self:
        self.pool = archive_pool()
        await self.pool.run(threading.current_thread)  # its thread outlives the tree
        self.kit = KitSystem(self._root)
        async with _ticking():
            await self.kit.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.gate is not None:
            self.gate.open()
        try:
            async with _ticking():
                await self.kit.__aexit__(*error)  # type: ignore[arg-type]
        finally:
            self.pool.close()

    async def until(self, condition: Callable[[], bool], rounds: int = 200) -> None:
        """Settle until ``condition`` holds, however slow the machine; the clock stands still."""
        for _ in range(rounds):
            if condition():
                return
            await self.kit.settle()
        raise AssertionError("it never came to that")

    async def calm(self) -> None:
        """Settle until no thread has anything to do that the gate does not hold up."""
        await self.kit.settle()
        await self.until(lambda: not self._busy())
        await self.kit.settle()

    def _busy(self) -> bool:
        refs = (*self.writers.refs, *self.readers.refs)
        working = self.pool.jobs + sum(1 for ref in refs if self.kit.figures(ref).open_asks)
        return working > (self.gate.blocked if self.gate is not None else 0)

    async def patiently(self, waiting: Awaitable[R]) -> R:
        """Await something that threads bring about without letting the clock run into its deadline."""
        task = asyncio.ensure_future(waiting)
        await self.until(task.done)
        return await task

    # -- what tests do

    def hold(self, kind: str) -> Gate:
        """Let operations of a kind wait for the test."""
        self.gate = Gate(self.disk, kind)
        return self.gate

    async def restarted(self) -> None:
        """Let the backoff of a restart pass."""
        await self.kit.advance(0.2)
        await self.calm()

    async def flush(self, timeout_s: float = 60.0) -> FlushReport:
        """Flush; the clock stands still."""
        return await self.patiently(self.durability.flush(timeout_s))

    def publish(self, checkpoint: FakeCheckpoint, version: int = 1, *, urgent: bool = False) -> None:
        assert self.durability.dirty(DirtyCheckpoint(checkpoint, version, urgent))

    async def stored(self) -> list[list[int]]:
        """Return the tokens of everything the archive has, sorted."""
        entries = await self.patiently(self.archive.entries(5.0))
        return sorted(entry.tokens.tolist() for entry in entries)

    def heard(self) -> list[tuple[str, list[int], int]]:
        """Take what residency was told of versions: (what, tokens, version)."""
        told = []
        while self.residency.seen:
            message = self.residency.seen.popleft()
            if isinstance(message, Persisted | PersistFailed):
                told.append((type(message).__name__, message.tokens.tolist(), message.version))
        return told

    def files(self) -> list[str]:
        """Return the suffixes of all files that hold, or were to hold, checkpoints."""
        return sorted(path.suffix for path in self.disk.files() if path.suffix in {".kv", ".tmp"})


@contextlib.asynccontextmanager
async def _ticking() -> AsyncGenerator[None]:
    """Move the clock in many small steps: each gives the threads a moment to report."""

    async def tick() -> None:
        while True:  # noqa: ASYNC110 - it is the clock itself that is wanted
            await asyncio.sleep(0.05)

    ticks = asyncio.ensure_future(tick())
    try:
        yield
    finally:
        ticks.cancel()


def storage(disk: FaultDisk | None = None, **options: Any) -> StorageTree:
    return StorageTree(disk or FaultDisk(), **options)
