"""The real ``openai`` client against the server."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from samovar.actors.requests import Refused

from .fakes import FakeServing, Live, conversation, live, run
from .test_stream import fail_after_text
from .test_tools import BERGEN, OSLO, TOOLS, spoken, weather

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    import openai

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:httpx"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:httpx2"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:openai"),
]
ASK: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Capital of France?"}]}


@asynccontextmanager
async def client(server: Live) -> AsyncGenerator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{server.server.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="sk-1", max_retries=0) as found:
        yield found


def test_errors_arrive_as_the_clients_own_classes() -> None:
    async def scenario() -> None:
        async with live(api_keys=("sk-1",)) as server, client(server) as api:
            with pytest.raises(openai.NotFoundError) as missing:
                await api.chat.completions.create(**ASK | {"model": "gpt-9"})
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as bad:
                await api.chat.completions.create(**ASK, temperature=3)
            assert bad.value.param == "temperature"
            assert bad.value.request_id
            server.serving.refuse = lambda _: Refused("queue_full", "64 wait already", retry_after_s=1.0)
            with pytest.raises(openai.RateLimitError):
                await api.chat.completions.create(**ASK)
            with pytest.raises(openai.AuthenticationError):
                await api.with_options(api_key="sk-2").chat.completions.create(**ASK)

    run(scenario())


def test_a_failure_in_a_stream_raises() -> None:
    async def scenario() -> None:
        async with live(FakeServing(fail_after_text)) as server, client(server) as api:
            stream = await api.chat.completions.create(**ASK, stream=True)
            with pytest.raises(openai.APIError) as caught:
                async for _ in stream:
                    pass
            assert caught.value.code == "lane_crashed"

    run(scenario())


def test_whole_and_streamed_answers() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            whole = await api.chat.completions.create(**ASK, temperature=0, logprobs=True, top_logprobs=1)
            assert whole.choices[0].message.content == "It is Paris"
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 3
            assert whole.choices[0].logprobs is not None
            assert len(whole.choices[0].logprobs.content or ()) == 3
            options: Any = {"include_usage": True}
            stream = await api.chat.completions.create(**ASK, stream=True, stream_options=options)
            chunks = [chunk async for chunk in stream]
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == "It is Paris"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.total_tokens == 10

    run(scenario())


def test_the_clients_stream_helper_accumulates() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            async with api.chat.completions.stream(**ASK) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == "It is Paris"

    run(scenario())


def test_a_round_trip_of_tools() -> None:
    """The model calls two tools, their results go back with the history, and it answers."""

    async def scenario() -> None:
        serving = weather("<think>Two.</think>\n", OSLO, "\n", BERGEN)
        async with live(serving) as server, client(server) as api:
            asked: dict[str, Any] = ASK | {"tools": list(TOOLS)}
            (choice,) = (await api.chat.completions.create(**asked)).choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content is None
            assert choice.message.model_extra == {"reasoning_content": "Two."}
            calls = choice.message.tool_calls or []
            made = [call.model_dump() for call in calls]
            assert spoken(made) == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]
            answers = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls]
            history = [*ASK["messages"], choice.message.model_dump(exclude_none=True), *answers]
            serving.script = weather("It rains in both.").script
            (choice,) = (await api.chat.completions.create(**asked | {"messages": history})).choices
            assert (choice.message.content, choice.finish_reason) == ("It rains in both.", "stop")
            roles = [message["role"] for message in conversation(serving.requests[-1]).messages]
            assert roles == ["user", "assistant", "tool", "tool"]

    run(scenario())


def test_b064_streamed_calls_accumulate() -> None:
    async def scenario() -> None:
        async with live(weather("Both. ", OSLO, "\n", BERGEN)) as server, client(server) as api:
            asked: dict[str, Any] = ASK | {"tools": list(TOOLS)}
            stream = await api.chat.completions.create(**asked, stream=True)
            deltas = [chunk.choices[0].delta async for chunk in stream]
            parts = [part for delta in deltas for part in delta.tool_calls or ()]
            assert [(part.index, bool(part.id), part.type) for part in parts] == [
                (0, True, "function"),
                (0, False, None),
                (1, True, "function"),
                (1, False, None),
            ]
            async with api.chat.completions.stream(**asked) as helper:
                final = await helper.get_final_completion()
            (choice,) = final.choices
            assert (choice.message.content, choice.finish_reason) == ("Both.", "tool_calls")
            made = [call.model_dump() for call in choice.message.tool_calls or ()]
            assert spoken(made) == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]

    run(scenario())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tool_that_was_not_offered_raises_and_is_drawn_again_where_that_may_help(
    temperature: float,
) -> None:
    async def scenario() -> None:
        serving = weather("Let me see. ", OSLO.replace("get_weather", "rm_rf"))
        async with live(serving) as server, client(server) as api:
            patient, asked = (
                api.with_options(max_retries=1),
                {"temperature": temperature, "tools": list(TOOLS)},
            )
            with pytest.raises(openai.UnprocessableEntityError) as caught:
                await patient.chat.completions.create(**ASK, **asked)
            assert (caught.value.code, caught.value.param) == ("unknown_tool", "tools")
            assert "rm_rf" in caught.value.message
            assert len(serving.requests) == (1 if temperature == 0 else 2)
            stream = await api.chat.completions.create(**ASK, **asked, stream=True)
            with pytest.raises(openai.APIError) as told:
                [chunk async for chunk in stream]
            assert told.value.code == "unknown_tool"

    run(scenario())


def test_several_choices() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            whole = await api.chat.completions.create(**ASK, n=3)
            assert [choice.message.content for choice in whole.choices] == ["It is Paris"] * 3
            async with api.chat.completions.stream(**ASK, n=3) as stream:
                final = await stream.get_final_completion()
            assert [choice.message.content for choice in final.choices] == ["It is Paris"] * 3

    run(scenario())


def test_b086_comments_are_no_events() -> None:
    """B086: a stream that waits for its row is kept alive, and the client sees nothing of it."""

    async def scenario() -> None:
        serving = FakeServing(queued=asyncio.Event())
        async with live(serving, keep_alive_s=0.01) as server, client(server) as api:
            stream = await api.chat.completions.create(**ASK, stream=True)  # its headers are here
            assert serving.queued is not None
            serving.queued.set()
            chunks = [chunk async for chunk in stream]
            assert [chunk.choices[0].delta.role for chunk in chunks][:2] == ["assistant", None]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It is Paris"

    run(scenario())


def test_models() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            assert [model.id async for model in api.models.list()] == ["smollm2", "gpt-4o", "default"]
            assert (await api.models.retrieve("gpt-4o")).id == "gpt-4o"

    run(scenario())
