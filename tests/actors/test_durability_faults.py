"""Durability on a bad disk: retries, the breaker, warnings, crashes of writers, a slow disk."""

from __future__ import annotations

import asyncio
import errno

import pytest
from samovar.actors.durability import Dropped, DurabilityOptions, PersistFailed
from samovar.runtime.kernel import Backoff
from samovar.storage.room import Limits
from samovar.storage.tokens import TokenIds

from tests.kit import virtual
from tests.kit.checkpoints import checkpoint
from tests.kit.disk import FaultDisk

from .storage_tree import IDENTITY, StorageTree, storage

STEADY = DurabilityOptions(
    IDENTITY.id,
    backoff=Backoff(1.0, 2.0, 60.0, 0.0),
    breaker_failures=3,
    probe=Backoff(5.0, 2.0, 60.0, 0.0),
)


async def pass_s(tree: StorageTree, seconds: float) -> None:
    await tree.kit.advance(seconds)
    await tree.calm()


@virtual
@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_folder", "make_folder", "space"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_any_failure_is_told_and_tried_again(kind: str, number: int) -> None:
    async with storage(options=STEADY, limits=Limits(0, 0.01)) as tree:
        fault = tree.disk.fail_kind(kind, number, times=1)
        tree.publish(checkpoint(1, 2), version=9)
        await tree.calm()
        if fault.hits and kind != "space":  # that the room is unknown stops nothing
            message = tree.residency.seen.popleft()
            assert isinstance(message, PersistFailed)
            assert (message.tokens.tolist(), message.version) == ([1, 2], 9)
            assert (await tree.durability.figures(5.0)).failed_spills == 1
        await pass_s(tree, 1.0)
        assert tree.heard() == [("Persisted", [1, 2], 9)]
        assert tree.files() == [".kv"]


@virtual
async def test_pauses_between_attempts_grow() -> None:
    async with storage(options=DurabilityOptions(IDENTITY.id, backoff=STEADY.backoff)) as tree:
        fault = tree.disk.fail_kind("sync", errno.EIO)
        tree.publish(checkpoint(1, 2))
        await tree.calm()
        attempts = []
        for _ in range(8):
            attempts.append(fault.hits)
            await pass_s(tree, 1.0)
        assert attempts == [1, 2, 2, 3, 3, 3, 3, 4]


@virtual
async def test_a_failure_in_a_row_opens_the_breaker_and_a_probe_closes_it() -> None:
    async with storage(options=STEADY) as tree:
        fault = tree.disk.fail_kind("sync", errno.EIO)
        for n in range(10):
            tree.publish(checkpoint(n, n))
        await tree.calm()
        assert fault.hits == 3
        assert (await tree.durability.figures(5.0)).degraded
        await pass_s(tree, 5.5)
        assert fault.hits == 4  # one probe, not ten
        await pass_s(tree, 5.0)
        assert fault.hits == 4  # the next pause is twice as long
        fault.clear()
        await pass_s(tree, 5.5)
        figures = await tree.durability.figures(5.0)
        assert (figures.degraded, figures.pending_snapshots, figures.spills) == (False, 0, 10)
        assert len(await tree.stored()) == 10


@virtual
async def test_a_flush_tries_a_disk_that_is_left_alone() -> None:
    async with storage(options=STEADY) as tree:
        fault = tree.disk.fail_kind("sync", errno.EIO)
        for n in range(5):
            tree.publish(checkpoint(n, n))
        await tree.calm()
        hits = fault.hits
        report = await tree.flush()
        assert (report.durable, report.failed, report.pending) == (False, 5, 5)
        assert fault.hits == hits + 5  # each version once
        fault.clear()
        assert (await tree.flush()).durable
        assert not (await tree.durability.figures(5.0)).degraded


@virtual
async def test_a_flush_that_shares_a_failing_run_is_told_the_same() -> None:
    async with storage(options=STEADY) as tree:
        tree.disk.fail_kind("sync", errno.EIO)
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2))
        await tree.until(lambda: gate.held == 1)
        flushes = [asyncio.ensure_future(tree.durability.flush(60.0)) for _ in range(2)]
        await tree.kit.settle()
        gate.open()
        reports = await tree.patiently(asyncio.gather(*flushes))
        assert [(report.durable, report.failed) for report in reports] == [(False, 1)] * 2


@virtual
async def test_b053_a_full_disk_warns_once_a_minute_and_recovers_with_the_space() -> None:
    """B053."""
    disk = FaultDisk(capacity_bytes=200_000)
    async with storage(disk, options=STEADY, limits=Limits(0, 0.0)) as tree:
        tree.publish(checkpoint(1, 2))
        await tree.calm()
        fault = disk.fail_kind("write", errno.ENOSPC)
        for n in range(20):
            tree.publish(checkpoint(10 + n, n))
        await pass_s(tree, 130.0)
        failing = [notice for notice in tree.notices if notice.event == "failing"]
        assert 2 <= len(failing) <= 3
        assert failing[-1].degraded
        assert isinstance(failing[0].error, OSError)
        fault.clear()
        await pass_s(tree, 61.0)
        assert tree.notices[-1].event == "recovered"
        assert (await tree.durability.figures(5.0)).spills > 1
        assert not (await tree.durability.figures(5.0)).degraded


@virtual
async def test_b053_the_oldest_go_so_that_the_newest_fit() -> None:
    disk = FaultDisk(capacity_bytes=200_000)
    async with storage(disk, options=STEADY, limits=Limits(0, 0.0)) as tree:
        for n in range(12):
            tree.publish(checkpoint(n, n), version=n)
            assert (await tree.flush()).durable
        stored = await tree.stored()
        assert [11, 11] in stored
        assert [0, 0] not in stored
        assert len(stored) < 12
        assert disk.used_bytes <= 200_000


@virtual
async def test_what_is_larger_than_the_cap_keeps_nothing_else_from_disk() -> None:
    async with storage(options=STEADY, limits=Limits(200_000, 0.0)) as tree:
        tree.publish(checkpoint(*range(9), nbytes=1_000_000))
        await tree.calm()
        for n in range(3):
            tree.publish(checkpoint(n, n))
        await tree.calm()
        assert len(await tree.stored()) == 3
        figures = await tree.durability.figures(5.0)
        assert (figures.degraded, figures.pending_snapshots) == (False, 1)
        report = await tree.flush()
        assert (report.durable, report.failed) == (False, 1)
        assert report.reason is not None
        assert "NoRoom" in report.reason


@virtual
async def test_b032_what_is_pending_is_held_until_it_is_durable_or_dropped() -> None:
    """B032: a victim is readable from the pending write; its bytes count until it is on disk."""
    async with storage(options=STEADY) as tree:
        gate = tree.hold("sync")
        published = [checkpoint(n, n, nbytes=100) for n in range(10)]
        for each in published:
            tree.publish(each, urgent=True)
        await tree.until(lambda: gate.held == 1)
        assert (await tree.durability.figures(5.0)).pending_spill_bytes == 1000
        gate.allow()
        await tree.until(lambda: gate.held == 2)
        assert (await tree.durability.figures(5.0)).pending_spill_bytes == 900
        assert len(tree.heard()) == 1
        gate.open()
        await tree.calm()
        assert len(await tree.stored()) == 10


@virtual
async def test_b007_a_slow_disk_keeps_nobody_waiting_and_every_file_counts_alone() -> None:
    """B007: 20 dirty checkpoints, a slow fsync, a flush with a deadline, then the process is gone."""
    async with storage(options=STEADY) as tree:
        gate = tree.hold("sync")
        for n in range(20):
            tree.publish(checkpoint(n, n))
        flushing = asyncio.ensure_future(tree.durability.flush(2.0))
        for done in range(5):
            await tree.until(lambda done=done: gate.held == done + 1)
            before_s = tree.kit.system.now_s()
            assert (await tree.durability.figures(0.1)).pending_snapshots == 20 - done
            assert tree.kit.system.now_s() == before_s
            gate.allow()
        await tree.until(lambda: gate.held == 6)
        report = await flushing
        assert (report.durable, report.flushed, report.pending) == (False, 5, 15)
        after = tree.disk.kill()
    async with storage(after) as again:
        assert len(await again.stored()) == 5
        assert again.opened[0].swept == 1
        assert again.files() == [".kv"] * 5


@virtual
async def test_a_writer_that_crashes_costs_one_attempt() -> None:
    async with storage(options=STEADY) as tree:
        tree.write_errors = [RuntimeError("a bug")]
        tree.publish(checkpoint(1, 2))
        await tree.calm()
        assert tree.heard() == [("PersistFailed", [1, 2], 1)]
        await pass_s(tree, 1.0)
        tree.kit.failure("storage/writers/0", RuntimeError)
        assert tree.heard() == [("Persisted", [1, 2], 1)]
        assert (await tree.archive.figures(5.0)).reserved_bytes == 0


@virtual
async def test_a_checkpoint_that_crashes_writers_is_left_to_a_flush() -> None:
    async with storage(options=STEADY) as tree:
        tree.write_errors = [RuntimeError("a bug") for _ in range(3)]
        tree.publish(checkpoint(1, 2))
        await tree.calm()
        await pass_s(tree, 300.0)
        assert len(tree.write_errors) == 1, "it was tried a third time"
        tree.write_errors.clear()
        for _ in range(2):
            tree.kit.failure("storage/writers/0", RuntimeError)
        assert (await tree.durability.figures(5.0)).pending_snapshots == 1
        assert (await tree.flush()).durable


@virtual
async def test_a_full_residency_is_told_later() -> None:
    async with storage(options=STEADY) as tree:
        tree.kit.hold(tree.residency.ref)
        while tree.residency.ref.tell("noise"):
            pass
        await tree.kit.settle()  # the actor takes the one that it is held at
        while tree.residency.ref.tell("noise"):
            pass
        tree.publish(checkpoint(1, 2), version=4)
        await tree.calm()
        assert len(tree.kit.record.letters) > 1
        while tree.kit.record.letters:
            tree.kit.dead_letter("residency", "overflow")
        tree.kit.release(tree.residency.ref)
        await pass_s(tree, 0.2)
        assert tree.heard() == [("Persisted", [1, 2], 4)]


@virtual
async def test_a_write_that_takes_too_long_is_given_up_and_leaves_nothing() -> None:
    async with storage(options=STEADY) as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2))
        await tree.until(lambda: gate.held == 1)
        await tree.kit.advance(601.0)
        gate.open()
        await pass_s(tree, 2.0)
        assert tree.heard()[-1] == ("Persisted", [1, 2], 1)
        assert tree.files() == [".kv"]
        assert (await tree.archive.figures(5.0)).reserved_bytes == 0


@virtual
async def test_a_drop_that_nobody_knows_changes_nothing() -> None:
    async with storage() as tree:
        tree.durability.ref.tell(Dropped(TokenIds.of((5, 6)), "", 1))
        tree.durability.urge(TokenIds.of((5, 6)), "")
        assert (await tree.flush()).durable
