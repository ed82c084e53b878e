"""The readers' pool: nothing is taken on trust, every failure is typed, nobody waits for a writer."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from samovar.actors.reader import JOB_LIMIT, ReaderCounts, Readers, Restore, RestoreJob
from samovar.actors.restoring import EntryMismatch
from samovar.runtime.engine.errors import StateMismatch
from samovar.runtime.kernel import ActorCrashed, AskTimeout, Overloaded, Rejected, StartFailed
from samovar.storage.container import write_container
from samovar.storage.container_errors import CorruptHeader, CorruptTensor, RestoreCancelled
from samovar.storage.tokens import TokenIds

from tests.kit import virtual
from tests.kit.checkpoints import FakeCheckpoint, checkpoint

from .storage_tree import StorageTree, storage

if TYPE_CHECKING:
    from samovar.storage.entry import StoredEntry

IDS = (1, 2, 3, 4)


async def stored(tree: StorageTree, of: FakeCheckpoint) -> StoredEntry:
    """Bring a checkpoint to disk as durability does, and return its entry."""
    tree.publish(of)
    assert (await tree.flush()).durable
    return next(e for e in await tree.archive.entries(5.0) if e.tokens == of.spec.tokens)


async def refusal(tree: StorageTree, entry: StoredEntry) -> BaseException | None:
    with pytest.raises(Rejected) as refused:
        await tree.patiently(tree.readers.restore(RestoreJob("r", entry), 5.0))
    return refused.value.__cause__


@virtual
async def test_a_file_that_is_gone_is_file_not_found() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS))
        tree.disk.unlink(entry.path)
        assert isinstance(await refusal(tree, entry), FileNotFoundError)
        assert tree.reader_counts.failed == 1


@virtual
@pytest.mark.parametrize(
    ("at", "kind"), [(100, CorruptHeader), (-1, CorruptTensor)], ids=["header", "last byte"]
)
async def test_a_flipped_byte_is_found(at: int, kind: type[Exception]) -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS, nbytes=1000))
        data = bytearray(tree.disk.files()[entry.path])
        data[at] ^= 1
        tree.disk.put(entry.path, bytes(data))
        assert isinstance(await refusal(tree, entry), kind)


@virtual
async def test_without_verification_tensors_are_not_hashed_and_headers_are() -> None:
    async with storage(verify=False) as tree:
        entry = await stored(tree, checkpoint(*IDS, nbytes=1000))
        data = bytearray(tree.disk.files()[entry.path])
        data[-1] ^= 1
        tree.disk.put(entry.path, bytes(data))
        restored = await tree.patiently(tree.readers.restore(RestoreJob("r", entry), 5.0))
        assert restored.read_bytes == 1000
        data[100] ^= 1
        tree.disk.put(entry.path, bytes(data))
        assert isinstance(await refusal(tree, entry), CorruptHeader)


@virtual
@pytest.mark.parametrize(
    "other",
    [
        {"namespace": "adapter"},
        {"tokens": TokenIds.of((9, 2, 3, 4))},
        {"tokens": TokenIds.of((1, 2, 3))},
    ],
    ids=["namespace", "tokens", "length"],
)
async def test_a_file_of_another_key_is_never_used(other: dict[str, object]) -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS))
        assert isinstance(await refusal(tree, replace(entry, **other)), EntryMismatch)


@virtual
async def test_a_file_that_serves_less_than_its_entry_says_is_never_used() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS, trimmable=False))
        assert isinstance(await refusal(tree, replace(entry, trimmable=True)), EntryMismatch)
        assert isinstance(await refusal(tree, replace(entry, reusable_from=2)), EntryMismatch)


@virtual
async def test_a_file_of_another_identity_is_never_used() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS))
        data = tree.disk.files()[entry.path].replace(b"model-1", b"model-2")
        tree.disk.put(entry.path, data)
        assert isinstance(await refusal(tree, entry), CorruptHeader)  # the header's hash sees it first


@virtual
async def test_a_whole_file_of_another_identity_is_never_used() -> None:
    async with storage() as tree:
        of = checkpoint(*IDS)
        entry = await stored(tree, of)
        tree.disk.unlink(entry.path)
        write_container(tree.disk, entry.path, "model-2", of.spec, of.segments(), created_s=1.0)
        assert isinstance(await refusal(tree, entry), EntryMismatch)


@virtual
async def test_b065_a_file_evicted_while_it_is_read_still_gives_the_right_answer() -> None:
    """B065: the open file outlives its name."""
    async with storage() as tree:
        of = checkpoint(*IDS, nbytes=3 << 20)
        entry = await stored(tree, of)
        gate = tree.hold("read")
        restoring = asyncio.ensure_future(tree.readers.restore(RestoreJob("r", entry), 50.0))
        await tree.until(lambda: gate.held == 1)
        gate.allow(4)
        await tree.until(lambda: gate.held == 5)
        tree.disk.unlink(entry.path)
        gate.open()
        restored = await tree.patiently(restoring)
        assert isinstance(restored.checkpoint, FakeCheckpoint)
        assert restored.checkpoint.data == of.data


@virtual
async def test_a_state_that_the_model_cannot_hold_is_refused_as_such() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS))
        tree.allocate_error = StateMismatch("two layers, not one")
        assert isinstance(await refusal(tree, entry), StateMismatch)


@virtual
async def test_a_failing_disk_is_refused_and_works_again_later() -> None:
    async with storage() as tree:
        of = checkpoint(*IDS)
        entry = await stored(tree, of)
        fault = tree.disk.fail_kind("read", errno.EIO)
        cause = await refusal(tree, entry)
        assert isinstance(cause, OSError)
        assert cause.errno == errno.EIO
        fault.clear()
        restored = await tree.patiently(tree.readers.restore(RestoreJob("again", entry), 5.0))
        assert isinstance(restored.checkpoint, FakeCheckpoint)
        assert restored.checkpoint.data == of.data


@virtual
async def test_a_restorer_that_does_not_open_keeps_the_tree_from_starting() -> None:
    tree = storage()
    tree.open_error = RuntimeError("no device")
    with pytest.raises(StartFailed, match="no device"):
        await tree.__aenter__()
    await tree.kit.settle()
    tree.pool.close()


@virtual
async def test_a_bug_in_the_restorer_crashes_the_reader_alone() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS))
        tree.allocate_error = RuntimeError("a bug")
        with pytest.raises(ActorCrashed):
            await tree.patiently(tree.readers.restore(RestoreJob("r", entry), 5.0))
        tree.allocate_error = None
        await tree.restarted()
        restored = await tree.patiently(tree.readers.restore(RestoreJob("again", entry), 5.0))
        assert restored.read_bytes == 10
        tree.kit.failure("storage/readers/0", RuntimeError)
        assert [what for what, _ in tree.restorer_log].count("open") == 2


@virtual
async def test_cancelling_stops_between_blocks_and_drops_what_waits() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS, nbytes=3 << 20))
        gate = tree.hold("read")
        asks = [
            asyncio.ensure_future(tree.readers.restore(RestoreJob(name, entry), 5.0)) for name in ("a", "b")
        ]
        await tree.calm()
        gate.allow(4)  # header, frame, two blocks: it is in the middle
        await tree.until(lambda: gate.held == 5)
        tree.readers.cancel("a")
        tree.readers.cancel("b")
        tree.readers.cancel("unknown")
        await tree.calm()
        gate.open()
        for ask in asks:
            with pytest.raises(Rejected) as refused:
                await tree.patiently(ask)
            assert isinstance(refused.value.__cause__, RestoreCancelled)
        assert tree.reader_counts.cancelled == 2
        assert [what for what, _ in tree.restorer_log].count("allocate") == 1


@virtual
async def test_an_asker_that_leaves_or_times_out_gives_the_job_up() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS))
        gate = tree.hold("read")
        leaving = asyncio.ensure_future(tree.readers.restore(RestoreJob("a", entry), 50.0))
        late = asyncio.ensure_future(tree.readers.restore(RestoreJob("b", entry), 5.0))
        await tree.calm()
        leaving.cancel()
        with pytest.raises(AskTimeout):
            await late
        gate.open()
        await tree.until(lambda: tree.reader_counts.cancelled == 2)
        assert tree.reader_counts.restores == 0


@virtual
async def test_a_reader_takes_only_so_many_jobs_and_no_id_twice() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS))
        gate = tree.hold("read")
        names = [*map(str, range(JOB_LIMIT)), "one too many"]
        ask = tree.readers.refs[0].ask
        asks = [asyncio.ensure_future(ask(Restore(RestoreJob(name, entry)), 5.0)) for name in names]
        await tree.calm()
        for refused in (asks[-1], ask(Restore(RestoreJob("0", entry)), 5.0)):
            with pytest.raises(Rejected) as error:
                await tree.patiently(refused)
            assert isinstance(error.value.__cause__, Overloaded)
        gate.open()
        assert len(await tree.patiently(asyncio.gather(*asks[:-1]))) == JOB_LIMIT


@virtual
async def test_a_restore_never_waits_for_a_write() -> None:
    async with storage() as tree:
        entry = await stored(tree, checkpoint(*IDS))
        tree.hold("sync")
        tree.publish(checkpoint(7, 8, 9))
        await tree.calm()
        restored = await tree.patiently(tree.readers.restore(RestoreJob("r", entry), 5.0))
        assert restored.read_bytes == 10
        assert await tree.stored() == [[1, 2, 3, 4]]


@virtual
async def test_what_comes_back_is_what_was_written_by_one_thread() -> None:
    async with storage() as tree:
        of = checkpoint(*IDS, namespace="adapter", nbytes=100_000)
        tree.disk.short_read_bytes = 1000
        entry = await stored(tree, of)
        restored = await tree.patiently(tree.readers.restore(RestoreJob("r", entry), 5.0))
        assert isinstance(restored.checkpoint, FakeCheckpoint)
        assert restored.checkpoint.spec == of.spec
        assert restored.checkpoint.data == of.data
        assert restored.read_bytes == 100_000
        assert restored.elapsed_ms > 0
        assert tree.reader_counts.restores == 1
        assert tree.reader_counts.restored_bytes == 100_000
        assert tree.reader_counts.restore_ms_last == restored.elapsed_ms
    assert [what for what, _ in tree.restorer_log] == ["open", "allocate", "close"]
    assert {thread for _, thread in tree.restorer_log} == {"storage/readers/0/disk"}


def test_a_pool_without_readers_is_no_pool() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Readers([], ReaderCounts())
