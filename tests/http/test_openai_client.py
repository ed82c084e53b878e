"""The real ``openai`` client against the server."""

from __future__ import annotations

import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from samovar.actors.requests import Refused

from .fakes import FakeServing, Live, live, run
from .test_stream import fail_after_text

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


def test_models() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            assert [model.id async for model in api.models.list()] == ["smollm2", "gpt-4o", "default"]
            assert (await api.models.retrieve("gpt-4o")).id == "gpt-4o"

    run(scenario())
