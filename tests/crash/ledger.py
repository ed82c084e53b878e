"""A workload over the directory, and what it may and may not lose, kept outside the disk."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from samovar.storage.directory import CheckpointDirectory
from samovar.storage.identity import Identity
from samovar.storage.room import Limits
from samovar.storage.tokens import TokenIds

from tests.kit.stored import content_of, read_back, spec_of, write_published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samovar.storage.spec import CheckpointSpec

    from tests.kit.disk import FaultDisk
    from tests.kit.faults import Operation

ROOT = Path("/cache")
IDENTITY = Identity("a" * 32, {"model": "tiny"})
FILE_BYTES = 50_000
LIMITS = Limits(max_bytes=int(4.4 * FILE_BYTES), free_floor=0.0, quarantine_max_bytes=FILE_BYTES)
Key: TypeAlias = "tuple[str, TokenIds]"
Phase: TypeAlias = Literal["keeping", "evicting", "losing"]


def branch(number: int, length: int = 12) -> list[int]:
    return [number * 100 + place for place in range(length)]


@dataclass
class Ledger:
    """What was acknowledged, and the file that serves it; paths removed on purpose; keys cleared."""

    acknowledged: dict[Key, Path] = field(default_factory=dict)
    lost: set[Path] = field(default_factory=set)
    cleared: set[Key] = field(default_factory=set)
    phase: Phase = "losing"

    def watch(self, operation: Operation, disk: FaultDisk, stuck_bytes: int = 0) -> None:
        """Note what leaves on purpose.

        In a commit only what something durable covers may leave, in a reservation only what the cap demands;
        on a full disk the oldest. ``stuck_bytes``: leftovers that the directory believes to be there.
        """
        if operation.kind not in {"unlink", "rename"}:
            return
        full = disk.capacity_bytes is not None and disk.used_bytes + FILE_BYTES > disk.capacity_bytes
        over = checkpoint_bytes(disk) + stuck_bytes + FILE_BYTES > LIMITS.max_bytes
        if self.phase == "losing" or full or (self.phase == "evicting" and over):
            self.lost.add(operation.path)

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def due(self) -> list[Key]:
        """Return the keys that must be served after any crash now."""
        return [key for key, path in self.acknowledged.items() if path not in self.lost]


class Workload:
    """Runs against ``disk`` and keeps the ledger; a PowerLoss leaves from wherever it strikes."""

    def __init__(self, disk: FaultDisk) -> None:
        self.disk = disk
        self.ledger = Ledger()
        self.directory = CheckpointDirectory(disk, ROOT, IDENTITY, LIMITS, lambda: 1000.0)
        disk.hook = self.watch

    def watch(self, operation: Operation) -> None:
        self.ledger.watch(operation, self.disk, self.directory.figures().stuck_bytes)

    def store(self, spec: CheckpointSpec, created_s: float = 1.0) -> None:
        with self.ledger.during("evicting"):
            reservation = self.directory.reserve(spec)
        with self.ledger.during("keeping"):
            try:
                stored = write_published(self.disk, self.directory, reservation, spec, created_s)
            except OSError as error:
                with self.ledger.during("losing"):  # when it says that the disk is full
                    self.directory.abandon(reservation, error)
                raise
            gone = self.directory.commit(reservation, stored)
            for entry in gone:  # served by the new file from now on, and lost with it
                self.ledger.acknowledged[entry.namespace, entry.tokens] = reservation.final_path
            self.ledger.acknowledged[spec.namespace, spec.tokens] = reservation.final_path
            self.ledger.cleared.discard((spec.namespace, spec.tokens))

    def clear(self, namespace: str | None) -> None:
        self.directory.clear(namespace)
        for key in list(self.ledger.acknowledged):
            if namespace is None or key[0] == namespace:
                self.ledger.cleared.add(key)
                del self.ledger.acknowledged[key]

    def run(self) -> None:
        """Write, publish, commit, supersede, touch, evict, quarantine, abandon, clear."""
        self.directory.open()
        self.store(spec_of(branch(1)))
        self.store(spec_of(branch(2), "lora"))
        self.store(spec_of(branch(1, 18)))  # supersedes the first
        self.store(spec_of(branch(3), trimmable=False))
        self.directory.touch(self.directory.entries()[0].id)
        self.store(spec_of(branch(4)))
        self.store(spec_of(branch(5)))  # evicts
        self.store(spec_of(branch(5), reusable_from=4), created_s=2.0)  # replaces, evicts
        self.directory.quarantine(self.directory.entries()[-1].id, "corrupt_tensor")
        held = self.directory.reserve(spec_of(branch(6)))
        self.disk.create(held.temp_path).close()
        self.directory.abandon(held)
        self.clear("lora")
        self.store(spec_of(branch(7), "lora"))
        self.clear(None)
        self.store(spec_of(branch(8)))
        self.directory.close()

    def run_little(self) -> None:
        """Commit, supersede, evict: enough for recovery to have something of everything to do."""
        self.directory.open()
        for number in range(4):
            self.store(spec_of(branch(number), "lora" if number % 2 else ""))
        self.store(spec_of(branch(2, 18)))
        self.store(spec_of(branch(9)))
        self.directory.quarantine(self.directory.entries()[0].id, "corrupt_tensor")


def check(after: FaultDisk, ledger: Ledger) -> None:
    """Start on what a crash left: everything due is there, nothing torn is, orphans and excess are gone."""
    found = checkpoint_bytes(after)
    directory = CheckpointDirectory(after, ROOT, IDENTITY, LIMITS, lambda: 2000.0)
    trimming = Ledger()
    after.hook = lambda operation: trimming.watch(operation, after)
    report = directory.open()
    after.hook = None
    directory.check_integrity()
    assert not report.failures
    for entry in directory.entries():
        spec = spec_of(entry.tokens, entry.namespace)
        assert read_back(after, entry) == content_of(spec), f"{entry} is not what was stored"
        assert (entry.namespace, entry.tokens) not in ledger.cleared, f"{entry} came back after a clear"
    if report.trimmed:
        assert found > LIMITS.max_bytes, "evicted without need"
    for namespace, tokens in ledger.due():
        path = ledger.acknowledged[namespace, tokens]
        trimmed = report.trimmed and path in trimming.lost
        assert trimmed or directory.covers(tokens, namespace), f"{path} was acknowledged and is gone"
    assert not after.list(ROOT / IDENTITY.id / "tmp"), "orphans are left"
    assert checkpoint_bytes(after) == directory.figures().entry_bytes
    assert directory.figures().total_bytes <= LIMITS.max_bytes
    directory.close()


def checkpoint_bytes(disk: FaultDisk) -> int:
    """Return the bytes of all checkpoint files outside the quarantine."""
    return sum(
        len(data)
        for path, data in disk.files().items()
        if path.suffix == ".kv" and path.parent.name != "quarantine"
    )


def covered(disk: FaultDisk) -> set[Key]:
    """Return every key that a start finds."""
    directory = CheckpointDirectory(disk, ROOT, IDENTITY, LIMITS, lambda: 3000.0)
    directory.open()
    directory.close()
    return {(entry.namespace, entry.tokens) for entry in directory.entries()}


def go_on(disk: FaultDisk) -> None:
    """Store and restore on a recovered disk."""
    workload = Workload(disk)
    workload.directory.open()
    workload.store(spec_of(branch(30)))
    match = workload.directory.find(TokenIds.of([*branch(30), 0]), "")
    assert match is not None
    assert read_back(disk, match.entry) == content_of(spec_of(branch(30)))
    workload.directory.close()
