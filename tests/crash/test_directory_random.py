"""Random lives of a directory on a disk that fails, fills up and loses power, against the ledger."""

from __future__ import annotations

import contextlib
import errno

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from samovar.storage.directory_errors import NoRoom

from tests.kit.disk import FaultDisk
from tests.kit.stored import content_of, read_back, spec_of

from .ledger import LIMITS, Workload, branch, check, checkpoint_bytes

ERRNOS = st.sampled_from([errno.EIO, errno.ENOSPC, errno.EPERM, errno.EBUSY])
NAMESPACES = st.sampled_from(["", "lora"])


class DirectoryLife(RuleBasedStateMachine):
    """One root over many starts. Errors of the disk may leave as OSError or NoRoom, and lose nothing else."""

    @initialize()
    def start(self) -> None:
        self._start(FaultDisk())

    def _start(self, disk: FaultDisk) -> None:
        old = self.life.ledger if hasattr(self, "life") else None
        self.life = Workload(disk)
        if old is not None:
            self.life.ledger = old
        self.life.directory.open()

    @property
    def entries(self) -> tuple[object, ...]:
        return self.life.directory.entries()

    @rule(number=st.integers(0, 6), length=st.integers(1, 20), namespace=NAMESPACES, trimmable=st.booleans())
    def store(self, number: int, length: int, namespace: str, trimmable: bool) -> None:
        with contextlib.suppress(OSError, NoRoom):
            self.life.store(spec_of(branch(number, length), namespace, trimmable=trimmable))

    @rule(nth=st.integers(1, 25), number=ERRNOS)
    def break_soon(self, nth: int, number: int) -> None:
        self.life.disk.fail_at(nth, number)

    @rule(kind=st.sampled_from(["unlink", "rename", "touch", "sync_folder", "sync"]), number=ERRNOS)
    def break_some(self, kind: str, number: int) -> None:
        self.life.disk.fail_kind(kind, number, times=2)

    @rule(free=st.integers(0, 6))
    def fill_up(self, free: int) -> None:
        self.life.disk.capacity_bytes = self.life.disk.used_bytes + free * 25_000

    @rule()
    def empty(self) -> None:
        self.life.disk.capacity_bytes = None

    @precondition(lambda self: self.entries)
    @rule(place=st.integers(0, 100))
    def touch(self, place: int) -> None:
        entries = self.life.directory.entries()
        entry = entries[place % len(entries)]
        if self.life.directory.touch(entry.id):
            assert self.life.directory.entries()[-1].id == entry.id

    @precondition(lambda self: self.entries)
    @rule(place=st.integers(0, 100))
    def quarantine(self, place: int) -> None:
        entries = self.life.directory.entries()
        entry = entries[place % len(entries)]
        self.life.ledger.lost.add(entry.path)
        self.life.directory.quarantine(entry.id, "corrupt_tensor")
        assert entry.id not in {other.id for other in self.life.directory.entries()}

    @precondition(lambda self: self.entries)
    @rule(place=st.integers(0, 100))
    def remove_by_hand(self, place: int) -> None:
        entries = self.life.directory.entries()
        entry = entries[place % len(entries)]
        self.life.ledger.lost.add(entry.path)
        with contextlib.suppress(OSError):
            self.life.disk.unlink(entry.path)
            self.life.directory.forget(entry.id)

    @rule(seed=st.integers(0, 1000))
    def lose_power(self, seed: int) -> None:
        after = self.life.disk.crash(seed)
        self._restart(after)

    @rule()
    def kill(self) -> None:
        self._restart(self.life.disk.kill())

    def _restart(self, after: FaultDisk) -> None:
        after.capacity_bytes = None
        check(after.kill(), self.life.ledger)
        self._start(after)

    @invariant()
    def everything_served_is_what_was_stored(self) -> None:
        if not hasattr(self, "life"):
            return
        directory = self.life.directory
        directory.check_integrity()
        healthy = self.life.disk.kill()
        for entry in directory.entries():
            assert read_back(healthy, entry) == content_of(spec_of(entry.tokens, entry.namespace))
        assert directory.figures().total_bytes <= LIMITS.max_bytes
        known = directory.figures()
        assert checkpoint_bytes(healthy) == known.entry_bytes + known.outdated_bytes + self._stuck()
        for namespace, tokens in self.life.ledger.due():
            assert directory.covers(tokens, namespace)

    def _stuck(self) -> int:
        """Return the bytes of checkpoint files that are of no use and would not go."""
        directory = self.life.directory
        holds = directory._stock.removals.holds
        files = self.life.disk.files()
        return sum(len(data) for path, data in files.items() if path.suffix == ".kv" and holds(path))


TestDirectoryLife = pytest.mark.timeout(60)(DirectoryLife.TestCase)  # many whole lives: seconds of work
TestDirectoryLife.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
