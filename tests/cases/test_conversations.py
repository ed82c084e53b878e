"""Scenarios of conversations that share, repeat, continue and edit: what is reused never changes the text."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.requestlog import LineLog

from tests.kit.disk import FaultDisk
from tests.kit.engine import FakeEngine

from .raw import RawCodec, raw
from .rig import Answer, Server, assistant, logged, run, serving, system, tiny, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from samovar.runtime.engine.port import RowRequest

pytestmark = pytest.mark.timeout(60)

OFF = ("cache.ram.max=0",)
DISK = "cache.ssd.dir=/cache"
WORDS = "the old copper samovar sings while seven wizards mix potions and a quick brown fox looks on. "


def long(start: str, tokens: int) -> str:
    return (start + " " + WORDS * (tokens // len(WORDS) + 1))[:tokens]


# --- many at once -----------------------------------------------------------------------------------


async def chat(server: Server, number: int, turns: int) -> list[Answer]:
    """Lead one conversation, its code word in the system turn."""
    messages = [system(f"Code word of this chat: ZEBRA-0{number}. Only repeat it when asked.")]
    answers: list[Answer] = []
    for turn in range(turns):
        messages.append(user(f"Question {turn} of guest {number}?"))
        answers.append(await server.talk(messages, max_tokens=8, session_id=f"chat-{number}"))
        messages.append(assistant(answers[-1].text))
    return answers


def test_b001_chats_side_by_side_never_get_each_others_state() -> None:
    """B001: 8 chats of 6 turns, 8 clients, 2 rows, room for 3 entries; told apart by a code word alone."""

    async def key() -> list[list[Answer]]:
        async with serving(None, None, *OFF) as server:
            return [await chat(server, number, 6) for number in range(8)]

    async def together() -> list[list[Answer]]:
        async with serving(None, None, "lanes.batch=2", "cache.ram.max=840KB") as server:
            found = await asyncio.gather(*[chat(server, number, 6) for number in range(8)])
            answers = [answer for chats in found for answer in chats]
            # Usage tells the truth: what it calls cached is exactly what was not prefilled.
            assert await server.prefilled() == sum(answer.whole - answer.cached for answer in answers)
            cache = await server.part("prompt_cache")
            assert cache["evictions"] > 0
            assert cache["bytes"] <= cache["max_bytes"]
            return found

    expected, found = run(key()), run(together())
    assert [[answer.text for answer in chats] for chats in found] == [
        [answer.text for answer in chats] for chats in expected
    ]
    # Every chat begins alike, up to its number.
    assert sum(answer.cached > 0 for chats in found for answer in chats) > 20


def test_b002_what_sank_to_disk_comes_back_to_the_right_chat_amid_other_traffic() -> None:
    """B002: 12 chats, RAM for 2, returning in random order while somebody else fires short prompts."""
    openings = [long(f"{number}: the tale of house {number}.", 700) for number in range(12)]
    shorts = [f"quick {number * 7919 % 1000}?" for number in range(40)]
    order = random.Random(2).sample(range(12), 12)
    bodies = [[user(opening), assistant("so?"), user("go on")] for opening in openings]

    async def cold() -> list[str]:
        async with serving(None, None, *OFF) as server:
            return [(await server.talk(body, max_tokens=8)).text for body in bodies]

    async def fire(server: Server) -> list[str]:
        return [(await server.talk(short, max_tokens=3)).text for short in shorts]

    async def returning() -> tuple[list[Answer], list[str]]:
        # Short chunks make prefilling slow enough that a restore is always worth it.
        engine = tiny(prefill_chunk=32)
        settings = (DISK, "cache.ram.max=900KB", "cache.ram.hard_max=64MB", "cache.ssd.demote_idle=0")
        async with serving(engine, FaultDisk(), *settings) as server:
            for opening in openings:
                await server.talk(opening, max_tokens=4)
            await server.flush()
            assert (await server.part("prompt_cache"))["entries"] <= 2
            firing = asyncio.ensure_future(fire(server))
            found = {number: await server.talk(bodies[number], max_tokens=8) for number in order}
            return [found[number] for number in range(12)], await firing

    expected = run(cold())
    found, answered = run(returning())
    assert [answer.text for answer in found] == expected
    assert len(answered) == 40
    assert all(answer.cached >= 700 for answer in found)
    assert sum(answer.tier == "ssd" for answer in found) >= 10


class Marked(FakeEngine):
    """Replies with the last characters of the prompt, so that every reply names its request."""

    def reply(self, row: RowRequest, n: int) -> str | None:
        return "".join(map(chr, row.tokens[-3:])) if n < row.max_tokens else None


def test_b146_one_long_beginning_is_prefilled_once_for_all_who_come_together() -> None:
    """B146: 8 requests at once over one system turn of 1500 tokens."""
    shared = system(long("You are the butler of a very large house.", 1500))
    bodies = [[shared, user(f"Marker {number}, please.")] for number in range(8)]

    async def cold() -> list[str]:
        async with serving(None, None, *OFF) as server:
            return [(await server.talk(body, max_tokens=8)).text for body in bodies]

    async def at_once() -> list[Answer]:
        async with serving() as server:
            found = await asyncio.gather(*[server.talk(body, max_tokens=8) for body in bodies])
            prefilled = await server.prefilled()
            assert prefilled < 2 * 1600
            assert prefilled == sum(answer.whole - answer.cached for answer in found)
            return list(found)

    found = run(at_once())
    assert [answer.text for answer in found] == run(cold())
    assert sum(answer.cached >= 1500 for answer in found) >= 6


@pytest.mark.parametrize("leaves", ["in prefill", "in the queue"])
def test_b146_who_leaves_first_strands_nobody(leaves: str) -> None:
    """B146: the one whom the others wait for hangs up; the next one prefills, and all are answered."""
    shared = system(long("You are the butler of a very large house.", 1500))
    bodies = [[shared, user(f"Marker {number:03}")] for number in range(8)]

    async def scenario() -> None:
        engine = Marked(context_length=4000, gated=True, prefill_tokens=100)
        batch = 8 if leaves == "in prefill" else 1
        async with serving(engine, None, f"lanes.batch={batch}") as server:
            first = asyncio.ensure_future(server.talk(bodies[0], max_tokens=2))
            await server.until(lambda stats: stats["scheduler"]["running"] == 1)
            engine.allow(3)
            others = [asyncio.ensure_future(server.talk(body, max_tokens=2)) for body in bodies[1:]]
            await server.until(lambda stats: stats["scheduler"]["queued"] == 7)
            everybody = [first, *others]
            gone = 0 if leaves == "in prefill" else 1
            asks = (await server.part("actors"))["open_asks"]
            everybody.pop(gone).cancel()
            await server.until(lambda stats: left(stats, asks))
            engine.allow(200)
            answers = await asyncio.gather(*everybody)
            assert [answer.text[:3] for answer in answers] == [f"{n:03}" for n in range(8) if n != gone]
            assert (await server.part("scheduler"))["cancelled"] == 1
            # The abandoned 300 tokens, the shared part once, and seven short ends.
            assert engine.prefilled <= 300 + 1520 + 7 * 20

    run(scenario())


def left(stats: Any, asks: int) -> bool:
    """Whether a client's leaving was noticed: its row is cancelled, or its question withdrawn."""
    return stats["scheduler"]["cancelled"] == 1 or stats["actors"]["open_asks"] == asks - 1


# --- the same again ---------------------------------------------------------------------------------


FAMILIES = ("llama", "gemma3_text", "qwen3_next", "mamba2")


@pytest.mark.parametrize("family", FAMILIES)
def test_b016_b017_a_prompt_that_is_an_entry_leaves_one_token_to_feed(family: str) -> None:
    """B016, B017: repeated, streamed, and a prompt that is exactly the last prompt with its reply."""
    prompt = long("Forty tokens.", 40)

    async def cold(*contents: str) -> str:
        async with serving(raw(family), None, *OFF) as server:
            return (await server.talk([user(content) for content in contents], max_tokens=12)).text

    async def scenario() -> None:
        reply = await cold(prompt)
        following = await cold(prompt, reply)
        async with serving(raw(family)) as server:
            for attempt in range(3):
                say = server.stream if attempt == 1 else server.talk
                answer = await say(prompt, max_tokens=12)
                assert answer.text == reply
                assert answer.cached == (answer.whole if attempt else 0)
            exact = await server.talk([user(prompt), assistant(reply)], max_tokens=12)
            assert exact.text == following
            assert exact.prompt_tokens == 52
            assert exact.cached == 51

    run(scenario())


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
@pytest.mark.parametrize("ending", ["length", "stop string", "end token", "cancelled"])
def test_b098_what_follows_a_reply_is_right_however_it_ended(family: str, ending: str) -> None:
    """B098: the last sampled token may never have been fed."""
    prompt = long("Tell me a story.", 60)

    async def scenario() -> None:
        async with serving(raw(family), None, *OFF) as server:
            whole = (await server.talk(prompt, max_tokens=12)).text
        end = RawCodec().encode(whole[8])[0] if ending == "end token" else None
        off, server_of = (serving(raw(family, end), None, *OFF), serving(raw(family, end)))
        fields: dict[str, Any] = {"max_tokens": 8 if ending == "length" else 12}
        if ending == "stop string":
            fields["stop"] = whole[7:9]
        async with server_of as server:
            if ending == "cancelled":
                reply = await hang_up(server.events(prompt, max_tokens=400), 8)
                await server.until(lambda stats: stats["scheduler"]["cancelled"] == 1)
            else:
                reply = (await server.talk(prompt, **fields)).text
            body = [user(prompt), assistant(reply), user("And then?")]
            warm = await server.talk(body, max_tokens=10)
            # A cancelled reply leaves its prompt only. Recurrent state of a cut reply is ahead of its text.
            past = family == "qwen3_next" and ending in {"stop string", "end token"}
            assert warm.cached >= (59 if ending == "cancelled" or past else 60 + len(reply) - 1)
        async with off as server:
            assert (await server.talk(body, max_tokens=10)).text == warm.text

    run(scenario())


async def hang_up(events: AsyncIterator[Any], after: int) -> str:
    """Read pieces of a stream until there are so many, then close it."""
    text = ""
    async for event in events:
        if event != "[DONE]" and event["choices"]:
            text += event["choices"][0]["delta"].get("content") or ""
        if len(text) >= after:
            break
    await events.aclose()  # type: ignore[attr-defined]
    return text


def test_b107_penalties_give_the_same_text_cold_warm_and_after_a_restart() -> None:
    """B107: the penalised window is the whole history, whatever of it was prefilled here."""
    body = long("copper silver gold tin, copper silver gold tin.", 300)
    fields = {"max_tokens": 40, "repetition_penalty": 1.5, "temperature": 0}

    async def scenario() -> None:
        disk = FaultDisk()
        async with serving(None, None, *OFF) as server:
            plain = (await server.talk(body, max_tokens=40)).text
            expected = (await server.talk(body, **fields)).text
        assert expected != plain
        async with serving(None, disk, DISK) as server:
            texts = [(await server.talk(body, **fields)).text for _ in range(2)]
            await server.flush()
        async with serving(None, disk.kill(), DISK) as server:
            again = await server.talk(body, **fields)
            assert (again.tier, again.cached) == ("ssd", again.whole)
        assert [*texts, again.text] == [expected] * 3

    run(scenario())


# --- histories that change --------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize("client", ["drops thoughts", "returns them"])
def test_b097_at_most_the_last_reply_is_prefilled_again(family: str, client: str) -> None:
    """B097: thoughts that the next turn does not render cost the last reply, never the conversation."""

    async def scenario() -> None:
        messages = [user(long("Think, then answer.", 300))]
        async with serving(tiny(family)) as server, serving(tiny(family), None, *OFF) as off:
            before: Answer | None = None
            for turn in range(5):
                answer = await server.talk(messages, max_tokens=20)
                assert answer.text == (await off.talk(messages, max_tokens=20)).text
                if before is not None:
                    kept = before.whole if client == "drops thoughts" else before.fed
                    assert answer.cached >= kept
                before = answer
                shown = answer.text[16:] if client == "drops thoughts" else answer.text
                messages += [assistant(shown), user(f"Turn {turn}?")]

    run(scenario())


def test_b100_a_line_that_changes_in_front_is_named_as_the_reason() -> None:
    """B100: where the prompt parted is in the log and in explain; dead entries stay within the cap."""
    header = "x-anthropic-billing-header: cch="
    stamps = [f"{number * 2654435761 % 2**32:08x}" for number in range(5)]
    first_difference = 1 + len("system:") + len(header)

    async def scenario() -> None:
        with logged() as log:
            async with serving(None, None, "cache.ram.max=2MB", log=LineLog()) as server:
                question = user("Where does the time go?")
                for number, stamp in enumerate(stamps):
                    body = [system(header + stamp + long(" Be kind.", 900)), question]
                    if number:
                        told = await server.explain(body)
                        shared = common(stamp, stamps[:number])
                        assert told["diverged_at"] == first_difference + shared
                        assert told["cached_tokens"] == told["diverged_at"]
                        assert told["prompt_tokens"] > 900
                    await server.talk(body, max_tokens=4)
                    cache = await server.part("prompt_cache")
                    assert cache["bytes"] <= cache["max_bytes"]
                assert cache["evictions"] > 0
            lines = [line for line in log.lines("request") if line["route"] == "/v1/chat/completions"]
        for number, line in enumerate(lines[1:], 1):
            assert line["diverged_at"] == first_difference + common(stamps[number], stamps[:number])

    run(scenario())


def common(stamp: str, others: Sequence[str]) -> int:
    """Return how many characters ``stamp`` shares with the one most like it."""
    return max(next(n for n in range(9) if stamp[:n] != other[:n]) - 1 for other in others)


def test_b100_a_clock_at_the_end_of_the_system_turn_keeps_what_comes_before_it() -> None:
    """B100: only what follows the clock is prefilled again, and the reason can be asked for."""

    async def scenario() -> None:
        rules = long("Rules of the house:", 1500)
        async with serving(None, None, "cache.ram.min_tokens=32") as server:
            await server.talk([system(f"{rules} It is 12:00."), user("Hi")], max_tokens=4)
            answer = await server.talk([system(f"{rules} It is 12:01."), user("Hi")], max_tokens=4)
            assert answer.cached == 1 + len(f"system:{rules} It is 12:0")
            # Too little in common is no hit, and is said so.
            told = await server.explain("tea?")
            assert (told["cached_tokens"], told["reason"]) == (0, "below_min_tokens")
            other = await server.talk("tea?", max_tokens=4)
            assert (other.cached, other.miss_reason) == (0, "below_min_tokens")

    run(scenario())
