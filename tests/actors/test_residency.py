"""The RAM tier: lending, limits, and what leaves when."""

from __future__ import annotations

import asyncio

import pytest
from samovar.actors.caching.tiers import ResidencyOptions
from samovar.actors.residency import Put, Release, Take
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.kernel import ActorCrashed, AskTimeout, InjectedCrash
from samovar.storage.tokens import TokenIds

from tests.kit.checkpoints import checkpoint
from tests.kit.loop import virtual

from .cache_tree import Cache, Dropped, Urged

# -- refusals ---------------------------------------------------------------------------------------------


def test_a_ceiling_below_the_target_is_no_configuration() -> None:
    with pytest.raises(ValueError, match="hard_max_bytes 5 is below max_bytes 10"):
        ResidencyOptions(max_bytes=10, hard_max_bytes=5)


@virtual
async def test_a_disabled_tier_keeps_nothing_and_says_so() -> None:
    async with Cache(max_bytes=0) as cache:
        await cache.put(checkpoint(1, 2, 3))
        taken = await cache.take(1, 2, 3, 4)
        assert (taken.tier, taken.miss_reason) == ("none", "cache_off")
        assert cache.disk.finds == 0
        cache.durability.take_nothing()
        explanation = await cache.residency.explain(TokenIds.of([1, 2]), "", None, 1.0)
        assert (explanation.tier, explanation.reason) == ("none", "cache_off")


@virtual
async def test_a_miss_says_why() -> None:
    async with Cache(ssd=False, min_tokens=3) as cache:
        assert (await cache.take(1, 2, 3, 4)).miss_reason == "empty"
        await cache.put(checkpoint(1, 2, 3, 4, 5, trimmable=False), checkpoint(7, 8, 9, 10))
        for prompt, reason, diverged_at in [
            ((), "too_short", 0),
            ((1,), "too_short", 1),
            ((2, 3), "no_match", 0),
            ((1, 2, 3, 4, 9), "untrimmable", 4),
            ((1, 2, 9), "no_match", 2),
            ((7, 8, 1, 1), "below_min_tokens", 2),
        ]:
            taken = await cache.take(*prompt)
            assert (taken.miss_reason, taken.diverged_at) == (reason, diverged_at), prompt
        assert (await cache.take(1, 2, 3, 4, namespace="lora")).miss_reason == "no_match"


@virtual
async def test_checkpoints_below_the_minimum_are_kept_for_sessions_only() -> None:
    async with Cache(min_tokens=3) as cache:
        await cache.put(checkpoint(), checkpoint(1, 2))
        assert cache.held() == []
        await cache.put(checkpoint(5, 6), session="s")
        assert await cache.touch(5, 6, 7) == ("none", 0)
        assert await cache.touch(5, 6, 7, session="s") == ("ram", 2)


# -- lending ----------------------------------------------------------------------------------------------


@virtual
async def test_a_put_told_before_a_take_is_seen_by_it() -> None:
    async with Cache() as cache:
        cache.residency.put(checkpoint(1, 2, 3), None)
        assert (await cache.take(1, 2, 3, 4)).length == 3


@virtual
async def test_the_same_prompt_twice_gets_all_but_the_last_token() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2, 3, 4))
        assert (await cache.take(1, 2, 3, 4)).length == 3


@virtual
async def test_the_donor_stays_and_is_lent_to_many() -> None:
    async with Cache() as cache:
        donor = checkpoint(1, 2, 3, 4)
        await cache.put(donor)
        before = bytes(donor.data)
        both = [await cache.take(1, 2, 3, 9), await cache.take(1, 2, 3, 4, 5)]
        assert [taken.length for taken in both] == [3, 4]
        assert all(taken.lease is not None and taken.lease.checkpoint is donor for taken in both)
        assert (await cache.residency.figures(1.0)).leases == 2
        assert bytes(donor.data) == before


@virtual
async def test_b103_a_one_token_prefix_is_found() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(7))
        assert await cache.touch(7, 8, 9) == ("ram", 1)


@virtual
async def test_b103_a_hit_refreshes() -> None:
    async with Cache(ssd=False, max_bytes=20) as cache:
        await cache.put(checkpoint(1, 1), checkpoint(2, 2))
        await cache.touch(1, 1, 5)
        await cache.put(checkpoint(3, 3))
        assert cache.held() == [[1, 1], [3, 3]]


@virtual
async def test_a_taker_that_leaves_holds_nothing_whenever_that_is() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2, 3))
        cache.disk.hold(checkpoint(1, 2, 3, 4, 5, 6))
        left = 0
        for rounds in range(40):
            waiting = asyncio.create_task(cache.take(*range(1, 5 + rounds % 3)))
            for _ in range(rounds // 2):
                await asyncio.sleep(0)
            left += waiting.cancel()
            await asyncio.wait([waiting])
            await cache.release_all()
            figures = await cache.residency.figures(1.0)
            assert figures.leases == figures.waiting == figures.restoring == 0
        assert left > 20


@virtual
async def test_releasing_twice_or_for_nobody_is_nothing() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2, 3))
        taken = await cache.take(1, 2, 3, 4)
        assert taken.lease is not None
        cache.residency.release(taken.lease.id)
        cache.residency.release(taken.lease.id)
        cache.residency.release(987_654)
        await cache.kit.settle()


@virtual
async def test_the_leases_of_a_borrower_end_with_it() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2, 3))
        await cache.take(1, 2, 3, 4)
        await cache.take(1, 2, 3, 5)
        cache.kit.crash_on(cache.borrower.ref, str)
        cache.borrower.ref.tell("crash")
        await cache.kit.settle()
        cache.kit.failure(cache.borrower.ref.path)
        cache.kit.dead_letter(cache.borrower.ref.path, "crashed")
        assert (await cache.residency.figures(1.0)).leases == 0
        await cache.kit.advance(5.0)
        assert await cache.touch(1, 2, 3, 4) == ("ram", 3)


@virtual
async def test_a_restart_starts_empty_and_takes_no_old_word_for_its_own() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2, 3))
        (old,) = cache.announced()
        taken = await cache.take(1, 2, 3, 4)
        cache.kit.crash_on(cache.residency.ref, Put)
        cache.residency.put(checkpoint(9, 9), None)
        await cache.kit.settle()
        cache.kit.failure(cache.residency.ref.path)
        cache.kit.dead_letter(cache.residency.ref.path, "crashed")
        await cache.kit.advance(5.0)
        assert cache.held() == []
        assert taken.lease is not None
        assert taken.lease.checkpoint.spec.tokens.tolist() == [1, 2, 3]
        await cache.put(checkpoint(1, 2, 3))
        await cache.persist(old)
        (entry,) = await cache.residency.entries(1.0)
        assert not entry.durable
        assert cache.announced()[0].version > old.version
        assert (await cache.residency.figures(1.0)).hits == 1


@virtual
async def test_a_crash_reaches_takers() -> None:
    async with Cache() as cache:
        cache.kit.crash_on(cache.residency.ref, Take)
        with pytest.raises(ActorCrashed):
            await cache.take(1, 2)
        await cache.kit.settle()
        cache.kit.failure(cache.residency.ref.path, InjectedCrash)
        cache.kit.dead_letter(cache.residency.ref.path, "crashed")
        await cache.kit.advance(5.0)


# -- put --------------------------------------------------------------------------------------------------


@virtual
async def test_a_duplicate_is_replaced_and_its_session_moves_along() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2, 3, nbytes=10), session="s")
        await cache.put(checkpoint(1, 2, 3, nbytes=30, trimmable=False))
        figures = await cache.residency.figures(1.0)
        assert (figures.entries, figures.bytes, figures.sessions) == (1, 30, 1)
        first, second = cache.announced()
        assert second.version > first.version
        await cache.persist(first)
        assert not (await cache.residency.entries(1.0))[0].durable
        await cache.persist(second)
        assert (await cache.residency.entries(1.0))[0].durable


@virtual
async def test_ancestors_stay_where_the_new_checkpoint_cannot_serve_them() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2), checkpoint(1, 2, 3, trimmable=False))
        assert cache.held() == [[1, 2], [1, 2, 3]]
        await cache.put(checkpoint(1, 2, 3, 4, 5, reusable_from=3))
        assert cache.held() == [[1, 2], [1, 2, 3, 4, 5]]
        await cache.put(checkpoint(1, 2, 3, 4, 5, 6))
        assert cache.held() == [[1, 2, 3, 4, 5, 6]]


@virtual
async def test_sessions_of_superseded_checkpoints_follow_what_serves_them() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2), session="a")
        await cache.put(checkpoint(1, 2, 3), session="b")
        figures = await cache.residency.figures(1.0)
        assert (figures.entries, figures.sessions) == (1, 2)
        await cache.touch(1, 2, 9, session="a")
        assert (await cache.residency.figures(1.0)).session_hits == 1
        assert await cache.residency.close_session("a", 1.0) == 1
        assert await cache.residency.close_session("a", 1.0) == 0
        assert cache.held() == [[1, 2, 3]]


@virtual
async def test_only_so_many_sessions_are_remembered() -> None:
    async with Cache(max_sessions=2) as cache:
        for number in range(4):
            await cache.put(checkpoint(number, number), session=f"s{number}")
        assert (await cache.residency.figures(1.0)).sessions == 2
        assert await cache.residency.close_session("s0", 1.0) == 0
        assert await cache.residency.close_session("s3", 1.0) == 1


# -- limits -----------------------------------------------------------------------------------------------


@virtual
async def test_without_ssd_the_least_recently_used_goes() -> None:
    async with Cache(ssd=False, max_bytes=30) as cache:
        for number in range(10):
            await cache.put(checkpoint(number, number))
            assert (await cache.residency.figures(1.0)).bytes <= 30
        assert cache.held() == [[7, 7], [8, 8], [9, 9]]
        assert (await cache.residency.figures(1.0)).evictions == 7


@virtual
async def test_entries_of_sessions_go_last_but_they_go() -> None:
    async with Cache(ssd=False, max_bytes=30) as cache:
        await cache.put(checkpoint(1, 1), session="s")
        await cache.put(checkpoint(2, 2), checkpoint(3, 3), checkpoint(4, 4))
        assert cache.held() == [[1, 1], [3, 3], [4, 4]]
        for number in range(5, 8):
            await cache.put(checkpoint(number, number), session=f"s{number}")
        assert cache.held() == [[5, 5], [6, 6], [7, 7]]


@virtual
async def test_b032_a_victim_stays_until_it_is_durable() -> None:
    async with Cache(max_bytes=30) as cache:
        for number in range(10):
            await cache.put(checkpoint(number, number))
        assert await cache.touch(0, 0, 1) == ("ram", 2)
        assert len(cache.held()) == 10
        dirty = [message for message in cache.durability.seen if not isinstance(message, Urged)]
        cache.durability.seen.clear()
        await cache.persist(*dirty)
        assert cache.held() == [[0, 0], [8, 8], [9, 9]]
        figures = await cache.residency.figures(1.0)
        assert (figures.bytes, figures.evictions, figures.lost) == (30, 7, 0)


@virtual
async def test_a_victim_is_urged_once_and_no_hotter_one_goes_in_its_stead() -> None:
    async with Cache(max_bytes=20) as cache:
        await cache.put(checkpoint(1, 1), checkpoint(2, 2))
        first, second = cache.announced()
        await cache.persist(second)
        await cache.put(checkpoint(3, 3))
        assert cache.held() == [[1, 1], [2, 2], [3, 3]]
        (third, urged) = list(cache.durability.seen)
        assert urged == Urged((1, 1))
        await cache.touch(3, 3, 9)
        assert len(cache.durability.seen) == 2
        await cache.fail_to_persist(first)
        assert cache.held() == [[1, 1], [2, 2], [3, 3]]
        cache.durability.seen.clear()
        await cache.persist(first)
        assert cache.held() == [[2, 2], [3, 3]]
        assert not third.urgent


@virtual
async def test_above_the_hard_ceiling_the_oldest_is_lost_and_durability_hears_of_it() -> None:
    async with Cache(max_bytes=20, hard_max_bytes=40) as cache:
        for number in range(1, 5):
            await cache.put(checkpoint(number, number))
        assert (await cache.residency.figures(1.0)).lost == 0
        versions = [one.version for one in cache.durability.seen if not isinstance(one, Urged)]
        cache.durability.seen.clear()
        await cache.put(checkpoint(5, 5))
        assert cache.held() == [[2, 2], [3, 3], [4, 4], [5, 5]]
        assert Dropped((1, 1), versions[0]) in cache.durability.seen
        assert (await cache.residency.figures(1.0)).lost == 1


@virtual
async def test_b112_an_oversized_checkpoint_is_kept_only_until_it_is_durable() -> None:
    async with Cache(max_bytes=30) as cache:
        await cache.put(checkpoint(1, 1), checkpoint(2, 2), checkpoint(3, 3))
        await cache.persist(*cache.announced())
        await cache.put(checkpoint(4, 4, nbytes=60))
        assert cache.held() == [[1, 1], [2, 2], [3, 3], [4, 4]]
        (big,) = cache.announced()
        assert big.urgent
        await cache.persist(big)
        assert cache.held() == [[1, 1], [2, 2], [3, 3]]
        assert await cache.touch(4, 4, 5) == ("ssd", 2)
        assert cache.held() == [[1, 1], [2, 2], [3, 3]]


@virtual
async def test_b112_without_ssd_an_oversized_checkpoint_is_not_kept_and_nothing_goes_for_it() -> None:
    async with Cache(ssd=False, max_bytes=30, hard_max_bytes=30) as cache:
        await cache.put(checkpoint(1, 1), checkpoint(2, 2), checkpoint(3, 3, nbytes=31))
        assert cache.held() == [[1, 1], [2, 2]]


@virtual
async def test_b113_the_limit_holds_on_every_way_in() -> None:
    async with Cache(max_bytes=30) as cache:
        for number in range(1, 4):
            await cache.put(checkpoint(number, number), session=f"s{number}")
        await cache.persist(*cache.announced())
        on_disk = [checkpoint(number, number) for number in range(4, 8)]
        for one in on_disk:
            cache.disk.hold(one)
            assert (await cache.touch(*one.spec.tokens, 9))[0] == "ssd"
            assert (await cache.residency.figures(1.0)).bytes <= 30
        boundary = checkpoint(8, 8, trimmable=False)
        await cache.put(boundary)
        await cache.persist(*cache.announced())
        assert (await cache.residency.figures(1.0)).bytes <= 30


@virtual
async def test_what_is_lent_does_not_go_until_it_is_given_back() -> None:
    async with Cache(ssd=False, max_bytes=20, hard_max_bytes=30) as cache:
        await cache.put(checkpoint(1, 1), checkpoint(2, 2))
        first, second = await cache.take(1, 1, 5), await cache.take(2, 2, 5)
        await cache.put(checkpoint(3, 3))
        assert cache.held() == [[1, 1], [2, 2]]
        await cache.put(checkpoint(4, 4, nbytes=20))
        assert (await cache.residency.figures(1.0)).bytes <= 20
        assert first.lease is not None
        assert second.lease is not None


@virtual
async def test_a_giant_ceiling_drops_even_what_is_lent() -> None:
    async with Cache(max_bytes=20, hard_max_bytes=20) as cache:
        await cache.put(checkpoint(1, 1), checkpoint(2, 2))
        taken = await cache.take(1, 1, 5)
        await cache.put(checkpoint(3, 3), checkpoint(4, 4, nbytes=20))
        figures = await cache.residency.figures(1.0)
        assert figures.bytes <= 20
        assert figures.lost == 3
        assert taken.lease is not None
        assert bytes(taken.lease.checkpoint.segments()[0][0])
        cache.durability.seen.clear()


@virtual
async def test_pressure_lets_go_of_what_the_engine_needs() -> None:
    async with Cache(max_bytes=1000) as cache:
        await cache.put(*(checkpoint(number, number) for number in range(5)))
        await cache.persist(*cache.announced())
        cache.gauge.reading = MemoryReading(active_bytes=100, limit_bytes=0)
        cache.residency.pressure()
        await cache.kit.settle()
        assert len(cache.held()) == 5
        cache.gauge.reading = MemoryReading(active_bytes=850 + 15, limit_bytes=1000)
        cache.residency.pressure()
        await cache.kit.settle()
        assert cache.held() == [[2, 2], [3, 3], [4, 4]]
        cache.gauge.reading = MemoryReading(active_bytes=850 + 1, limit_bytes=1000)
        await cache.touch(4, 4, 5)
        assert cache.held() == [[3, 3], [4, 4]]


@virtual
async def test_pressure_loses_nothing() -> None:
    async with Cache(max_bytes=1000) as cache:
        await cache.put(checkpoint(1, 1), checkpoint(2, 2))
        cache.gauge.reading = MemoryReading(active_bytes=10_000, limit_bytes=1000)
        cache.residency.pressure()
        await cache.kit.settle()
        assert len(cache.held()) == 2
        assert list(cache.durability.seen)[2:] == [Urged((1, 1)), Urged((2, 2))]


@virtual
async def test_b092_a_window_chat_always_hits_its_last_boundary() -> None:
    async with Cache(ssd=False, max_bytes=60) as cache:
        chats = {"a": [100], "b": [200]}
        for turn in range(30):
            for name, history in chats.items():
                before = len(history) - 1
                history += [turn, 7, 8]
                tier, length = await cache.touch(*history, session=name)
                assert turn == 0 or (tier, length) == ("ram", before)
                await cache.put(checkpoint(*history[:-1], trimmable=False), session=name)
                await cache.put(checkpoint(*history, 50, 51, trimmable=False), session=name)
                history += [60]  # the reply comes back in other tokens
                # so that the next turn finds the boundary, not the reply
                await cache.put(checkpoint(*history[:-1], trimmable=False), session=name)


# -- idle, drain, clear -----------------------------------------------------------------------------------


@virtual
async def test_the_idle_leave_once_durable() -> None:
    async with Cache(demote_idle_s=100.0) as cache:
        await cache.put(checkpoint(1, 1), checkpoint(2, 2), checkpoint(3, 3))
        first, second, _ = cache.announced()
        await cache.persist(first)
        await cache.kit.advance(60.0)
        lent = await cache.take(3, 3, 9)
        await cache.kit.advance(70.0)
        assert cache.held() == [[2, 2], [3, 3]]
        assert list(cache.durability.seen) == [Urged((2, 2))]
        await cache.persist(second)
        await cache.kit.advance(30.0)
        assert cache.held() == [[3, 3]]
        assert lent.lease is not None
        assert (await cache.residency.figures(1.0)).demotions == 2
        assert await cache.touch(1, 1, 9) == ("ssd", 2)


@virtual
async def test_nothing_is_demoted_without_ssd() -> None:
    async with Cache(ssd=False, demote_idle_s=10.0) as cache:
        await cache.put(checkpoint(1, 1))
        await cache.kit.advance(1000.0)
        assert cache.held() == [[1, 1]]
        report = await cache.residency.drain(1.0)
        assert (report.demoted, report.remaining, report.remaining_bytes) == (0, 1, 10)


@virtual
async def test_a_drain_waits_for_what_can_be_written_and_reports_the_rest() -> None:
    async with Cache() as cache:
        await cache.put(*(checkpoint(number, number) for number in range(4)))
        dirty = cache.announced()
        await cache.persist(dirty[0])
        await cache.take(3, 3, 9)
        draining = asyncio.create_task(cache.residency.drain(10.0))
        await cache.kit.settle()
        assert cache.held() == [[1, 1], [2, 2], [3, 3]]
        assert list(cache.durability.seen) == [Urged((1, 1)), Urged((2, 2))]
        await cache.persist(dirty[1])
        assert not draining.done()
        await cache.fail_to_persist(dirty[2])
        report = await draining
        assert (report.demoted, report.remaining, report.remaining_bytes) == (2, 2, 20)


@virtual
async def test_a_drain_that_nobody_waits_for_any_more_is_forgotten() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 1))
        dirty = cache.announced()
        with pytest.raises(AskTimeout):
            await cache.residency.drain(1.0)
        await cache.persist(*dirty)
        assert cache.held() == [[1, 1]]


@virtual
async def test_clearing_ram_keeps_leases_and_what_is_being_written() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 1), session="s")
        dirty = cache.announced()
        taken = await cache.take(1, 1, 2)
        report = await cache.residency.clear("ram", 1.0)
        assert (report.ram, report.ssd) == (1, 0)
        assert taken.lease is not None
        figures = await cache.residency.figures(1.0)
        assert (figures.entries, figures.bytes, figures.sessions, figures.leases) == (0, 0, 0, 1)
        cache.durability.take_nothing()
        await cache.persist(*dirty)
        assert await cache.touch(1, 1, 2) == ("ssd", 2)


@virtual
async def test_b070_flushing_and_closing_nothing_is_no_error() -> None:
    async with Cache() as cache:
        assert await cache.residency.announce(1.0) == 0
        assert await cache.residency.close_session("nobody", 1.0) == 0
        report = await cache.residency.drain(1.0)
        assert (report.demoted, report.remaining) == (0, 0)
        cleared = await cache.residency.clear("all", 1.0)
        assert (cleared.ram, cleared.ssd) == (0, 0)


# -- explain ----------------------------------------------------------------------------------------------


@virtual
async def test_b100_an_explanation_names_the_divergence() -> None:
    async with Cache(ssd=False) as cache:
        history = list(range(3000))
        await cache.put(checkpoint(*history, trimmable=False))
        changed = TokenIds.of([*history[:12], 9999, *history[13:], 1, 2, 3])
        explanation = await cache.residency.explain(changed, "", None, 1.0)
        assert explanation.prompt_tokens == 3003
        assert (explanation.tier, explanation.length, explanation.diverged_at) == ("none", 0, 12)
        assert explanation.reason == "untrimmable"
        figures = await cache.residency.figures(1.0)
        assert figures.hits == figures.misses == 0


@virtual
async def test_entries_tell_what_is_held_without_their_tokens() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 2, 3, nbytes=7, reusable_from=2), session="s")
        await cache.take(1, 2, 3, 4)
        await cache.kit.advance(5.0)
        (entry,) = await cache.residency.entries(1.0)
        assert (entry.tokens, entry.bytes, entry.trimmable, entry.reusable_from) == (3, 7, True, 2)
        assert (entry.durable, entry.leases, entry.sessions, entry.idle_s) == (False, 1, 1, 5.0)


@virtual
async def test_counts_do_not_go_backwards_over_a_restart() -> None:
    async with Cache() as cache:
        await cache.put(checkpoint(1, 1))
        await cache.touch(1, 1, 2)
        await cache.touch(5, 5)
        before = await cache.residency.figures(1.0)
        cache.kit.crash_on(cache.residency.ref, Release)
        cache.residency.release(1)
        await cache.kit.settle()
        cache.kit.failure(cache.residency.ref.path)
        cache.kit.dead_letter(cache.residency.ref.path, "crashed")
        await cache.kit.advance(5.0)
        after = await cache.residency.figures(1.0)
        assert (after.hits, after.misses, after.hit_tokens, after.prompt_tokens) == (1, 1, 2, 5)
        assert (before.hits, before.misses) == (1, 1)
