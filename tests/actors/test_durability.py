"""Durability: what is written, in which order, and what a flush may say (seed §5.4 to §5.6)."""

from __future__ import annotations

import asyncio

import pytest
from samovar.actors.durability import FLUSH_LIMIT, DirtyCheckpoint, DurabilityOptions, NotOwed, PersistFailed
from samovar.actors.writer import WriteJob
from samovar.runtime.kernel import ActorCrashed, Overloaded, Rejected
from samovar.storage.tokens import TokenIds

from tests.kit import virtual
from tests.kit.checkpoints import checkpoint

from .storage_tree import IDENTITY, storage


def ids(*tokens: int) -> TokenIds:
    return TokenIds.of(tokens)


URGENT_ONLY = DurabilityOptions(IDENTITY.id, write_behind=False)


# -- write-behind -------------------------------------------------------------------------------------


@virtual
async def test_what_is_published_is_written_at_once_and_told() -> None:
    async with storage() as tree:
        tree.publish(checkpoint(1, 2, nbytes=100), version=7)
        await tree.calm()
        assert tree.heard() == [("Persisted", [1, 2], 7)]
        assert await tree.stored() == [[1, 2]]
        figures = await tree.durability.figures(5.0)
        assert (figures.spills, figures.pending_snapshots, figures.pending_spill_bytes) == (1, 0, 0)
        assert figures.written_bytes >= 100
        assert not figures.degraded


@virtual
async def test_f5_without_write_behind_only_urgent_ones_are_written() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2))
        tree.publish(checkpoint(3, 4), urgent=True)
        await tree.calm()
        assert await tree.stored() == [[3, 4]]
        tree.durability.urge(ids(1, 2), "")
        await tree.calm()
        assert await tree.stored() == [[1, 2], [3, 4]]


@virtual
async def test_f5_without_write_behind_a_flush_writes_everything() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2))
        report = await tree.flush()
        assert (report.durable, report.flushed) == (True, 1)
        assert await tree.stored() == [[1, 2]]


@virtual
async def test_at_most_as_many_writes_as_writers() -> None:
    async with storage(writer_count=2) as tree:
        gate = tree.hold("sync")
        for n in range(6):
            tree.publish(checkpoint(n, n))
        await tree.until(lambda: gate.held == 2)
        await tree.kit.settle()
        assert gate.held == 2
        figures = await tree.durability.figures(5.0)
        assert (figures.pending_snapshots, figures.pending_spills) == (6, 6)
        gate.open()
        await tree.calm()
        assert len(await tree.stored()) == 6


@virtual
async def test_urgent_ones_go_first_then_the_longest() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(0))
        await tree.until(lambda: gate.held == 1)
        tree.publish(checkpoint(1, 1))
        tree.publish(checkpoint(2, 2, 2))
        tree.publish(checkpoint(3))
        tree.publish(checkpoint(4, 4), urgent=True)
        tree.durability.urge(ids(3), "")
        gate.open()
        await tree.calm()
        assert tree.written == [[0], [4, 4], [3], [2, 2, 2], [1, 1]]


# -- coverage -----------------------------------------------------------------------------------------


@virtual
async def test_b008_the_longest_goes_first_and_what_it_covers_is_not_written_at_all() -> None:
    """B008: a flush that has time for one file spends it on the frontier."""
    async with storage(options=URGENT_ONLY) as tree:
        frontier = tuple(range(1500))
        for length in (1, 40, 1500):
            tree.publish(checkpoint(*frontier[:length]), version=length)
        report = await tree.flush()
        assert (report.durable, report.flushed) == (True, 3)
        assert [len(written) for written in tree.written] == [1500]
        assert {version for _, _, version in tree.heard()} == {1, 40, 1500}
        assert report.longest_durable_prefix_tokens == 1500


@virtual
async def test_b008_a_deadline_lists_what_is_left_and_why() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        gate = tree.hold("sync")
        for length in (1, 40, 1500):
            tree.publish(checkpoint(*(length + n for n in range(length)), nbytes=length))
        flushing = asyncio.ensure_future(tree.durability.flush(5.0))
        await tree.until(lambda: gate.held == 1)
        gate.allow()
        await tree.until(lambda: gate.held == 2)
        report = await flushing
        assert not report.durable
        assert (report.flushed, report.pending, report.pending_bytes) == (1, 2, 41)
        assert report.reason == "2 were not written before the deadline"
        assert [len(written) for written in tree.written] == [1500]


@virtual
async def test_an_ancestor_published_later_waits_for_the_longer_one_under_way() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2, 3), version=1)
        await tree.until(lambda: gate.held == 1)
        tree.publish(checkpoint(1, 2), version=2)
        assert (await tree.durability.figures(5.0)).pending_snapshots == 2
        gate.open()
        await tree.calm()
        assert tree.written == [[1, 2, 3]]
        assert tree.heard() == [("Persisted", [1, 2, 3], 1), ("Persisted", [1, 2], 2)]


@virtual
@pytest.mark.parametrize(
    ("longer", "written"),
    [
        (checkpoint(1, 2, 3, trimmable=False), [[1, 2, 3], [1, 2]]),
        (checkpoint(1, 2, 3, reusable_from=3), [[1, 2, 3], [1, 2]]),
        (checkpoint(1, 2, 3, namespace="adapter"), [[1, 2, 3], [1, 2]]),
        (checkpoint(1, 2, 3, reusable_from=2), [[1, 2, 3]]),
    ],
    ids=["cannot be trimmed", "reusable only from 3", "another namespace", "serves it"],
)
async def test_only_what_serves_a_prefix_covers_it(longer: object, written: list[list[int]]) -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(longer)  # type: ignore[arg-type]
        tree.publish(checkpoint(1, 2))
        assert (await tree.flush()).durable
        assert tree.written == written


@virtual
async def test_what_the_directory_covers_already_is_not_written() -> None:
    async with storage() as tree:
        tree.publish(checkpoint(1, 2, 3))
        await tree.calm()
        tree.publish(checkpoint(1, 2), version=5)
        await tree.calm()
        assert tree.written == [[1, 2, 3]]
        assert ("Persisted", [1, 2], 5) in tree.heard()


@virtual
async def test_an_urgent_ancestor_hastens_the_one_that_covers_it() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2, 3))
        tree.publish(checkpoint(1, 2), urgent=True)
        await tree.calm()
        assert tree.written == [[1, 2, 3]]


@virtual
async def test_a_superseded_one_whose_superseder_is_lost_is_said_to_be_owed_by_nobody() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2), version=1)
        tree.publish(checkpoint(1, 2, 3), version=2)
        tree.durability.dropped(ids(1, 2, 3), "", 2)
        await tree.calm()
        (message,) = tree.residency.seen
        assert isinstance(message, PersistFailed)
        assert isinstance(message.error, NotOwed)
        assert (message.tokens, message.version) == (ids(1, 2), 1)


# -- flush: each sentence of seed §5.6 ------------------------------------------------------------------


@virtual
async def test_b070_a_flush_of_nothing_is_durable() -> None:
    """B070."""
    async with storage() as tree:
        report = await tree.flush()
        assert report.durable
        assert (report.flushed, report.entries, report.pending, report.reason) == (0, 0, 0, None)


@virtual
async def test_two_conversations_of_one_length_do_not_cancel_each_other() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2), version=1)
        tree.publish(checkpoint(1, 3), version=2)
        report = await tree.flush()
        assert (report.durable, report.flushed, report.entries) == (True, 2, 2)


@virtual
async def test_a_flush_awaits_what_is_being_written() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2))
        await tree.until(lambda: gate.held == 1)
        flushing = asyncio.ensure_future(tree.durability.flush(60.0))
        await tree.calm()
        assert not flushing.done()
        gate.open()
        report = await tree.patiently(flushing)
        assert (report.durable, report.flushed) == (True, 1)


@virtual
async def test_a_replacement_during_a_write_gets_its_own_attempt() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2), version=1)
        await tree.until(lambda: gate.held == 1)
        tree.publish(checkpoint(1, 2), version=2)
        flushing = asyncio.ensure_future(tree.durability.flush(60.0))
        await tree.calm()
        gate.open()
        assert (await tree.patiently(flushing)).durable
        assert tree.heard() == [("Persisted", [1, 2], 1), ("Persisted", [1, 2], 2)]


@virtual
async def test_what_is_published_during_a_flush_belongs_to_it() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2))
        flushing = asyncio.ensure_future(tree.durability.flush(60.0))
        await tree.until(lambda: gate.held == 1)
        tree.publish(checkpoint(3, 4))
        gate.open()
        report = await tree.patiently(flushing)
        assert (report.durable, report.flushed, report.pending) == (True, 2, 0)


@virtual
async def test_concurrent_flushes_share_one_run() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2))
        flushes = [asyncio.ensure_future(tree.durability.flush(60.0)) for _ in range(3)]
        await tree.until(lambda: gate.held == 1)
        gate.open()
        reports = await tree.patiently(asyncio.gather(*flushes))
        assert all(report.durable and report.flushed == 1 for report in reports)
        assert tree.written == [[1, 2]]


@virtual
async def test_a_deadline_ends_the_waiting_and_not_the_writing() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2, nbytes=50))
        await tree.until(lambda: gate.held == 1)
        begun_s = tree.kit.system.now_s()
        early = asyncio.ensure_future(tree.durability.flush(2.0))
        late = asyncio.ensure_future(tree.durability.flush(60.0))
        report = await early
        assert tree.kit.system.now_s() - begun_s == pytest.approx(2.0)
        assert not report.durable
        assert (report.pending, report.pending_bytes) == (1, 50)
        assert report.elapsed_ms == pytest.approx(2000.0)
        gate.open()
        assert (await tree.patiently(late)).durable
        assert await tree.stored() == [[1, 2]]


@virtual
async def test_any_number_of_flushes_is_answered_or_refused() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2))
        await tree.until(lambda: gate.held == 1)
        flushes = [asyncio.ensure_future(tree.durability.flush(1.0)) for _ in range(FLUSH_LIMIT + 1)]
        with pytest.raises(Rejected) as refused:
            await tree.patiently(flushes[-1])
        assert isinstance(refused.value.__cause__, Overloaded)
        reports = await asyncio.gather(*flushes[:-1])
        assert not any(report.durable for report in reports)
        assert {round(report.elapsed_ms) for report in reports} == {1000}


@virtual
async def test_a_flush_after_one_that_ran_out_of_time_tries_again_what_failed() -> None:
    async with storage(writer_count=2, options=URGENT_ONLY) as tree:
        gate = tree.hold("sync")
        fault = tree.disk.fail_when(lambda op: op.kind == "create" and op.index % 2 == 0, 5, times=1)
        tree.publish(checkpoint(1, 2))
        tree.publish(checkpoint(3, 4))
        tree.publish(checkpoint(5, 6))
        assert not (await tree.durability.flush(1.0)).durable
        again = asyncio.ensure_future(tree.durability.flush(60.0))
        await tree.kit.settle()
        gate.open()
        assert (await tree.patiently(again)).durable
        assert fault.hits == 1


@virtual
async def test_what_was_dropped_undurable_is_missing_in_this_flush_and_the_next() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2), version=3)
        tree.durability.dropped(ids(1, 2), "", 2)  # another version: nothing to it
        tree.durability.dropped(ids(1, 2), "", 3)
        for _ in range(2):
            report = await tree.flush()
            assert not report.durable
            assert (report.missing, report.pending, report.dropped) == (1, 0, 0)
            assert report.reason == "1 were let go before they were written"
        figures = await tree.durability.figures(5.0)
        assert (figures.dropped_spills, figures.missing) == (1, 1)


@virtual
async def test_what_is_dropped_during_a_flush_counts_as_such() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2, 3))
        tree.publish(checkpoint(7, 8), version=4)
        flushing = asyncio.ensure_future(tree.durability.flush(60.0))
        await tree.until(lambda: gate.held == 1)
        tree.durability.dropped(ids(7, 8), "", 4)
        gate.open()
        report = await tree.patiently(flushing)
        assert (report.durable, report.dropped, report.missing, report.flushed) == (False, 1, 1, 1)


@virtual
async def test_a_drop_of_what_is_being_written_loses_nothing() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2), version=1)
        await tree.until(lambda: gate.held == 1)
        tree.durability.dropped(ids(1, 2), "", 1)
        gate.open()
        report = await tree.flush()
        assert (report.durable, report.missing) == (True, 0)
        assert (await tree.durability.figures(5.0)).dropped_spills == 0


@virtual
async def test_missing_ones_are_reconciled_with_what_was_committed_since() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2), version=1)
        tree.durability.dropped(ids(1, 2), "", 1)
        assert not (await tree.flush()).durable
        # Somebody else brings a covering file in: durability did not write it itself.
        longer = checkpoint(1, 2, 3)
        reservation = await tree.patiently(tree.archive.reserve(longer.spec, 5.0))
        job = WriteJob(reservation, longer, IDENTITY.id)
        stored = await tree.patiently(tree.writers.write(job, 5.0))
        await tree.patiently(tree.archive.commit(reservation, stored, 5.0))
        report = await tree.flush()
        assert (report.durable, report.missing) == (True, 0)


@virtual
@pytest.mark.parametrize("namespace", ["", "adapter"])
async def test_a_lost_prefix_is_covered_by_a_longer_one_of_its_own_namespace(namespace: str) -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2), version=1)
        tree.durability.dropped(ids(1, 2), "", 1)
        tree.publish(checkpoint(1, 2, 3, namespace=namespace))
        report = await tree.flush()
        assert report.durable == (namespace == "")
        assert report.missing == (namespace != "")


@virtual
async def test_a_second_flush_tries_again_what_the_first_could_not() -> None:
    async with storage(options=URGENT_ONLY) as tree:
        tree.publish(checkpoint(1, 2))
        fault = tree.disk.fail_kind("sync", 5)
        report = await tree.flush()
        assert (report.durable, report.failed, report.pending) == (False, 1, 1)
        assert report.reason is not None
        assert "OSError" in report.reason
        assert fault.hits == 1  # forced once
        fault.clear()
        assert (await tree.flush()).durable


# -- reset and crashes ----------------------------------------------------------------------------------


@virtual
async def test_a_reset_forgets_everything_and_keeps_the_write_under_way_out() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2))
        tree.publish(checkpoint(3, 4))
        await tree.until(lambda: gate.held == 1)
        tree.durability.reset()
        clearing = asyncio.ensure_future(tree.archive.clear(50.0))
        await tree.calm()
        gate.open()
        await tree.patiently(clearing)
        await tree.calm()
        assert tree.heard() == []
        assert await tree.stored() == []
        assert tree.files() == []
        report = await tree.flush()
        assert (report.durable, report.missing, report.pending) == (True, 0, 0)
        assert (await tree.archive.figures(5.0)).reserved_bytes == 0


@virtual
async def test_what_is_published_after_a_reset_is_written() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2), version=1)
        await tree.until(lambda: gate.held == 1)
        tree.durability.reset()
        tree.publish(checkpoint(1, 2), version=2)
        await tree.calm()
        gate.open()
        assert (await tree.flush()).durable
        assert tree.heard() == [("Persisted", [1, 2], 2)]
        assert await tree.stored() == [[1, 2]]


@virtual
async def test_a_crash_of_durability_abandons_the_write_and_starts_empty() -> None:
    async with storage() as tree:
        gate = tree.hold("sync")
        tree.publish(checkpoint(1, 2), version=1)
        await tree.until(lambda: gate.held == 1)
        tree.kit.crash_on(tree.durability.ref, DirtyCheckpoint)
        flushing = asyncio.ensure_future(tree.durability.flush(60.0))
        await tree.calm()
        tree.publish(checkpoint(3, 4))
        await tree.calm()
        with pytest.raises(ActorCrashed):
            await flushing
        gate.open()
        await tree.restarted()
        tree.kit.failure("storage/durability")
        tree.kit.dead_letter("storage/durability", "crashed")
        assert await tree.stored() == []
        assert tree.files() == []
        assert (await tree.archive.figures(5.0)).reserved_bytes == 0
        tree.publish(checkpoint(1, 2), version=1)  # residency announces again
        assert (await tree.flush()).durable
        assert await tree.stored() == [[1, 2]]
        assert (await tree.durability.figures(5.0)).spills == 1
