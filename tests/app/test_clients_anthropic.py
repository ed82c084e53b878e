"""The real ``anthropic`` package against the default model, and what both packages make of errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from .clients import (
    CAPITAL,
    CITY,
    FUNCTION,
    MARKS,
    MODEL,
    MOST_WITHOUT_TOOLS,
    WEATHER,
    anthropic,
    chat,
    openai,
    say,
)
from .process import fake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .process import ServerProcess

pytestmark = MARKS
KEY = "sk-a-key-of-ours"


def test_a_next_message_reuses_the_one_before(claude: anthropic.Anthropic) -> None:
    system = "You are a geographer and answer every question as briefly as you can."
    first = say(claude, system=system)
    assert "Paris" in first.content[0].text
    history: list[Any] = [
        *CAPITAL,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "And of Norway?"},
    ]
    counted = claude.messages.count_tokens(model=MODEL, system=system, messages=history).input_tokens
    with claude.messages.stream(model=MODEL, system=system, messages=history, max_tokens=8) as stream:
        text = "".join(stream.text_stream)
        second = stream.get_final_message()
    assert [block.text for block in second.content if block.type == "text"] == [text]
    read = second.usage.cache_read_input_tokens or 0
    assert read >= first.usage.input_tokens
    assert second.usage.input_tokens + read == counted


def test_anthropics_tools_make_a_round_trip(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "get_weather", "description": FUNCTION["description"], "input_schema": CITY}]
    demand: Any = {"type": "any", "disable_parallel_tool_use": True}
    fields: dict[str, Any] = {"model": MODEL, "messages": WEATHER, "tools": tools, "max_tokens": 60}
    with claude.messages.stream(tool_choice=demand, extra_body={"temperature": 0}, **fields) as stream:
        called = stream.get_final_message()
    assert called.stop_reason == "tool_use"
    use = called.content[-1]
    assert use.type == "tool_use"
    assert (use.name, set(use.input)) == ("get_weather", {"city"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny, 21 degrees"}
    history = [
        *WEATHER,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    answer = say(claude, history, tools=tools, tool_choice={"type": "none"})
    assert answer.stop_reason in {"end_turn", "max_tokens"}
    assert answer.content[0].text
    assert answer.usage.cache_read_input_tokens > MOST_WITHOUT_TOOLS


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    message = say(claude, stop_sequences=["Paris"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")
    assert message.content[0].text == "The capital of France is "


# -- errors


def test_mistakes_are_the_clients_own_classes(ai: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        chat(ai, temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as absent:
        ai.chat.completions.create(model="gpt-9", messages=CAPITAL)  # pyright: ignore[reportArgumentType]
    assert absent.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as gone:
        ai.responses.create(model=MODEL, input="x", previous_response_id="resp_" + 32 * "0")
    assert gone.value.code == "previous_response_not_found"
    with pytest.raises(anthropic.BadRequestError) as refused:
        say(claude, thinking={"type": "strange"})
    assert "thinking" in str(refused.value)
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude-9", messages=CAPITAL, max_tokens=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(anthropic.BadRequestError):
        say(claude, [{"role": "user", "content": "long " * 9000}])


@contextmanager
def both_clients(
    *settings: str, key: str = "any"
) -> Iterator[tuple[ServerProcess, openai.OpenAI, anthropic.Anthropic]]:
    """A server over the scripted engine, and the two clients."""
    with fake(*settings, step_ms=20.0) as process:
        url = process.wait_ready().url
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as ai,
            anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as claude,
        ):
            yield process, ai, claude


def test_a_wrong_key_is_the_clients_own_class() -> None:
    with both_clients(f"server.api_keys=[{KEY!r}]", key=KEY) as (_, ai, claude):
        with pytest.raises(openai.AuthenticationError):
            chat(ai.with_options(api_key="sk-another"))
        with pytest.raises(anthropic.AuthenticationError):
            say(claude.with_options(api_key="sk-another"))
        assert chat(ai).choices[0].message.content
        assert say(claude).content[0].text


def test_a_full_queue_is_the_clients_own_class() -> None:
    with (
        both_clients("lanes.batch=1", "lanes.queue=1") as (process, ai, claude),
        ThreadPoolExecutor(1) as pool,
    ):
        running = chat(ai, stream=True, max_tokens=4000)
        try:
            next(iter(running))
            waiting = pool.submit(chat, ai)
            process.wait_stats(lambda stats: stats["scheduler"]["queued"] == 1)
            with pytest.raises(openai.RateLimitError) as full:
                chat(ai)
            assert full.value.code == "queue_full"
            with pytest.raises(anthropic.RateLimitError):
                say(claude)
        finally:
            running.close()
        assert waiting.result().choices[0].message.content
