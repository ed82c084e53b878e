"""When states go to disk: the later the more of them is durable already."""

from __future__ import annotations

import asyncio

import pytest
from samovar.actors.archive import Withdrawn
from samovar.actors.caching.withholding import DEFER_LIMIT_S, DEFER_S, DEFER_SHARE, PROVISIONAL_S
from samovar.storage.tokens import TokenIds

from tests.kit.checkpoints import FakeCheckpoint, checkpoint
from tests.kit.loop import virtual

from .cache_tree import Cache
from .test_two_tiers import TwoTiers

MOMENT_S = 0.01


@virtual
async def test_a_provisional_state_is_written_when_its_time_has_come_unless_it_is_superseded() -> None:
    async with Cache() as cache:
        cache.residency.put(checkpoint(1, 2, 3), None, provisional=True)
        cache.residency.put(checkpoint(7, 8), None, provisional=True)
        await cache.kit.settle()
        assert announced(cache) == []
        await cache.put(checkpoint(1, 2, 3, 4))
        assert announced(cache) == [[1, 2, 3, 4]]
        await cache.kit.advance(PROVISIONAL_S)
        assert announced(cache) == [[7, 8]]


@virtual
async def test_a_burst_of_provisional_states_takes_one_timer() -> None:
    """Found by the simulation (seed 1, "huge"): a timer for each used up all that an actor may have."""
    async with Cache(max_bytes=100_000) as cache:
        for first in range(300):
            cache.residency.put(checkpoint(first, 1), None, provisional=True)
            await cache.kit.settle()
        assert cache.announced() == []
        await cache.kit.advance(1.0)
        cache.residency.put(checkpoint(1000, 1), None, provisional=True)
        await cache.kit.advance(1.01)
        assert len(cache.announced()) == 300
        await cache.kit.advance(1.0)
        (last,) = cache.announced()
        assert last.checkpoint.spec.tokens.tolist() == [1000, 1]


@virtual
async def test_a_flush_does_not_wait_for_what_is_provisional() -> None:
    async with Cache() as cache:
        cache.residency.put(checkpoint(1, 2, 3), None, provisional=True)
        assert await cache.residency.announce(1.0) == 1
        assert announced(cache) == [[1, 2, 3]]


# -- the more of it is durable, the longer it waits ---------------------------------------------------------


def first(length: int, *, last: int = 0, trimmable: bool = True) -> FakeCheckpoint:
    """Return the state of ``length`` tokens, each the start of the longer ones; but for a ``last`` one."""
    return checkpoint(*range(1, length), last or length, trimmable=trimmable)


async def durable(cache: Cache, *checkpoints: FakeCheckpoint) -> None:
    await cache.put(*checkpoints)
    await cache.persist(*cache.announced())


async def waits_until(cache: Cache, seconds: float, length: int) -> None:
    """Assert that nothing is announced before ``seconds`` from now, and then a state of ``length`` tokens."""
    await cache.kit.advance(seconds - MOMENT_S)
    assert announced(cache) == []
    await cache.kit.advance(2 * MOMENT_S)
    assert [len(tokens) for tokens in announced(cache)] == [length]


@virtual
@pytest.mark.parametrize(
    ("known", "seconds"),
    [(0, PROVISIONAL_S), (1, 2.5), (2, 10 / 3), (3, 5.0), (4, 10.0)],
)
async def test_a_provisional_state_waits_as_its_bytes_are_to_what_is_new(known: int, seconds: float) -> None:
    async with Cache() as cache:
        await durable(cache, first(known))
        cache.residency.put(first(5), None, provisional=True)
        await waits_until(cache, seconds, 5)


@virtual
@pytest.mark.parametrize(("known", "seconds"), [(1, 0.5), (4, 8.0), (98, 60.0)])
async def test_so_does_what_a_row_leaves_at_its_end(known: int, seconds: float) -> None:
    async with Cache() as cache:
        await durable(cache, first(known))
        await cache.put(first(max(known, 4) + 1))
        await waits_until(cache, seconds, max(known, 4) + 1)


@virtual
async def test_a_new_prompt_and_what_cannot_be_shortened_are_written_at_once() -> None:
    async with Cache() as cache:
        await durable(cache, first(9, trimmable=False), checkpoint(501, 502))
        await cache.put(first(10, trimmable=False), checkpoint(601, 602))
        assert [len(tokens) for tokens in announced(cache)] == [10, 2]


@virtual
async def test_no_more_waits_than_ram_can_spare() -> None:
    cap = 800
    async with Cache(max_bytes=cap) as cache:
        each = checkpoint(1, 2, nbytes=100)
        size = each.held_bytes
        many = cap // size
        for number in range(many):
            await durable(cache, checkpoint(*(number,) * 9, nbytes=100))
        for number in range(many):
            await cache.put(checkpoint(*(number,) * 10, nbytes=100))
        waiting = many - len(announced(cache))
        assert 0 < waiting == int(DEFER_SHARE * cap) // size


@virtual
async def test_a_turn_that_adds_next_to_nothing_waits_a_minute_longer_at_most() -> None:
    async with Cache() as cache:
        await durable(cache, first(999))
        cache.residency.put(first(1000), None, provisional=True)
        await waits_until(cache, PROVISIONAL_S + DEFER_LIMIT_S, 1000)


@virtual
async def test_what_is_durable_to_its_last_token_does_not_wait_longer() -> None:
    async with Cache() as cache:
        await durable(cache, first(9))
        cache.residency.put(first(8), None, provisional=True)
        await waits_until(cache, PROVISIONAL_S, 8)


@virtual
async def test_what_cannot_be_shortened_does_not_wait_longer_since_nothing_supersedes_it() -> None:
    async with Cache() as cache:
        await durable(cache, first(9, trimmable=False))
        cache.residency.put(first(10, trimmable=False), None, provisional=True)
        await waits_until(cache, PROVISIONAL_S, 10)


@virtual
async def test_a_durable_prefix_counts_as_far_as_it_is_shared() -> None:
    async with Cache() as cache:
        await durable(cache, first(9), first(9, last=77))
        cache.residency.put(first(10, last=88), None, provisional=True)
        await cache.kit.settle()
        cache.residency.put(first(9, last=99), None, provisional=True)
        await waits_until(cache, PROVISIONAL_S * 9, 9)
        await waits_until(cache, PROVISIONAL_S - MOMENT_S, 10)


@virtual
async def test_a_durable_prefix_of_another_namespace_is_none() -> None:
    async with Cache() as cache:
        await durable(cache, checkpoint(*range(1, 9), namespace="lora"))
        cache.residency.put(first(9), None, provisional=True)
        await waits_until(cache, PROVISIONAL_S, 9)


@virtual
async def test_a_prefix_that_gets_durable_after_it_was_superseded_counts_too() -> None:
    async with Cache() as cache:
        await cache.put(first(4))
        (dirty,) = cache.announced()
        cache.residency.put(first(5), None, provisional=True)
        await cache.kit.settle()
        assert cache.held() == [[1, 2, 3, 4, 5]]
        await cache.persist(dirty)
        await waits_until(cache, 10.0, 5)


@virtual
async def test_what_was_durable_is_remembered_by_what_superseded_it() -> None:
    async with Cache() as cache:
        await durable(cache, first(6))
        await cache.put(first(7))
        cache.residency.put(first(8), None, provisional=True)
        await waits_until(cache, DEFER_S * 6 / 2, 8)


# -- what ends the wait -------------------------------------------------------------------------------------


async def waiting(cache: Cache) -> None:
    """Bring the cache to where a provisional state of 100 tokens waits for a minute."""
    await durable(cache, first(99))
    cache.residency.put(first(100), None, provisional=True)
    await cache.kit.advance(30.0)
    assert announced(cache) == []


@virtual
async def test_the_end_of_its_row_is_all_that_is_written() -> None:
    async with Cache() as cache:
        await waiting(cache)
        await cache.put(first(101))
        await waits_until(cache, PROVISIONAL_S + DEFER_LIMIT_S - 30.0, 101)
        await cache.kit.advance(100.0)
        assert announced(cache) == []


@virtual
async def test_a_flush_ends_the_wait() -> None:
    async with Cache() as cache:
        await waiting(cache)
        assert await cache.residency.announce(1.0) == 1
        assert [len(tokens) for tokens in announced(cache)] == [100]


@virtual
async def test_a_drain_ends_the_wait() -> None:
    async with Cache() as cache:
        await waiting(cache)
        draining = asyncio.create_task(cache.residency.drain(100.0))
        await cache.kit.settle()
        (dirty,) = cache.announced()
        assert dirty.urgent
        await cache.persist(dirty)
        assert (await draining).demoted == 1


@virtual
async def test_the_need_for_room_ends_the_wait() -> None:
    async with Cache(max_bytes=20) as cache:
        await waiting(cache)
        await cache.put(checkpoint(501), checkpoint(502))
        assert ([*range(1, 101)], True) in [
            (dirty.checkpoint.spec.tokens.tolist(), dirty.urgent) for dirty in cache.announced()
        ]


@virtual
async def test_the_loss_of_the_durable_prefix_ends_the_wait() -> None:
    async with Cache() as cache:
        await waiting(cache)
        cache.residency.ref.tell(Withdrawn(first(99).spec.tokens, ""))
        await cache.kit.advance(MOMENT_S)
        assert [len(tokens) for tokens in announced(cache)] == [100]


@virtual
async def test_the_loss_of_another_prefix_does_not_end_the_wait() -> None:
    async with Cache() as cache:
        await waiting(cache)
        cache.residency.ref.tell(Withdrawn(TokenIds.of([501, 502]), ""))
        await cache.kit.advance(MOMENT_S)
        assert announced(cache) == []


@virtual
async def test_a_crash_of_durability_ends_the_wait_for_nothing_is_known_to_be_durable() -> None:
    async with Cache() as cache:
        await waiting(cache)
        cache.kit.crash_on(cache.durability.ref, str)
        cache.durability.ref.tell("crash")
        await cache.kit.settle()
        cache.kit.failure(cache.durability.ref.path)
        cache.kit.dead_letter(cache.durability.ref.path, "crashed")
        await cache.kit.advance(5.0)
        assert [len(tokens) for tokens in announced(cache)] == [100]


@virtual
async def test_a_crash_of_durability_leaves_a_new_state_its_two_seconds_and_no_more() -> None:
    async with Cache() as cache:
        await durable(cache, first(99))
        cache.residency.put(first(100), None, provisional=True)
        await cache.kit.settle()
        cache.kit.crash_on(cache.durability.ref, str)
        cache.durability.ref.tell("crash")
        await cache.kit.settle()
        cache.kit.failure(cache.durability.ref.path)
        cache.kit.dead_letter(cache.durability.ref.path, "crashed")
        await cache.kit.advance(PROVISIONAL_S + MOMENT_S)
        assert [len(tokens) for tokens in announced(cache)] == [100]


@virtual
async def test_after_a_clear_of_the_disk_a_new_turn_waits_for_nothing_that_was_there() -> None:
    async with Cache() as cache:
        await durable(cache, first(99))
        await cache.residency.clear("ssd", 10.0)
        cache.durability.seen.clear()
        cache.residency.put(first(100), None, provisional=True)
        await waits_until(cache, PROVISIONAL_S, 100)


@virtual
async def test_what_supersedes_a_state_that_waits_puts_its_work_off_no_further() -> None:
    """Without an end to it a crash would take all that was said since the last pause."""
    async with Cache() as cache:
        await durable(cache, first(80))
        await cache.put(first(90))  # by itself in 16 s
        await cache.kit.advance(3.0)
        await cache.put(first(100))
        await waits_until(cache, 8.0 - 3.0, 100)


@virtual
@pytest.mark.parametrize(("pause_s", "least", "most"), [(5.0, 6, 10), (150.0, 20, 21)])
async def test_a_conversation_is_written_as_it_grows_not_turn_by_turn(
    pause_s: float, least: int, most: int
) -> None:
    """Twenty turns that treble it: each is written only where a turn takes longer than it may wait."""
    async with TwoTiers() as tiers:
        for turn in range(100, 300, 10):
            assert tiers.cache.put(first(turn), None, provisional=True)
            await tiers.kit.advance(2.0)
            await tiers.put(first(turn + 5))
            await tiers.kit.advance(pause_s - 2.0)
            await tiers.calm()
        assert least <= tiers.counts.spills <= most
        assert await tiers.durable()


def announced(cache: Cache) -> list[list[int]]:
    return [dirty.checkpoint.spec.tokens.tolist() for dirty in cache.announced()]
