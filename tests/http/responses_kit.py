"""The Responses API for tests: the real client over a scripted server, and raw events taken apart."""

from __future__ import annotations

import json
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.prompt import ReplyFormat

from .fakes import conversation
from .replies import HERMES, THINK

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from .fakes import Live, Reply

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    import openai

__all__ = ["openai"]

PATH = "/v1/responses"
QUIET = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:httpx"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:httpx2"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:openai"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pydantic"),
]
THINKS = ReplyFormat(tools=HERMES, reasoning=THINK)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
CALLS = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
ASK: dict[str, Any] = {"model": "gpt-4o", "input": "Capital of France?"}


@asynccontextmanager
async def client(server: Live) -> AsyncGenerator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{server.server.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="sk-1", max_retries=0) as found:
        yield found


def messages(server: Live, number: int = -1) -> list[Any]:
    """The chat that the template of the number-th request was given."""
    return [dict(message) for message in conversation(server.serving.requests[number]).messages]


def events_of(reply: Reply) -> list[Any]:
    """The events of a stream; their names, types and numbers must agree."""
    found: list[Any] = []
    for block in reply.body.decode().removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(found)
        found.append(event)
    return found


def kinds(events: list[Any]) -> list[str]:
    """The types of events, without what they have in common; repeated deltas once."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]
