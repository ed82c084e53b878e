"""Scenarios of KV schemes and odd caches: decided at the start, and right for every row from then on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.errors import SchemeRefused
from samovar.runtime.engine.state.scheme import KvChoice
from samovar.runtime.kernel import StartFailed

from .raw import raw
from .rig import Server, assistant, run, serving, tiny, user

if TYPE_CHECKING:
    from tests.kit.tiny import TinyEngine

    from .raw import RawEngine

pytestmark = pytest.mark.timeout(60)

OFF = ("cache.ram.max=0",)
WORDS = "four and twenty blackbirds sat upon the old copper samovar and none of them would sing. "


def story(tokens: int) -> str:
    return (WORDS * (tokens // len(WORDS) + 1))[:tokens]


def kept(family: str, scheme: str, start: int, group: int = 64) -> TinyEngine:
    return replace(tiny(family), kv=KvChoice(scheme, group, start))


# --- company ------------------------------------------------------------------------------------------


async def said(server: Server, prompt: str, begun: asyncio.Event) -> str:
    """Return the text of a reply; ``begun`` is set with its first piece."""
    text = ""
    async for event in server.events(prompt, max_tokens=150):
        if event != "[DONE]" and event["choices"]:
            text += event["choices"][0]["delta"].get("content") or ""
            if text:
                begun.set()
    return text


@pytest.mark.parametrize("start", [0, 24])
def test_b122_quantised_rows_of_different_length_join_amid_a_reply(start: int) -> None:
    """B122: four bits, two heads of keys for four, prompts of 5 and 66 tokens; each as alone."""
    prompts = (story(66), "Hello")
    engine: RawEngine = raw("llama-wide", kv=KvChoice("kv4", 64, start))

    async def alone() -> list[str]:
        async with serving(engine, None, *OFF, "lanes.batch=1") as server:
            return [(await server.talk(prompt, max_tokens=150)).text for prompt in prompts]

    async def scenario() -> None:
        expected = await alone()
        for order in ((0, 1), (1, 0)):
            async with serving(engine, None, *OFF) as server:
                assert set((await server.part("kv"))["layers"]) == {"kv:quant:4:32"}
                begun = asyncio.Event()
                first = asyncio.ensure_future(said(server, prompts[order[0]], begun))
                await begun.wait()
                second = await server.talk(prompts[order[1]], max_tokens=150)
                assert [await first, second.text] == [expected[place] for place in order]
                await server.until(lambda stats: stats["lanes"][0]["peak_rows"] == 2)

    run(scenario())


# --- decided at the start -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "scheme", "start", "layers"),
    [
        ("llama-wide", "kv8", 64, {"kv:quant:8:32": 2}),
        ("llama-wide", "kv4", 0, {"kv:quant:4:32": 2}),
        ("gemma3_text-wide", "kv8", 0, {"kv:quant:8:32": 1, "kv:rotating-quant:8:32": 2}),
        ("gemma3_text-wide", "kv4", 64, {"kv:quant:4:32": 1, "kv:rotating-quant:4:32": 2}),
        ("qwen3_next-wide", "kv8", 64, {"state:arrays": 1, "kv:quant:8:32": 1}),
        ("qwen3_next-wide", "kv4", 0, {"state:arrays": 1, "kv:quant:4:32": 1}),
    ],
)
def test_b128_which_layers_are_quantised_is_said_at_the_start_and_so_they_stay(
    family: str, scheme: str, start: int, layers: dict[str, int]
) -> None:
    """B128: prompts of 10 and 300 tokens, below and past start and window; nothing fails at a length."""

    async def scenario() -> None:
        async with serving(kept(family, scheme, start)) as server:
            assert await server.part("kv") == {"scheme": scheme, "layers": layers}
            prompts = (story(10), story(300))
            firsts = await asyncio.gather(*[server.talk(prompt, max_tokens=40) for prompt in prompts])
            for prompt, first in zip(prompts, firsts, strict=True):
                again = await server.talk(prompt, max_tokens=40)
                assert (again.text, again.cached) == (first.text, first.whole)
            assert [lane["restarts"] for lane in await server.part("lanes")] == [0]

    run(scenario())


@pytest.mark.parametrize(
    ("family", "scheme", "said"),
    [
        ("mamba2", "kv8", "state:arrays has nothing to quantise"),
        ("deepseek_v3", "kv4", "keys 32 and values 8 wide"),
        ("llama-80", "kv4", "keys 80 and values 80 wide"),
    ],
)
def test_b128_b130_what_cannot_be_quantised_is_refused_at_the_start_with_the_numbers(
    family: str, scheme: str, said: str
) -> None:
    """B128, B130: recurrent state, latents whose widths differ, heads without whole groups."""

    async def scenario() -> None:
        with pytest.raises(StartFailed) as ended:
            async with serving(kept(family, scheme, 0)):
                pass
        assert isinstance(ended.value.__cause__, SchemeRefused)
        assert said in str(ended.value)

    run(scenario())


def test_b130_the_group_is_found_for_each_layer_at_the_start() -> None:
    """B130: heads of 96 with groups of 64: groups of 32, and the first token comes."""

    async def scenario() -> None:
        async with serving(kept("llama-96", "kv4", 0, group=64)) as server:
            assert (await server.part("kv"))["layers"] == {"kv:quant:4:32": 2}
            assert (await server.talk(story(70), max_tokens=12)).completion_tokens == 12

    run(scenario())


# --- attention in chunks ------------------------------------------------------------------------------


def test_b133_attention_in_chunks_answers_as_computed_afresh_whatever_is_reused() -> None:
    """B133: chunks of 32 tokens, turns to beyond 100; what slid out is lent to nobody who would need it."""
    engine = tiny("llama4", prefill_chunk=20)

    async def lead(server: Server) -> list[tuple[str, int]]:
        messages: list[dict[str, Any]] = [user("Hi")]
        said: list[tuple[str, int]] = []
        for turn in range(3):
            answer = await server.talk(messages, max_tokens=25)
            said.append((answer.text, answer.cached))
            messages += [assistant(answer.text), user(f"And {turn}?")]
        # Back to where the second turn began, which the state of the third is beyond.
        answer = await server.talk([*messages[:2], user("Or rather?")], max_tokens=25)
        return [*said, (answer.text, answer.cached)]

    async def scenario() -> None:
        async with serving(engine, None, *OFF) as server:
            expected = await lead(server)
        async with serving(engine) as server:
            found = await lead(server)
            assert (await server.part("lanes"))[0]["decoded_tokens"] >= 100
        assert [text for text, _ in found] == [text for text, _ in expected]
        assert all(cached > 0 for _, cached in found[1:3])

    run(scenario())
