"""Scenarios of model families: what hybrids and windows store is used, and company never changes a row."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.engine.state.scheme import KvChoice
from samovar.storage.container import read_header

from tests.kit.disk import FaultDisk

from .raw import raw
from .rig import Server, assistant, run, serving, system, tiny, user

if TYPE_CHECKING:
    from .raw import RawEngine

pytestmark = pytest.mark.timeout(60)

OFF = ("cache.ram.max=0",)
DISK = ("cache.ssd.dir=/cache", "cache.ram.min_tokens=16", "cache.ssd.restore_min_tokens=16")
WORDS = "the miller of the steppe counts his sheep, and the samovar sings to them all night long. "

# Which kinds of state the file of a family must carry: its layers' signatures.
STATES = {
    "gemma3_text": {"kv:plain", "kv:rotating"},
    "qwen3_next": {"kv:plain", "state:arrays"},
    "lfm2": {"kv:plain", "state:arrays"},
    "mamba2": {"state:arrays"},
}
HYBRIDS = ("qwen3_next", "lfm2", "mamba2", "granitemoehybrid")
PLAIN = KvChoice()


def story(start: str, tokens: int) -> str:
    return (start + " " + WORDS * (tokens // len(WORDS) + 1))[:tokens]


# --- stored, restored, used ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", STATES)
def test_b023_what_is_restored_after_a_restart_is_reused(family: str) -> None:
    """B023: a chat of 600 tokens, the end that SIGTERM brings, a new server, one turn more."""
    opening = [system("You are a miller."), user(story("Tell me of sheep.", 600))]

    async def scenario() -> None:
        disk = FaultDisk()
        async with serving(tiny(family), disk, *DISK) as server:
            first = await server.talk(opening, max_tokens=8)
            assert await server.end() == 0
        messages = [*opening, assistant(first.text), user("Go on.")]
        stored = [read_header(disk, path).header.spec for path in disk.files() if path.suffix == ".kv"]
        assert {layer.signature for spec in stored for layer in spec.layers} == STATES[family]
        async with serving(tiny(family), disk.kill(), *DISK) as server:
            answer = await server.talk(messages, max_tokens=8)
            assert answer.tier == "ssd"
            assert answer.cached >= first.fed >= 600
            assert await server.prefilled() == answer.whole - answer.cached
        async with serving(tiny(family), None, *OFF) as server:
            assert (await server.talk(messages, max_tokens=8)).text == answer.text

    run(scenario())


@pytest.mark.parametrize("family", ["gemma3_text", "mamba2"])
def test_b023_where_nothing_can_be_used_the_response_says_why(family: str) -> None:
    """B023: the stored state is longer than what is asked for, and cannot be shortened."""
    body = story("Tell me of sheep.", 600)

    async def scenario() -> None:
        disk = FaultDisk()
        async with serving(tiny(family), disk, *DISK) as server:
            await server.talk(body, max_tokens=8)
            await server.flush()
        async with serving(tiny(family), disk.kill(), *DISK) as server:
            answer = await server.talk(body[:500], max_tokens=8)
            assert (answer.cached, answer.tier, answer.miss_reason) == (0, "none", "untrimmable")

    run(scenario())


# --- in company ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guest:
    """A prompt, the limit of its reply, after how many tokens its client hangs up, and what it says next."""

    prompt: str
    max_tokens: int
    leaves_after: int | None = None
    more: str = " And then?"

    def next_turn(self, reply: str) -> list[dict[str, str]]:
        return [user(self.prompt), assistant(reply), user(self.more)]


# Prompts of exactly 37, 2, 9 and 17 tokens.
GUESTS = (
    Guest(story("Long", 37), 120),
    Guest("Hi", 12),
    Guest(story("Nine", 9), 80, 25),
    Guest(story("A prompt of", 17), 30, None, " Why?"),
)


async def said(server: Server, guest: Guest, begun: asyncio.Event) -> str:
    """Return the text of a reply, or what there was of it when its client hung up."""
    text = ""
    async with aclosing(server.events(guest.prompt, max_tokens=guest.max_tokens)) as events:
        async for event in events:
            if event == "[DONE]" or not event["choices"]:
                continue
            text += event["choices"][0]["delta"].get("content") or ""
            if text:
                begun.set()
            if guest.leaves_after is not None and len(text) >= guest.leaves_after:
                break
    return text


async def alone(engine: RawEngine) -> tuple[list[str], list[list[dict[str, str]]], list[str]]:
    """Return each guest's reply, next turn, and reply to that: one after the other, nothing reused."""
    async with serving(engine, None, *OFF, "lanes.batch=1") as server:
        firsts = [(await server.talk(guest.prompt, max_tokens=guest.max_tokens)).text for guest in GUESTS]
        histories = [
            guest.next_turn(first[: guest.leaves_after]) for guest, first in zip(GUESTS, firsts, strict=True)
        ]
        return firsts, histories, [(await server.talk(body, max_tokens=20)).text for body in histories]


async def together(server: Server) -> list[str]:
    """Let every guest come when the ones before decode; return what each was told."""
    talks: list[asyncio.Future[str]] = []
    for guest in GUESTS:
        begun = asyncio.Event()
        talks.append(asyncio.ensure_future(said(server, guest, begun)))
        await begun.wait()
    return await asyncio.gather(*talks)


@pytest.mark.parametrize(
    ("family", "kv"),
    [
        *((family, PLAIN) for family in HYBRIDS),
        ("qwen3_next-wide", KvChoice("kv8", 32, 0)),
        ("gemma3_text-wide", KvChoice("kv4", 32, 24)),
    ],
    ids=lambda value: value.scheme if isinstance(value, KvChoice) else value,
)
def test_b026_a_row_in_company_is_the_row_alone(family: str, kv: KvChoice) -> None:
    """B026: prompts of 2 to 37 tokens prefilled by fours, joins, leaves, then all go on at once."""
    engine = raw(family, kv=kv, prefill_chunk=4)

    async def scenario() -> None:
        firsts, histories, seconds = await alone(engine)
        async with serving(engine) as server:
            for guest, first, told in zip(GUESTS, firsts, await together(server), strict=True):
                assert told == first if guest.leaves_after is None else first.startswith(told)
            answers = await asyncio.gather(*[server.talk(body, max_tokens=20) for body in histories])
            assert [answer.text for answer in answers] == seconds
            assert len({answer.cached for answer in answers}) == len(GUESTS)
            await server.until(lambda stats: stats["lanes"][0]["peak_rows"] >= 3)

    run(scenario())
