"""Anthropic's routes over a whole server: what an agent's conversation finds in the cache."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samovar.runtime.engine.prompt import Conversation

from tests.cases.rig import run, serving
from tests.kit.tiny import CharacterCodec, TinyEngine

from .anthropic_kit import MARKS, WEATHER, client_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from samovar.runtime.engine.prompt import Constraint, Prompt, RenderedPrompt

    from tests.cases.rig import Server

pytestmark = MARKS


class AgentCodec(CharacterCodec):
    """Shows tools and calls too, as templates do: the tools in front, a call behind what was said."""

    def render(self, prompt: Prompt, constraint: Constraint | None = None) -> RenderedPrompt:
        assert isinstance(prompt, Conversation)
        tools: Mapping[str, object] = {"role": "tools", "content": json.dumps(list(prompt.tools))}
        messages = [message | {"content": self._shown(message)} for message in prompt.messages]
        return super().render(Conversation((tools, *messages)), constraint)

    def _shown(self, message: Mapping[str, Any]) -> str:
        return message["content"] + "".join(json.dumps(call) for call in message.get("tool_calls", ()))


@dataclass(frozen=True)
class AgentEngine(TinyEngine):
    def codec(self) -> AgentCodec:
        return AgentCodec()


@asynccontextmanager
async def agent(*settings: str) -> AsyncGenerator[tuple[Any, Server]]:
    engine = AgentEngine("llama").with_options(publish_min_tokens=4)
    async with serving(engine, None, *settings) as server, client_of(server.base) as api:
        yield api, server


def system(turn: int) -> list[dict[str, Any]]:
    """A system prompt as Claude Code sends it: its first block is another one in every request."""
    return [
        {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{turn}; cch={turn:05x};"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Answer briefly. " * 8, "cache_control": {"type": "ephemeral"}},
    ]


def asked_for_a_tool(reply: list[Any], number: int) -> list[dict[str, Any]]:
    """The reply with a call behind it, and the user's turn with its result."""
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"{number} degrees"}
    return [{"role": "assistant", "content": [*reply, use]}, {"role": "user", "content": [result]}]


def test_every_turn_of_an_agent_finds_the_one_before_in_the_cache() -> None:
    async def scenario() -> None:
        async with agent() as (api, _):
            messages: list[dict[str, Any]] = [{"role": "user", "content": "Weather in Paris?"}]
            before = 0
            for turn in range(4):
                fields: Any = {"system": system(turn), "messages": messages, "tools": [WEATHER]}
                counted = await api.messages.count_tokens(model="default", **fields)
                async with api.messages.stream(model="default", max_tokens=8, **fields) as stream:
                    message = await stream.get_final_message()
                usage = message.usage
                prompt = usage.input_tokens + usage.cache_read_input_tokens
                assert prompt == counted.input_tokens
                assert usage.cache_read_input_tokens >= before
                assert (usage.cache_read_input_tokens > 0) == (turn > 0)
                before = prompt - 1
                messages += asked_for_a_tool(message.to_param()["content"], turn)

    run(scenario())


def test_what_was_replied_is_read_from_the_cache_as_well() -> None:
    async def scenario() -> None:
        async with agent() as (api, _):
            messages: list[dict[str, Any]] = [{"role": "user", "content": "Tell a story."}]
            fields: Any = {"model": "default", "max_tokens": 12, "messages": messages}
            first = await api.messages.create(**fields)
            messages += [first.to_param(), {"role": "user", "content": [{"type": "text", "text": "Go on."}]}]
            second = await api.messages.create(**fields)
            fed = first.usage.input_tokens + first.usage.output_tokens - 1
            assert first.stop_reason == "max_tokens"
            assert second.usage.cache_read_input_tokens >= fed

    run(scenario())


def test_a_stop_sequence_ends_the_message_and_is_named() -> None:
    async def scenario() -> None:
        async with agent() as (api, _):
            fields: Any = {
                "model": "default",
                "max_tokens": 12,
                "messages": [{"role": "user", "content": "Tell a story."}],
            }
            text = (await api.messages.create(**fields)).content[0].text
            stop = text[4:6]
            cut = await api.messages.create(**fields, stop_sequences=["never said", stop])
            assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
            assert cut.content[0].text == text[: text.index(stop)]

    run(scenario())


def test_counting_waits_for_no_row() -> None:
    async def scenario() -> None:
        async with agent("lanes.batch=1") as (api, server):
            messages: Any = [{"role": "user", "content": "Tell a story."}]
            busy = await api.messages.create(model="default", max_tokens=2000, messages=messages, stream=True)
            await server.until(lambda stats: stats["scheduler"]["running"] == 1)
            counted = await api.messages.count_tokens(model="default", messages=messages)
            assert counted.input_tokens > len("Tell a story.")
            assert (await server.part("scheduler"))["running"] == 1
            await busy.close()

    run(scenario())
