"""The real ``anthropic`` client, bodies and scripted replies for the tests of Anthropic's routes."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.port import Delta, Prefilled
from samovar.runtime.engine.prompt import ReplyFormat

from .fakes import PROMPT_TOKENS, finished

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from samovar.actors.requests import GenerationRequest
    from samovar.actors.stream import RequestStream

    from .fakes import Live, Script

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    import anthropic

MARKS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:httpx2"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:anthropic"),
]
ASK: dict[str, Any] = {
    "model": "default",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Capital of France?"}],
}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Tell the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
THINKS = ReplyFormat(reasoning=("<think>", "</think>"))
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


@asynccontextmanager
async def client_of(base_url: str, api_key: str = "sk-1") -> AsyncGenerator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=api_key, max_retries=0) as found:
        yield found


def client(server: Live, api_key: str = "sk-1") -> Any:
    return client_of(f"http://127.0.0.1:{server.server.port}", api_key)


def says(*texts: str, reason: str = "stop", stopped_by: str | None = None) -> Script:
    """A lane that says ``texts``, one token each."""

    async def script(stream: RequestStream, request: GenerationRequest) -> None:
        stream.push(Prefilled(request.id, PROMPT_TOKENS, PROMPT_TOKENS))
        for token, text in enumerate(texts):
            stream.push(Delta(request.id, text, (token,)))
            await asyncio.sleep(0)
        stream.push(replace(finished(request.id, len(texts), reason), stopped_by=stopped_by))

    return script
