"""The writers' pool: what a refusal is, what a crash is, and what is left on disk."""

from __future__ import annotations

import asyncio
import errno

import pytest
from samovar.actors.writer import JOB_LIMIT, Write, WriteCancelled, WriteJob, Writers
from samovar.runtime.kernel import ActorCrashed, ActorGone, Overloaded, Rejected
from samovar.storage.container_errors import ContainerError
from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from tests.kit import virtual
from tests.kit.checkpoints import FakeCheckpoint, checkpoint

from .storage_tree import IDENTITY, StorageTree, storage


async def job_for(tree: StorageTree, of: FakeCheckpoint) -> WriteJob:
    return WriteJob(await tree.patiently(tree.archive.reserve(of.spec, 5.0)), of, IDENTITY.id)


@virtual
@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_folder"])
async def test_a_failing_disk_refuses_the_job_with_its_error(kind: str) -> None:
    async with storage() as tree:
        job = await job_for(tree, checkpoint(1, 2, 3))
        fault = tree.disk.fail_kind(kind, errno.EIO)
        with pytest.raises(Rejected) as refused:
            await tree.patiently(tree.writers.write(job, 5.0))
        assert isinstance(refused.value.__cause__, OSError)
        assert refused.value.__cause__.errno == errno.EIO
        fault.clear()
        tree.archive.abandon(job.reservation, refused.value)
        await tree.calm()
        assert tree.files() == []


@virtual
async def test_a_checkpoint_that_no_container_holds_is_refused() -> None:
    async with storage() as tree:
        of = checkpoint(1, 2, 3)
        job = await job_for(tree, of)
        layer = LayerSpec("fake", 3, trimmable=True, tensors=(TensorSpec("state", "uint8", (99,)),))
        of.spec = CheckpointSpec(TokenIds.of((1, 2, 3)), "", (layer,))  # its segments are 10 bytes
        with pytest.raises(Rejected) as refused:
            await tree.patiently(tree.writers.write(job, 5.0))
        assert isinstance(refused.value.__cause__, ContainerError)


@virtual
async def test_what_no_disk_raises_crashes_the_writer_and_the_next_job_is_served() -> None:
    async with storage() as tree:
        tree.write_errors = [RuntimeError("a bug")]
        job = await job_for(tree, checkpoint(1, 2, 3))
        with pytest.raises(ActorCrashed):
            await tree.patiently(tree.writers.write(job, 5.0))
        await tree.restarted()
        tree.kit.failure("storage/writers/0", RuntimeError)
        assert job.cancelled.is_set()
        stored = await tree.patiently(tree.writers.write(await job_for(tree, checkpoint(4, 5)), 5.0))
        assert stored.header.spec.tokens == TokenIds.of((4, 5))


@virtual
async def test_a_cancelled_job_leaves_no_file() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        job = await job_for(tree, checkpoint(1, 2, 3))
        writing = asyncio.ensure_future(tree.writers.write(job, 5.0))
        await tree.calm()
        assert gate.held == 1
        job.cancelled.set()
        gate.open()
        with pytest.raises(Rejected) as refused:
            await tree.patiently(writing)
        assert isinstance(refused.value.__cause__, WriteCancelled)
        assert tree.files() == []


@virtual
async def test_a_job_cancelled_before_its_turn_touches_nothing() -> None:
    async with storage() as tree:
        job = await job_for(tree, checkpoint(1, 2, 3))
        job.cancelled.set()
        before = tree.disk.count
        with pytest.raises(Rejected) as refused:
            await tree.patiently(tree.writers.write(job, 5.0))
        assert isinstance(refused.value.__cause__, WriteCancelled)
        assert tree.disk.count == before


@virtual
async def test_a_writer_takes_only_so_many_jobs() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        jobs = [await job_for(tree, checkpoint(n, n)) for n in range(JOB_LIMIT + 1)]
        asks = [asyncio.ensure_future(tree.writers.refs[0].ask(Write(job), 5.0)) for job in jobs]
        await tree.calm()
        with pytest.raises(Rejected) as refused:
            await tree.patiently(asks[-1])
        assert isinstance(refused.value.__cause__, Overloaded)
        gate.open()
        assert len(await tree.patiently(asyncio.gather(*asks[:-1]))) == JOB_LIMIT


@virtual
async def test_jobs_go_to_the_writer_that_has_least_to_do() -> None:
    async with storage(writer_count=2) as tree:
        gate = tree.hold("sync")
        jobs = [await job_for(tree, checkpoint(n, n)) for n in range(4)]
        asks = [asyncio.ensure_future(tree.writers.write(job, 5.0)) for job in jobs]
        await tree.calm()
        assert gate.held == 2  # one on each thread
        assert [tree.kit.figures(ref).open_asks for ref in tree.writers.refs] == [2, 2]
        gate.open()
        await tree.patiently(asyncio.gather(*asks))


@virtual
async def test_what_was_written_is_whole_and_durable_before_the_answer() -> None:
    async with storage() as tree:
        of = checkpoint(1, 2, 3, nbytes=1000)
        job = await job_for(tree, of)
        await tree.patiently(tree.writers.write(job, 5.0))
        for seed in range(5):
            after = tree.disk.crash(seed)
            assert job.reservation.final_path in after.files(), "acknowledged and gone after a power loss"


@virtual
async def test_short_writes_are_gone_on_from() -> None:
    async with storage() as tree:
        tree.disk.short_write_bytes = 100
        job = await job_for(tree, checkpoint(1, 2, 3, nbytes=1000))
        stored = await tree.patiently(tree.writers.write(job, 5.0))
        assert len(tree.disk.files()[job.reservation.final_path]) == stored.file_bytes


@virtual
async def test_a_writer_that_stops_publishes_nothing_more() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        job = await job_for(tree, checkpoint(1, 2, 3))
        writing = asyncio.ensure_future(tree.writers.write(job, 5.0))
        await tree.calm()
        stopping = asyncio.ensure_future(tree.kit.system.stop())
        await asyncio.sleep(1.0)  # the writer is told to stop once all above it has
        assert job.cancelled.is_set()
        gate.open()
        await tree.patiently(stopping)
        with pytest.raises(ActorGone):
            await tree.patiently(writing)
        assert ".kv" not in tree.files()


def test_a_pool_without_writers_is_no_pool() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Writers([])
