"""The archive: the lock, the scan, lookups while the disk is busy, what is told when files leave."""

from __future__ import annotations

import asyncio
import errno

import pytest
from samovar.actors.archive import JOB_LIMIT, RECOVER_MOST_S, RECOVER_S, Commit, Reserve, Withdrawn
from samovar.actors.caching.tiers import Sought
from samovar.actors.writer import WriteJob
from samovar.runtime.kernel import ActorCrashed, AskTimeout, Overloaded, Rejected, StartFailed
from samovar.storage.directory_errors import NoRoom, ReservationVoid
from samovar.storage.fs import FileLocked
from samovar.storage.room import Limits
from samovar.storage.tokens import TokenIds

from tests.kit import virtual
from tests.kit.checkpoints import FakeCheckpoint, checkpoint
from tests.kit.disk import FaultDisk

from .storage_tree import IDENTITY, ROOT, StorageTree, storage

FILE_BYTES = 100_000


def big(*ids: int) -> FakeCheckpoint:
    return checkpoint(*ids, nbytes=FILE_BYTES)


async def store(tree: StorageTree, *published: FakeCheckpoint) -> None:
    for each in published:
        tree.publish(each)
        assert (await tree.flush()).durable
    tree.residency.seen.clear()


def withdrawn(tree: StorageTree) -> list[list[int]]:
    return [m.tokens.tolist() for m in tree.residency.seen if isinstance(m, Withdrawn)]


# -- start --------------------------------------------------------------------------------------------


@virtual
async def test_a_held_lock_keeps_the_tree_from_starting_and_names_folder_and_holder() -> None:
    disk = FaultDisk(holder="4711")
    disk.make_folder(ROOT)
    lock = disk.lock(ROOT / "LOCK")
    tree = storage(disk)
    with pytest.raises(StartFailed) as failed:
        await tree.__aenter__()
    error: BaseException | None = failed.value
    while not isinstance(error, FileLocked):
        assert error is not None, "FileLocked is not among the causes"
        error = error.__cause__
    assert str(ROOT) in str(error)
    assert "4711" in str(error)
    lock.release()
    await tree.kit.settle()
    tree.pool.close()


@virtual
async def test_the_loop_is_free_while_the_directory_is_scanned() -> None:
    tree = storage()
    gate = tree.hold("list")
    starting = asyncio.ensure_future(tree.__aenter__())
    turns = 0
    while not gate.held:
        await asyncio.sleep(0.001)
        turns += 1
    assert not starting.done()
    assert turns > 0
    gate.open()
    await starting
    assert tree.opened[0].entries == 0
    await tree.__aexit__(None, None, None)


@virtual
async def test_a_start_finds_what_the_last_run_stored() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2), checkpoint(3, 4, namespace="adapter"))
    async with storage(tree.disk) as again:
        assert again.opened[0].entries == 2
        assert await again.stored() == [[1, 2], [3, 4]]
        found = await again.archive.find(TokenIds.of((1, 2, 9)), "", 0, 5.0)
        assert found.match is not None
        assert (found.match.length, found.shared) == (2, 2)
        assert await again.archive.find(TokenIds.of((3, 4, 9)), "", 0, 5.0) == Sought()
        assert await again.archive.covers(TokenIds.of((3, 4)), "adapter", 5.0)


@virtual
@pytest.mark.parametrize("kind", ["sync_folder", "list"])
async def test_a_folder_that_failed_a_restart_is_taken_up_later_off_the_loop(kind: str) -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2), checkpoint(3, 4, namespace="adapter"))
        (path,) = {entry.path for entry in await tree.archive.entries(5.0) if not entry.namespace}
        fault = tree.disk.fail_when(lambda op: op.kind == kind and op.path == path.parent, errno.EIO)
        tree.kit.crash_on(tree.archive.ref, Reserve)
        with pytest.raises(ActorCrashed):
            await tree.archive.reserve(checkpoint(5, 5).spec, 5.0)
        await tree.restarted()
        tree.kit.failure("storage/archive")
        tree.kit.dead_letter("storage/archive", "crashed")
        assert len(tree.opened[-1].failures) == 1
        assert await tree.stored() == [[3, 4]]
        assert not await tree.archive.covers(TokenIds.of((1, 2)), "", 5.0)
        assert (await tree.archive.figures(5.0)).unrecovered == 1
        fault.clear()
        gate = tree.hold("list")
        await tree.kit.advance(RECOVER_S + 0.1)
        await tree.until(lambda: gate.held == 1)
        assert await tree.archive.covers(TokenIds.of((3, 4)), "adapter", 0.1)  # answered meanwhile
        gate.open()
        await tree.calm()
        assert await tree.stored() == [[1, 2], [3, 4]]
        assert (await tree.archive.figures(5.0)).unrecovered == 0
        assert [(report.entries, len(report.failures)) for report in tree.opened] == [(0, 0), (1, 1), (2, 0)]


@virtual
async def test_a_folder_that_keeps_failing_is_tried_ever_more_rarely_and_told_once() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2))
    fault = tree.disk.fail_kind("sync_folder", errno.EIO)
    async with storage(tree.disk) as again:
        await again.kit.advance(0.1)
        for pause_s in (1, 2, 4, 8, 16, 32, RECOVER_MOST_S, RECOVER_MOST_S):
            hits = fault.hits
            await again.kit.advance(pause_s - 0.5)
            await again.calm()
            assert fault.hits == hits
            await again.kit.advance(0.5)
            await again.calm()
            assert fault.hits == hits + 1
        assert len(again.opened) == 1
        fault.clear()
        await again.kit.advance(RECOVER_MOST_S + 1.0)
        await again.calm()
        assert await again.stored() == [[1, 2]]
        assert len(again.opened) == 2


# -- lookups ------------------------------------------------------------------------------------------


@virtual
async def test_lookups_are_answered_while_the_disk_hangs() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2))
        gate = tree.hold("make_folder")
        reserving = asyncio.ensure_future(tree.archive.reserve(checkpoint(5, 6).spec, 50.0))
        await tree.until(lambda: gate.held == 1)
        assert await tree.archive.covers(TokenIds.of((1, 2)), "", 0.1)
        assert (await tree.archive.figures(0.1)).entries == 1
        assert len(await tree.archive.entries(0.1)) == 1
        assert await tree.archive.find(TokenIds.of((1, 2, 3)), "", 2, 0.1) == Sought(None, 2)
        assert not reserving.done()
        gate.open()
        tree.archive.abandon(await tree.patiently(reserving))


@virtual
async def test_a_find_beyond_what_is_known_says_nothing() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2, 3))
        found = await tree.archive.find(TokenIds.of((1, 2, 3, 4)), "", 2, 5.0)
        assert found.match is not None
        assert found.match.length == 3
        assert await tree.archive.find(TokenIds.of((1, 2, 3, 4)), "", 3, 5.0) == Sought(None, 3)


# -- reservations -------------------------------------------------------------------------------------


@virtual
async def test_no_room_is_a_typed_refusal() -> None:
    async with storage(limits=Limits(FILE_BYTES // 2, 0.0)) as tree:
        with pytest.raises(Rejected) as refused:
            await tree.patiently(tree.archive.reserve(big(1, 2).spec, 5.0))
        assert isinstance(refused.value.__cause__, NoRoom)
        assert refused.value.__cause__.reason == "cap"


@virtual
async def test_a_reservation_whose_asker_has_gone_is_undone() -> None:
    async with storage() as tree:
        gate = tree.hold("make_folder")
        with pytest.raises(AskTimeout):
            await tree.archive.reserve(big(1, 2).spec, 1.0)
        gate.open()
        await tree.calm()
        assert (await tree.archive.figures(5.0)).reserved_bytes == 0


@virtual
async def test_only_so_many_file_jobs_wait_but_what_ends_a_reservation_always_may() -> None:
    async with storage() as tree:
        held = await tree.patiently(tree.archive.reserve(checkpoint(1, 2).spec, 5.0))
        gate = tree.hold("make_folder")
        specs = [checkpoint(n, n).spec for n in range(JOB_LIMIT + 2)]
        asks = [asyncio.ensure_future(tree.archive.reserve(spec, 50.0)) for spec in specs]
        last = asks[-1]
        await tree.until(last.done)
        with pytest.raises(Rejected) as refused:
            await last
        assert isinstance(refused.value.__cause__, Overloaded)
        with pytest.raises(Rejected) as refused:
            await tree.archive.clear(5.0)
        assert isinstance(refused.value.__cause__, Overloaded)
        tree.archive.abandon(held)
        gate.open()
        for ask in asks[:-1]:
            tree.archive.abandon(await tree.patiently(ask))
        await tree.calm()
        assert (await tree.archive.figures(5.0)).reserved_bytes == 0


@virtual
async def test_what_was_reserved_before_a_clear_cannot_come_in_after_it() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2))
        of = checkpoint(5, 6)
        reservation = await tree.patiently(tree.archive.reserve(of.spec, 5.0))
        written = await tree.patiently(tree.writers.write(WriteJob(reservation, of, IDENTITY.id), 5.0))
        assert await tree.patiently(tree.archive.clear(5.0)) == 1
        with pytest.raises(Rejected) as refused:
            await tree.patiently(tree.archive.commit(reservation, written, 5.0))
        assert isinstance(refused.value.__cause__, ReservationVoid)
        assert tree.files() == []
        assert withdrawn(tree) == [[1, 2]]


@virtual
async def test_clearing_one_namespace_leaves_the_others() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2), checkpoint(1, 2, namespace="adapter"))
        assert await tree.patiently(tree.archive.clear(5.0, "adapter")) == 1
        assert await tree.stored() == [[1, 2]]
        assert await tree.archive.covers(TokenIds.of((1, 2)), "", 5.0)
        assert not await tree.archive.covers(TokenIds.of((1, 2)), "adapter", 5.0)


@pytest.mark.parametrize(("how", "operation"), [("clear", "unlink"), ("quarantine", "rename")])
@virtual
async def test_nothing_passes_for_covered_while_files_are_taken_out_of_use(how: str, operation: str) -> None:
    """What is written meanwhile would be taken for durable, and leave with the file that covered it."""
    async with storage() as tree:
        await store(tree, checkpoint(1, 2), checkpoint(3, 4))
        gate = tree.hold(operation)
        if how == "clear":
            leaving = asyncio.ensure_future(tree.archive.clear(5.0))
        else:
            tree.archive.quarantine((await tree.archive.entries(5.0))[0].id, "corrupt_tensor")
        await tree.until(lambda: bool(gate.held))
        for ids in ((1, 2), (3, 4)):
            assert not await tree.archive.covers(TokenIds.of(ids), "", 5.0)
        gate.open()
        await tree.calm()
        if how == "clear":
            assert await leaving == 2
        else:
            assert await tree.archive.covers(TokenIds.of((3, 4)), "", 5.0)


# -- what leaves --------------------------------------------------------------------------------------


@virtual
async def test_b062_what_the_cap_evicts_is_told_and_not_covered_any_more() -> None:
    async with storage(limits=Limits(int(FILE_BYTES * 2.9), 0.0)) as tree:
        await store(tree, big(1, 1), big(2, 2))
        tree.publish(big(3, 3))
        assert (await tree.flush()).durable
        assert withdrawn(tree) == [[1, 1]]
        assert not await tree.archive.covers(TokenIds.of((1, 1)), "", 5.0)
        assert await tree.stored() == [[2, 2], [3, 3]]


@virtual
async def test_b062_a_file_removed_by_hand_is_told_once_it_is_missed() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2))
        (entry,) = await tree.archive.entries(5.0)
        tree.disk.unlink(entry.path)
        tree.archive.forget(entry.id)
        tree.archive.forget(entry.id)
        await tree.calm()
        assert withdrawn(tree) == [[1, 2]]
        assert await tree.stored() == []


@virtual
async def test_what_is_superseded_is_still_covered_and_not_told() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2), checkpoint(1, 2, 3))
        assert withdrawn(tree) == []
        assert await tree.stored() == [[1, 2, 3]]
        assert await tree.archive.covers(TokenIds.of((1, 2)), "", 5.0)


@virtual
async def test_a_quarantined_file_is_told_and_set_aside() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 2))
        (entry,) = await tree.archive.entries(5.0)
        tree.archive.quarantine(entry.id, "corrupt_tensor")
        tree.archive.quarantine("unknown", "corrupt_tensor")
        await tree.calm()
        assert withdrawn(tree) == [[1, 2]]
        figures = await tree.archive.figures(5.0)
        assert (figures.entries, figures.quarantined) == (0, 1)


@virtual
async def test_a_full_subscriber_is_told_later() -> None:
    async with storage() as tree:
        await store(tree, *(checkpoint(n, n) for n in range(3)))
        tree.kit.hold(tree.residency.ref)
        while tree.residency.ref.tell("noise"):
            pass
        await tree.kit.settle()  # the actor takes the one that it is held at
        while tree.residency.ref.tell("noise"):
            pass
        assert await tree.patiently(tree.archive.clear(5.0)) == 3
        await tree.calm()
        assert len(tree.kit.record.letters) > 1
        while tree.kit.record.letters:
            tree.kit.dead_letter("residency", "overflow")
        tree.kit.release(tree.residency.ref)
        await tree.kit.advance(0.2)
        assert sorted(withdrawn(tree)) == [[0, 0], [1, 1], [2, 2]]


@virtual
async def test_uses_are_touched_in_one_go_and_before_anything_is_evicted() -> None:
    async with storage(limits=Limits(int(FILE_BYTES * 2.9), 0.0)) as tree:
        await store(tree, big(1, 1), big(2, 2))
        oldest = (await tree.archive.entries(5.0))[0]
        before = sum(operation.kind == "touch" for operation in tree.disk.log)
        for _ in range(10):
            tree.archive.touch(oldest.id)
        tree.archive.touch("unknown")
        tree.publish(big(3, 3))
        assert (await tree.flush()).durable
        assert withdrawn(tree) == [[2, 2]]
        touched = sum(operation.kind == "touch" for operation in tree.disk.log) - before
        assert touched == 2  # the used one, and the new one


@virtual
async def test_uses_reach_the_disk_without_any_write() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 1), checkpoint(2, 2))
        first = (await tree.archive.entries(5.0))[0]
        tree.archive.touch(first.id)
        await tree.kit.advance(1.5)
        await tree.calm()
        assert (await tree.archive.entries(5.0))[-1].id == first.id
    async with storage(tree.disk) as again:
        assert (await again.archive.entries(5.0))[-1].id == first.id


@virtual
async def test_an_orderly_stop_does_what_is_still_to_be_done() -> None:
    async with storage() as tree:
        await store(tree, checkpoint(1, 1), checkpoint(2, 2))
        first = (await tree.archive.entries(5.0))[0]
        reservation = await tree.patiently(tree.archive.reserve(checkpoint(3, 3).spec, 5.0))
        tree.disk.put(reservation.temp_path, b"half a file")
        tree.archive.touch(first.id)
        tree.archive.abandon(reservation)
    assert tree.files() == [".kv", ".kv"]
    async with storage(tree.disk) as again:
        assert again.opened[0].swept == 0
        assert (await again.archive.entries(5.0))[-1].id == first.id


# -- crashes ------------------------------------------------------------------------------------------


@virtual
async def test_a_crash_in_the_middle_of_a_commit_loses_nothing_that_was_published() -> None:
    async with storage() as tree:
        tree.kit.crash_on(tree.archive.ref, Commit)
        tree.publish(checkpoint(1, 2))
        await tree.calm()
        await tree.restarted()
        tree.kit.failure("storage/archive")
        tree.kit.dead_letter("storage/archive", "crashed")
        assert await tree.stored() == [[1, 2]]  # found by the scan
        tree.publish(checkpoint(1, 2))  # as residency does, which saw durability restart
        assert (await tree.flush()).durable
        assert ("Persisted", [1, 2], 1) in tree.heard()
        assert tree.written == [[1, 2]]  # covered: not written again
        assert tree.counts.spills == 0


@virtual
async def test_counters_outlive_a_crash_and_the_lock_is_passed_on() -> None:
    async with storage(limits=Limits(int(FILE_BYTES * 2.9), 0.0)) as tree:
        await store(tree, big(1, 1), big(2, 2), big(3, 3))
        assert (await tree.archive.figures(5.0)).evictions == 1
        tree.kit.crash_on(tree.archive.ref, Reserve)
        with pytest.raises(ActorCrashed):
            await tree.archive.reserve(checkpoint(5, 5).spec, 5.0)
        await tree.restarted()
        tree.kit.failure("storage/archive")
        tree.kit.dead_letter("storage/archive", "crashed")
        figures = await tree.archive.figures(5.0)
        assert (figures.evictions, figures.entries) == (1, 2)
        assert len(tree.opened) == 2


@virtual
async def test_an_incarnation_that_ended_gives_the_lock_up_once_its_last_job_has_ended() -> None:
    async with storage() as tree:
        gate = tree.hold("make_folder")
        reserving = asyncio.ensure_future(tree.archive.reserve(checkpoint(1, 1).spec, 500.0))
        await tree.until(lambda: gate.held == 1)
        tree.kit.crash_on(tree.archive.ref, Reserve)
        with pytest.raises(ActorCrashed):
            await tree.archive.reserve(checkpoint(5, 5).spec, 5.0)
        with pytest.raises(ActorCrashed):
            await reserving
        await tree.kit.advance(6.0)  # past the budget of its end: the job still hangs
        tree.kit.unstoppable("storage/archive")
        gate.open()
        await tree.restarted()
        tree.kit.failure("storage/archive")
        tree.kit.dead_letter("storage/archive", "crashed")
        assert await tree.stored() == []
        assert len(tree.opened) == 2


@virtual
async def test_a_directory_that_cannot_be_opened_says_so() -> None:
    disk = FaultDisk()
    disk.fail_kind("make_folder", errno.EROFS)
    tree = storage(disk)
    with pytest.raises(StartFailed, match="Read-only"):
        await tree.__aenter__()
    await tree.kit.settle()
    tree.pool.close()
