"""Quantised KV schemes over a whole server: reuse, turns, restarts, and two schemes on one disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.engine.state.scheme import KvChoice

from tests.cases.rig import assistant, run, serving, tiny, user

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.tiny import TinyEngine

WIDE = ("llama-wide", "gemma3_text-wide", "qwen3_next-wide")
LONG = "the quick brown fox jumps over a lazy dog while seven wizards mix potions in the old samovar"
SHORT = "tea?"

pytestmark = pytest.mark.timeout(60)


def engine(family: str, start: int, scheme: str = "kv4") -> TinyEngine:
    return replace(tiny(family), kv=KvChoice(scheme, 64, start))


def disk(folder: Path) -> tuple[str, ...]:
    return (f"cache.ssd.dir={folder / 'kv'}", "cache.ssd.demote_idle=0")


@pytest.mark.parametrize("scheme", ["bf16", "kv8"])
def test_a_state_of_another_scheme_is_neither_found_nor_deleted(tmp_path: Path, scheme: str) -> None:
    async def scenario() -> None:
        async with serving(engine("llama-wide", 0), None, *disk(tmp_path)) as server:
            first = await server.talk(LONG, max_tokens=8)
            await server.flush()
        async with serving(engine("llama-wide", 0, scheme), None, *disk(tmp_path)) as server:
            assert (await server.talk(LONG, max_tokens=8)).tier == "none"
            await server.flush()
        async with serving(engine("llama-wide", 0), None, *disk(tmp_path)) as server:
            again = await server.talk(LONG, max_tokens=8)
            assert (again.tier, again.cached, again.text) == ("ssd", again.whole, first.text)

    run(scenario())


def test_stats_say_which_layers_are_kept_how() -> None:
    async def scenario() -> None:
        async with serving(engine("qwen3_next-wide", 0, "kv8")) as server:
            wanted = {"scheme": "kv8", "layers": {"state:arrays": 1, "kv:quant:8:32": 1}}
            assert await server.part("kv") == wanted

    run(scenario())


@pytest.mark.parametrize(
    ("family", "start"), [*((family, start) for family in WIDE for start in (0, 24)), ("llama-wide", 64)]
)
def test_a_prompt_is_paid_for_once_whatever_the_scheme(tmp_path: Path, family: str, start: int) -> None:
    """Short prompts convert in the reply, long ones before it; either comes back whole, from RAM and disk."""
    most = 30 if start < 64 else 60

    async def scenario() -> None:
        async with serving(engine(family, start), None, *disk(tmp_path)) as server:
            first = {say: await server.talk(say, max_tokens=most) for say in (SHORT, LONG)}
            for say, answer in first.items():
                again = await server.talk(say, max_tokens=most)
                assert (again.tier, again.cached, again.text) == ("ram", again.whole, answer.text), say
            turns = [user(LONG), assistant(first[LONG].text), user(SHORT)]
            second = await server.talk(turns, max_tokens=10)
            assert second.cached >= first[LONG].whole
            await server.flush()
        async with serving(engine(family, start), None, *disk(tmp_path)) as server:
            for say, answer in first.items():
                again = await server.talk(say, max_tokens=most)
                assert (again.tier, again.cached, again.text) == ("ssd", again.whole, answer.text), say
            assert (await server.talk(turns, max_tokens=10)).text == second.text
            assert (await server.part("ssd_cache"))["corrupt"] == 0

    run(scenario())
