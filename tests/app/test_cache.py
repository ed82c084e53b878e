"""No prompt is prefilled twice: a real server over the real engine, one tiny model for each cache family."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from .process import ServerProcess, tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAMILIES = ("llama", "gemma3_text", "qwen3_next", "mamba2")
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards mix potions in the old copper samovar"
LONG = " ".join(f"{n}. {WORDS}" for n in range(6))
SHORT = "tea?"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def start(family: str, tmp_path: Path) -> Iterator[Any]:
    """Start servers of the family on one cache directory; each is killed when the next one starts."""
    running: list[ServerProcess] = []

    def another(*settings: str) -> ServerProcess:
        process = tiny(
            family,
            f"cache.ssd.dir={tmp_path / 'kv'}",
            "cache.ssd.restore_min_tokens=1",
            "cache.ram.min_tokens=4",
            *settings,
        )
        running.append(process)
        return process.wait_ready()

    yield another
    for process in running:
        process.__exit__()


def say(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def text(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def reuse(answer: dict[str, Any]) -> tuple[str, int]:
    usage = answer["usage"]
    assert usage["samovar"]["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    return usage["samovar"]["tier"], usage["samovar"]["cached_tokens"]


def fed(answer: dict[str, Any]) -> int:
    """Tokens that the model was fed for an answer: all but the last one that it gave."""
    return answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"] - 1


@pytest.mark.parametrize("content", [LONG, SHORT], ids=["long", "short"])
def test_a_repeated_prompt_is_served_whole_from_ram_and_after_sigkill_from_ssd(
    start: Any, content: str
) -> None:
    server = start()
    cold = server.talk(say(content), max_tokens=24)
    assert reuse(cold) == ("none", 0)
    warm = server.talk(say(content), max_tokens=24)
    whole = cold["usage"]["prompt_tokens"] - 1
    assert reuse(warm) == ("ram", whole)
    assert text(warm) == text(cold)
    status, flushed = server.call("POST", "/admin/cache/flush")
    assert (status, flushed["durable"]) == (200, True)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    after = start().talk(say(content), max_tokens=24)
    assert reuse(after) == ("ssd", whole)
    assert text(after) == text(cold)


def test_every_turn_reuses_the_one_before_and_so_does_a_branch_and_an_edit_falls_back(start: Any) -> None:
    server = start()
    messages = say(LONG)
    answers = [server.talk(messages, max_tokens=12)]
    histories = [list(messages)]
    for turn in range(9):
        messages += [
            {"role": "assistant", "content": text(answers[-1])},
            {"role": "user", "content": f"and {turn}?"},
        ]
        histories.append(list(messages))
        answers.append(server.talk(messages, max_tokens=12))
        tier, cached = reuse(answers[-1])
        assert tier == "ram"
        assert cached >= fed(answers[-2])
    branch = [*histories[4][:-1], {"role": "user", "content": "or rather this?"}]
    assert reuse(server.talk(branch, max_tokens=4))[1] >= fed(answers[3])
    edited = [*histories[2][:-1], {"role": "user", "content": "something else"}, *histories[5][5:]]
    assert reuse(server.talk(edited, max_tokens=4))[1] >= fed(answers[1])
    # Sigterm flushes by itself; the last turn comes back whole.
    server.signal()
    assert server.end() == 0
    again = start().talk(histories[-1], max_tokens=12)
    assert reuse(again) == ("ssd", answers[-1]["usage"]["prompt_tokens"] - 1)
    assert text(again) == text(answers[-1])


@pytest.mark.parametrize("family", ["llama", "qwen3_next"], indirect=True)
def test_replies_do_not_depend_on_what_ran_before(start: Any) -> None:
    """B019: shared beginnings in any order give what a fresh process gives."""
    prompts = [LONG + tail for tail in (" One.", " Two, then.", "")]
    off = start("cache.ram.max=0", "cache.ssd.dir=off")
    key = [text(off.talk(say(prompt), max_tokens=10)) for prompt in prompts]
    server = start()
    for order in ((0, 1, 2), (2, 1, 0), (0, 0, 1, 1, 2, 2)):
        server.call("DELETE", "/admin/cache?tier=all")
        for place in order:
            assert text(server.talk(say(prompts[place]), max_tokens=10)) == key[place]
