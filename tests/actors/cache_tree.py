"""Residency over an SSD tier in memory and a durability that the test plays itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from samovar.actors.caching.tiers import ResidencyCounts, ResidencyOptions, Taken
from samovar.actors.durability import DirtyCheckpoint, Persisted, PersistFailed
from samovar.actors.residency import Residency, ResidencyActor
from samovar.runtime.kernel import ActorRef, ChildSpec, RestartLimit, SupervisorSpec
from samovar.storage.tokens import TokenIds

from tests.kit import KitSystem
from tests.kit.checkpoints import FakeDisk, FakeGauge
from tests.kit.probe import Probe

if TYPE_CHECKING:
    from tests.kit.checkpoints import FakeCheckpoint


@dataclass(frozen=True)
class Urged:
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Dropped:
    ids: tuple[int, ...]
    version: int


@dataclass(frozen=True)
class Reset:
    pass


class ProbedDurability:
    """Durability's face over a probe: the test reads what it was told and answers in its stead."""

    def __init__(self, ref: ActorRef[Any]) -> None:
        self.ref = ref

    def dirty(self, checkpoint: DirtyCheckpoint) -> bool:
        return self.ref.tell(checkpoint)

    def urge(self, tokens: TokenIds, namespace: str) -> bool:
        return self.ref.tell(Urged(tuple(tokens.tolist())))

    def dropped(self, tokens: TokenIds, namespace: str, version: int) -> bool:
        return self.ref.tell(Dropped(tuple(tokens.tolist()), version))

    def reset(self) -> bool:
        return self.ref.tell(Reset())


class Cache:
    """``async with Cache(...) as cache``. On leaving, all leases must be released and all books agree."""

    def __init__(
        self,
        *,
        ssd: bool = True,
        max_bytes: int = 1000,
        hard_max_bytes: int | None = None,
        durability_capacity: int = 1000,
        restarts: int = 5,
        branch_restarts: int = 0,
        **options: Any,
    ) -> None:
        self.disk = FakeDisk()
        self.gauge = FakeGauge()
        self.counts = ResidencyCounts()
        self.durability = Probe("durability", capacity=durability_capacity)
        self.borrower = Probe("borrower")
        hard = 10 * max_bytes if hard_max_bytes is None else hard_max_bytes
        self.options = ResidencyOptions(max_bytes=max_bytes, hard_max_bytes=hard, **options)
        self._ssd = ssd
        self.actors: deque[ResidencyActor] = deque(maxlen=1)
        spec = ChildSpec("residency", self._make, capacity=1000)
        self.residency = Residency(spec.ref)
        self.leases: set[int] = set()
        limit = RestartLimit(restarts, 60.0)
        branch = SupervisorSpec("storage", [self.durability.spec], limit=limit)
        root_limit = RestartLimit(max(restarts, branch_restarts), 60.0)
        root = SupervisorSpec("root", [branch, self.borrower.spec, spec], limit=root_limit)
        self.kit = KitSystem(root)

    def _make(self) -> ResidencyActor:
        actor = ResidencyActor(
            self.disk if self._ssd else None,
            self.disk if self._ssd else None,
            ProbedDurability(self.durability.ref) if self._ssd else None,
            self.gauge,
            self.options,
            counts=self.counts,
        )
        self.actors.append(actor)
        return actor

    @property
    def actor(self) -> ResidencyActor:
        return self.actors[0]

    async def __aenter__(self) -> Self:
        await self.kit.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None:
            await self.release_all()
            figures = await self.residency.figures(1.0)
            assert figures.leases == figures.waiting == figures.restoring == 0, figures
            self.actor.check_integrity()
        await self.kit.__aexit__(*error)

    # -- using it ---------------------------------------------------------------------------------------

    async def put(self, *checkpoints: FakeCheckpoint, session: str | None = None) -> None:
        for one in checkpoints:
            assert self.residency.put(one, session)
        await self.kit.settle()

    async def take(
        self,
        *ids: int,
        namespace: str = "",
        session: str | None = None,
        prefill_tps: float | None = None,
        timeout_s: float = 100.0,
    ) -> Taken:
        """Take, and check what every answer must hold."""
        tokens = TokenIds.of(ids)
        taken = await self.residency.take(
            tokens, namespace, session, prefill_tps, self.borrower.ref, timeout_s
        )
        assert taken.length <= max(0, len(tokens) - 1)
        assert taken.length <= taken.diverged_at <= len(tokens)
        assert (taken.lease is None) == (taken.tier == "none") == (taken.length == 0)
        assert taken.lease is not None or taken.miss_reason is not None
        if taken.lease is not None:
            spec = taken.lease.checkpoint.spec
            assert spec.namespace == namespace
            assert spec.tokens[: taken.length] == tokens[: taken.length]
            assert spec.serves(taken.length)
            assert taken.lease.length == taken.length
            self.leases.add(taken.lease.id)
        return taken

    async def touch(self, *ids: int, **how: Any) -> tuple[str, int]:
        """Take and give back at once; return tier and length."""
        taken = await self.take(*ids, **how)
        await self.release_all()
        return taken.tier, taken.length

    async def release_all(self) -> None:
        for lease_id in self.leases:
            self.residency.release(lease_id)
        self.leases.clear()
        await self.kit.settle()

    def held(self) -> list[list[int]]:
        """Return the tokens of what RAM holds, sorted."""
        return sorted(entry.tokens.tolist() for entry in self.actor._ram.entries)

    # -- playing durability -----------------------------------------------------------------------------

    def announced(self) -> list[DirtyCheckpoint]:
        """Take everything that durability was told; all of it must be announcements."""
        told = list(self.durability.seen)
        self.durability.seen.clear()
        assert all(isinstance(message, DirtyCheckpoint) for message in told), told
        return told

    async def persist(self, *dirty: DirtyCheckpoint) -> None:
        """Write files and say so."""
        for one in dirty:
            self.disk.hold(one.checkpoint)  # type: ignore[arg-type]
            spec = one.checkpoint.spec
            self.residency.ref.tell(Persisted(spec.tokens, spec.namespace, one.version))
        await self.kit.settle()

    async def fail_to_persist(self, *dirty: DirtyCheckpoint) -> None:
        for one in dirty:
            spec = one.checkpoint.spec
            error = OSError(28, "no space left on device")
            self.residency.ref.tell(PersistFailed(spec.tokens, spec.namespace, one.version, error))
        await self.kit.settle()
