"""The real ``openai`` and ``anthropic`` packages, what tests ask with them, and the marks such tests need."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their own dependencies
    import anthropic
    import openai

__all__ = ["anthropic", "openai"]

MARKS = [
    pytest.mark.model,
    pytest.mark.timeout(180),
    *(
        pytest.mark.filterwarnings(f"ignore::DeprecationWarning:{module}")
        for module in ("anthropic", "httpx", "httpx2", "openai", "pydantic")
    ),
]
CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer briefly."}]
MODEL = "default"
MOST_WITHOUT_TOOLS = 64
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "Tells the weather in a city.", "parameters": CITY}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


def chat(ai: openai.OpenAI, messages: Any = CAPITAL, **fields: Any) -> Any:
    return ai.chat.completions.create(
        model=MODEL, messages=messages, **{"max_tokens": 8, "temperature": 0} | fields
    )


def say(claude: anthropic.Anthropic, messages: Any = CAPITAL, **fields: Any) -> Any:
    cold = {"temperature": 0}  # these clients have no name for it any more
    return claude.messages.create(
        model=MODEL, messages=messages, extra_body=cold, **{"max_tokens": 8} | fields
    )
