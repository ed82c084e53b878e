"""Scenarios of memory: the cap holds on every path, hits cost no copies, and what was taken comes back."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from tests.kit.disk import FaultDisk
from tests.kit.engine import FakeEngine

from .rig import Answer, Server, assistant, run, serving, tiny, user

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(60)

DISK = "cache.ssd.dir=/cache"
HYBRID = ("qwen3_next", "mamba2")


def numbered(number: int, tokens: int) -> str:
    return (f"{number}. " + "counting sheep in the steppe " * (tokens // 20 + 1))[:tokens]


async def held_bytes(server: Server) -> int:
    return (await server.part("prompt_cache"))["bytes"]


async def entry_bytes(tokens: int) -> int:
    """Return what RAM holds for one chat of so many tokens."""
    async with serving() as server:
        await server.talk(numbered(0, tokens), max_tokens=2)
        return await held_bytes(server)


def active_bytes() -> int:
    gc.collect()
    return mx.get_active_memory()


# --- the cap ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("disk", [False, True])
def test_b112_what_is_larger_than_the_cap_is_not_kept(*, disk: bool) -> None:
    """B112: half of an entry as cap. With a disk it is held until it is durable, below the hard ceiling."""

    async def scenario() -> None:
        one = await entry_bytes(1000)
        settings = [f"cache.ram.max={one // 2}B", f"cache.ram.hard_max={2 * one + one // 2}B"]
        async with serving(
            None, FaultDisk() if disk else None, *settings, *([DISK] if disk else [])
        ) as server:
            for number in range(3):
                await server.talk(numbered(number, 1000), max_tokens=2)
                assert await held_bytes(server) <= (2 * one + one // 2 if disk else one // 2)
            if disk:
                await server.flush()
            await server.until(lambda stats: stats["prompt_cache"]["bytes"] <= one // 2)
            answer = await server.talk(numbered(1, 1000), max_tokens=2)
            assert (answer.tier, answer.cached) == (("ssd", answer.whole) if disk else ("none", 0))

    run(scenario())


@pytest.mark.parametrize("writes", ["prompt", "never"])
def test_b112_neither_cap_nor_ceiling_is_passed_at_any_step(writes: str) -> None:
    """B112: room for 3 entries, 10 arrive; with a disk that never writes the ceiling holds by losing some."""

    async def scenario() -> None:
        one = await entry_bytes(300)
        disk = FaultDisk()
        if writes == "never":
            disk.fail_kind("create", 28)
        settings = (DISK, f"cache.ram.max={3 * one}B", f"cache.ram.hard_max={5 * one}B")
        async with serving(None, disk, *settings) as server:
            for number in range(10):
                await server.talk(numbered(number, 300), max_tokens=2)
                assert await held_bytes(server) <= 5 * one
            cache = await server.part("prompt_cache")
            if writes == "never":
                assert cache["lost"] >= 5
                status, report = await server.call("POST", "/admin/cache/flush")
                assert (status, report["durable"]) == (503, False)
                assert report["dropped"] + report["failed"] + report["pending"] >= 5
            else:
                await server.flush()
                cache = await server.part("prompt_cache")
                assert (cache["lost"], cache["evictions"] > 0) == (0, True)
                assert cache["bytes"] <= 3 * one

    run(scenario())


def test_b113_one_owner_keeps_the_cap_on_every_path() -> None:
    """B113: whole and streamed replies, hits, cancelled ones, restores, prompts and ends of replies."""

    async def scenario() -> None:
        one = await entry_bytes(300)
        settings = (DISK, f"cache.ram.max={3 * one}B", f"cache.ram.hard_max={4 * one}B")
        async with serving(None, FaultDisk(), *settings) as server:

            async def cancelled(number: int) -> None:
                before = (await server.part("scheduler"))["cancelled"]
                async with aclosing(server.events(numbered(number, 300), max_tokens=500)) as events:
                    async for event in events:
                        if event["choices"][0]["delta"].get("content"):
                            break
                await server.until(lambda stats: stats["scheduler"]["cancelled"] > before)

            async def restored(number: int) -> None:
                await server.flush()
                await server.to_disk()
                assert (await server.talk(numbered(number, 300), max_tokens=2)).tier == "ssd"

            paths: list[Callable[[int], Any]] = [
                lambda n: server.talk(numbered(n, 300), max_tokens=2),
                lambda n: server.talk(numbered(n - 1, 300), max_tokens=2),
                lambda n: server.stream(numbered(n, 300), max_tokens=2),
                lambda n: server.talk([user(numbered(n, 300)), assistant("ok"), user("go on")], max_tokens=2),
                cancelled,
                restored,
            ]
            for number in range(12):
                await paths[number % 6](number - 1 if number % 6 == 5 else number)
                assert await held_bytes(server) <= 4 * one
                await server.flush()
                assert await held_bytes(server) <= 3 * one

    run(scenario())


# --- what is given back -----------------------------------------------------------------------------


def test_b110_hits_neither_copy_the_state_nor_change_it() -> None:
    """B110: 20 hits of a 1500-token entry. More than one copied buffer is never held, nothing is left."""

    async def scenario() -> None:
        async with serving() as server:
            body = numbered(0, 1500)
            first = await server.talk(body, max_tokens=4)
            await server.talk(body, max_tokens=4)
            one, base = await held_bytes(server), active_bytes()
            mx.reset_peak_memory()
            for _ in range(20):
                again = await server.talk(body, max_tokens=4)
                assert (again.text, again.cached) == (first.text, again.whole)
            assert active_bytes() - base <= one // 4
            # The borrower's copy, the reply's state before it takes the old one's place, and working room.
            assert mx.get_peak_memory() - base <= 3 * one
            assert await held_bytes(server) == one
            # A borrower that decodes on for long leaves its donor as it was.
            await server.talk(body, max_tokens=200)
            assert (await server.talk(body, max_tokens=4)).text == first.text

    run(scenario())


def test_b115_memory_reaches_a_plateau_and_is_given_back_on_clear() -> None:
    """B115: a bounded soak of mixed lengths and leavers over a small cap."""
    chance = random.Random(115)

    async def one_of_many(server: Server, number: int) -> None:
        content = numbered(number % 17, chance.choice((50, 120, 400, 900)))
        if number % 5 == 4:
            async with aclosing(server.events(content, max_tokens=300)) as events:
                await anext(events)
            return
        await server.talk(content, max_tokens=chance.randrange(2, 12))

    async def scenario() -> None:
        async with serving(None, FaultDisk(), DISK, "cache.ram.max=2MB", "cache.ram.hard_max=3MB") as server:
            await server.talk(numbered(0, 900), max_tokens=4)
            await server.clear("all")
            base, samples = active_bytes(), []
            for batch in range(9):
                await asyncio.gather(*[one_of_many(server, 8 * batch + n) for n in range(8)])
                await server.until(lambda stats: stats["scheduler"]["running"] == 0)
                await server.flush()
                samples.append(active_bytes() - base)
            # The cap, and what the last batch's buffers may still hold.
            assert max(samples[3:]) <= 2_000_000 + 1_500_000
            assert max(samples[6:]) <= max(samples[:6]) + 1_000_000
            await server.clear("all")
            assert await held_bytes(server) == 0
            assert active_bytes() - base <= 1_500_000

    run(scenario())


def test_b118_neither_names_nor_restarted_lanes_load_the_model_again() -> None:
    """B118: id, alias and default in turn, then a lane that restarts again and again."""

    async def names() -> None:
        engine = FakeEngine()
        async with serving(engine, None, 'model.aliases=["gpt-4o"]') as server:
            for name in ("fake", "gpt-4o", "default") * 2:
                assert (await server.talk("hello", model=name, max_tokens=2)).text == "104.0 104.1 "
            assert engine.opened == 1

    async def restarts() -> None:
        async with serving() as server:
            body = numbered(0, 900)
            text = (await server.talk(body, max_tokens=4)).text
            await server.clear("ram")
            base = active_bytes()
            for restart in range(1, 5):
                await server.call("POST", "/admin/actors/serving/lanes/0/crash")
                await server.until(
                    lambda stats, n=restart: stats["lanes"][0] and stats["lanes"][0]["restarts"] == n
                )
                assert (await recovered(server, body)).text == text
                await server.clear("ram")
            assert active_bytes() - base <= 500_000

    run(names())
    run(restarts())


async def recovered(server: Server, body: str) -> Answer:
    """Talk as soon as requests are taken again."""
    while (await server.call("GET", "/ready"))[0] != 200:
        pass
    return await server.talk(body, max_tokens=4)


# --- states that cannot be shortened -----------------------------------------------------------------


@pytest.mark.parametrize("family", HYBRID)
def test_b088_recurrent_models_are_served_what_they_store(family: str) -> None:
    """B088: one prompt six times, then a growing chat; entries do not pile up unseen."""

    async def scenario() -> None:
        async with serving(tiny(family)) as server:
            assert (await server.part("kv"))["layers"]
            prompt = numbered(1, 600)
            answers = [await server.talk(prompt, max_tokens=6) for _ in range(6)]
            assert [answer.cached for answer in answers] == [0, *[answers[0].whole] * 5]
            assert len({answer.text for answer in answers}) == 1
            entries = (await server.part("prompt_cache"))["entries"]
            assert entries == 2  # its prompt, and the prompt with its reply
            messages = [user(prompt)]
            before = answers[0]
            for turn in range(6):
                messages += [assistant(before.text), user(f"turn {turn}")]
                answer = await server.talk(messages, max_tokens=6)
                assert answer.cached >= before.fed
                before = answer
            cache = await server.part("prompt_cache")
            assert cache["hits"] == 5 + 6
            assert cache["entries"] <= entries + 2 * 6

    run(scenario())


def test_b092_long_chats_with_a_sliding_window_never_fall_off_a_cliff() -> None:
    """B092: room for 6 checkpoints, two chats of 30 turns in turn: every turn goes on from the one before."""

    async def lead(server: Server) -> list[list[Answer]]:
        chats: list[list[Answer]] = [[], []]
        histories = [[user(f"Chat {name}: let us talk.")] for name in "AB"]
        for turn in range(30):
            for messages, answers in zip(histories, chats, strict=True):
                answers.append(await server.talk(messages, max_tokens=4))
                messages += [assistant(answers[-1].text), user(f"and {turn}?")]
        return chats

    async def scenario() -> None:
        window = tiny("gemma3_text")
        async with serving(window) as server:
            expected = await lead(server)
            _, page = await server.call("GET", "/admin/cache?tier=ram&limit=1000")
            largest = max(entry["bytes"] for entry in page["entries"])
        async with serving(window, None, f"cache.ram.max={6 * largest}B") as server:
            found = await lead(server)
            cache = await server.part("prompt_cache")
            assert cache["evictions"] > 60
            assert cache["bytes"] <= cache["max_bytes"]
        for answers, same in zip(found, expected, strict=True):
            assert [answer.text for answer in answers] == [answer.text for answer in same]
            for before, answer in itertools.pairwise(answers):
                assert answer.cached >= before.fed
            cached = [answer.cached for answer in answers]
            assert cached == sorted(cached)

    run(scenario())
