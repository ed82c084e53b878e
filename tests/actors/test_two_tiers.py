"""Residency over the real SSD tier: archive, readers, writers and durability on a disk in memory."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from samovar.actors.archive import Find
from samovar.actors.caching.tiers import ResidencyCounts, ResidencyOptions
from samovar.actors.durability import GetFigures
from samovar.actors.residency import Residency, ResidencyActor
from samovar.runtime.caching import TreeCache
from samovar.runtime.kernel import ChildSpec
from samovar.runtime.tiers import DiskTier, Tiers
from samovar.storage.room import Limits
from samovar.storage.tokens import TokenIds

from tests.cache.whole import no_codec
from tests.kit.checkpoints import FakeCheckpoint, FakeGauge, checkpoint
from tests.kit.disk import FaultDisk
from tests.kit.loop import virtual

from .storage_tree import ROOT, StorageTree

if TYPE_CHECKING:
    from collections import deque

    from samovar.actors.caching.tiers import Taken


class _Real:
    """Stands where StorageTree expects its probe: the real residency. A writer passes for a borrower."""

    def __init__(self, make: Any) -> None:
        self.spec: ChildSpec[Any] = ChildSpec("residency", make, capacity=1000)
        self.ref = self.spec.ref
        self.seen: deque[Any]


class TwoTiers(StorageTree):
    """A storage tree whose checkpoints are kept, lent and announced by the real residency."""

    def __init__(
        self, disk: FaultDisk | None = None, *, max_bytes: int = 10_000, ssd_bytes: int = 0, **options: Any
    ) -> None:
        self.cache_counts = ResidencyCounts()
        self.cache_options = ResidencyOptions(max_bytes=max_bytes, hard_max_bytes=100 * max_bytes, **options)
        self.actor: ResidencyActor | None = None
        real = _Real(self._residency)
        super().__init__(disk or FaultDisk(), Limits(ssd_bytes, 0.0), residency=real)  # type: ignore[arg-type]
        self.cache = Residency(real.ref)

    def _residency(self) -> ResidencyActor:
        self.actor = ResidencyActor(
            self.archive,
            self.readers,
            self.durability,
            FakeGauge(),
            self.cache_options,
            counts=self.cache_counts,
        )
        return self.actor

    async def put(self, *checkpoints: FakeCheckpoint, session: str | None = None) -> None:
        for one in checkpoints:
            assert self.cache.put(one, session)
        await self.kit.settle()

    async def take(self, *ids: int) -> Taken:
        """Take, check the bytes of what is lent, and give it back."""
        asked = self.cache.take(TokenIds.of(ids), "", None, None, self.writers.refs[0], 1000.0)
        taken = await self.promptly(asked)
        if taken.lease is not None:
            lent = taken.lease.checkpoint
            assert lent.spec.tokens[: taken.length].tolist() == list(ids[: taken.length])
            assert b"".join(lent.segments()[0]) == bytes(FakeCheckpoint(lent.spec, 0).data)
            self.cache.release(taken.lease.id)
            await self.calm()
        return taken

    async def promptly(self, waiting: Any) -> Any:
        """Await something that threads and the clock bring about together."""
        task = asyncio.ensure_future(waiting)
        for _ in range(100):
            await self.calm()
            if task.done():
                break
            await self.kit.advance(0.02)
        return await task

    async def durable(self) -> bool:
        """Flush as an administrator does."""
        await self.patiently(self.cache.announce(10.0))
        report = await self.flush()
        await self.calm()
        return report.durable

    async def crash(self, ref: Any, kind: type) -> None:
        self.kit.crash_on(ref, kind)
        assert kind in {GetFigures, Find}

    def check(self) -> None:
        assert self.actor is not None
        self.actor.check_integrity()


def numbered(number: int, nbytes: int = 100) -> FakeCheckpoint:
    return checkpoint(number, number, number, nbytes=nbytes)


@virtual
async def test_after_a_flush_and_a_kill_everything_is_there() -> None:
    disk = FaultDisk()
    async with TwoTiers(disk) as tiers:
        await tiers.put(*(numbered(n) for n in range(5)))
        assert await tiers.durable()
    async with TwoTiers(disk.kill()) as tiers:
        for n in range(5):
            taken = await tiers.take(n, n, n, 9)
            assert (taken.tier, taken.length) == ("ssd", 3)
            taken = await tiers.take(n, n, n)
            assert (taken.tier, taken.length) == ("ram", 2)
        figures = await tiers.cache.figures(10.0)
        assert (figures.restores, figures.undurable) == (5, 0)
        tiers.check()


@virtual
async def test_b032_a_victim_whose_write_is_queued_is_still_a_hit() -> None:
    async with TwoTiers(max_bytes=300) as tiers:
        gate = tiers.hold("sync")
        await tiers.put(*(numbered(n) for n in range(10)))
        taken = await tiers.take(0, 0, 0, 9)
        assert (taken.tier, taken.length) == ("ram", 3)
        assert (await tiers.cache.figures(10.0)).entries == 10
        gate.open()
        await tiers.calm()
        figures = await tiers.cache.figures(10.0)
        assert (figures.bytes, figures.lost) == (300, 0)
        for n in range(10):
            assert (await tiers.take(n, n, n, 9)).length == 3
        tiers.check()


@virtual
async def test_b062_the_cap_of_the_disk_loses_nothing_that_ram_has() -> None:
    async with TwoTiers(ssd_bytes=3 * 40_000) as tiers:
        await tiers.put(*(numbered(n) for n in range(8)))
        await tiers.durable()
        assert len(await tiers.stored()) < 8
        figures = await tiers.cache.figures(10.0)
        assert (figures.entries, figures.lost) == (8, 0)
        assert figures.undurable >= 8 - len(await tiers.stored())
        for n in range(8):
            taken = await tiers.take(n, n, n, 9)
            assert (taken.tier, taken.length) == ("ram", 3)
        tiers.check()


@pytest.mark.parametrize("when", ["before", "amid"])
@virtual
async def test_a_flush_beside_a_clear_of_the_disk_is_believed_once_all_is_there_again(when: str) -> None:
    async with TwoTiers(max_bytes=1_000_000) as tiers:
        disk = DiskTier(
            ROOT, tiers._root, tiers.archive, tiers.readers, tiers.durability, tiers.counts, tiers.pool
        )
        cache = TreeCache(Tiers(tiers.residency.spec, tiers.cache, disk), (), no_codec, tiers.pool)
        await tiers.put(*(numbered(n) for n in range(4)))
        assert await tiers.durable()
        gate = tiers.hold("unlink" if when == "before" else "sync")
        await tiers.put(numbered(4))
        work = [cache.flush(60.0), cache.clear_cache("ssd")]
        if when == "before":
            work.reverse()
        tasks = []
        for each in work:
            tasks.append(asyncio.ensure_future(each))
            await tiers.calm()
        gate.open()
        reports = [await tiers.patiently(task) for task in tasks]
        assert reports[when == "before"].durable
        assert len(await tiers.stored()) == 5
        tiers.check()


@virtual
async def test_the_cap_of_the_disk_does_not_make_it_write_for_ever() -> None:
    async with TwoTiers(ssd_bytes=3 * 40_000) as tiers:
        await tiers.put(*(numbered(n) for n in range(8)))
        for _ in range(20):
            await tiers.calm()
        settled = tiers.counts.spills
        assert settled <= 24
        for _ in range(5):
            await tiers.calm()
        assert tiers.counts.spills == settled


@virtual
async def test_a_damaged_file_costs_only_itself() -> None:
    disk = FaultDisk()
    async with TwoTiers(disk, max_bytes=1_000_000) as tiers:
        await tiers.put(*(checkpoint(n, n, n, nbytes=50_000) for n in range(3)))
        assert await tiers.durable()
        (bad,) = [e for e in await tiers.patiently(tiers.archive.entries(10.0)) if e.tokens[0] == 1]
    disk = disk.kill()
    file = disk.open(bad.path)
    size = file.size()
    file.close()
    damaged = bytearray(size)
    reading = disk.open(bad.path)
    reading.read([memoryview(damaged)], 0)
    reading.close()
    damaged[-30_000] ^= 1
    disk.unlink(bad.path)
    writing = disk.create(bad.path)
    writing.write([memoryview(damaged)], 0)
    writing.close()
    async with TwoTiers(disk, max_bytes=1_000_000) as tiers:
        taken = await tiers.take(1, 1, 1, 9)
        assert (taken.tier, taken.miss_reason) == ("none", "restore_failed")
        for n in (0, 2):
            assert (await tiers.take(n, n, n, 9)).tier == "ssd"
        assert await tiers.stored() == [[0, 0, 0], [2, 2, 2]]
        await tiers.put(checkpoint(1, 1, 1, nbytes=50_000))
        assert await tiers.durable()
        assert (await tiers.take(1, 1, 1, 9)).tier == "ram"
        tiers.check()


@pytest.mark.parametrize("which", ["durability", "archive"])
@virtual
async def test_what_a_crashed_storage_actor_had_been_told_becomes_durable(which: str) -> None:
    async with TwoTiers() as tiers:
        gate = tiers.hold("sync")
        await tiers.put(*(numbered(n) for n in range(4)))
        victim: Any = tiers.durability if which == "durability" else tiers.archive
        kind: type = GetFigures if which == "durability" else Find
        await tiers.crash(victim.ref, kind)
        if which == "durability":
            victim.ref.tell(GetFigures())
        else:
            victim.ref.tell(Find(TokenIds.of([1]), "", 0))
        await tiers.kit.settle()
        tiers.kit.failure(victim.ref.path)
        gate.open()
        await tiers.restarted()
        tiers.kit.record.letters.clear()
        assert await tiers.durable()
        assert len(await tiers.stored()) == 4
        assert (await tiers.cache.figures(10.0)).undurable == 0
        tiers.check()


@virtual
async def test_a_clear_leaves_nothing_on_either_tier() -> None:
    async with TwoTiers() as tiers:
        await tiers.put(*(numbered(n) for n in range(3)))
        assert await tiers.durable()
        gate = tiers.hold("sync")
        await tiers.put(numbered(7))
        await tiers.kit.settle()
        clearing = tiers.cache.clear("all", 100.0)
        gate.open()
        report = await tiers.patiently(clearing)
        assert report.ram == 4
        await tiers.calm()
        assert await tiers.stored() == []
        assert tiers.files() == []
        assert (await tiers.take(7, 7, 7, 9)).tier == "none"
        tiers.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_random_life_on_two_tiers_serves_every_prefix_that_it_can(seed: int) -> None:
    @virtual
    async def run() -> None:
        chance, disk = random.Random(seed), FaultDisk()
        known: list[list[int]] = [[1]]
        for _ in range(2):
            async with TwoTiers(disk, max_bytes=500, demote_idle_s=50.0) as tiers:
                await tiers.put(checkpoint(1, nbytes=100))
                for _ in range(8):
                    await _live(tiers, known, chance)
                    tiers.check()
                assert await tiers.durable()
                for ids in chance.sample(known, min(4, len(known))):
                    assert (await tiers.take(*ids, 9)).length >= len(ids), ids
                assert (await tiers.cache.figures(10.0)).lost == 0
                await tiers.calm()
            disk = disk.crash(seed) if chance.random() < 0.5 else disk.kill()

    run()


async def _live(tiers: TwoTiers, known: list[list[int]], chance: random.Random) -> None:
    base = chance.choice(known)
    ids = base[: chance.randint(0, len(base))] + [chance.randint(0, 2) for _ in range(3)]
    match chance.choice(["put"] * 6 + ["take"] * 4 + ["flush", "pass", "drain"]):
        case "put":
            await tiers.put(checkpoint(*ids, nbytes=100, trimmable=chance.random() < 0.5))
            known.append(ids)
        case "take":
            await tiers.take(*ids)
        case "flush":
            assert await tiers.durable()
        case "drain":
            await tiers.promptly(tiers.cache.drain(1000.0))
        case _:
            await tiers.kit.advance(70.0)
            await tiers.calm()
