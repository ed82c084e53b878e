"""Schemas, tools and arguments that nest deeply: a 400 that says so, on every route, and never a 500."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.http.body import MAX_DEPTH

from tests.cases.rig import run, serving, user
from tests.engine.text.texts import CHATML, QWEN3, codec_for
from tests.kit.serve import ReadingEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATES = {"tools in the template": (QWEN3, "json_tools"), "tools in plain text": (CHATML, "")}
AROUND = 9
"""Levels of a request around its schema, at most."""


def nested(levels: int) -> Any:
    """A schema of so many levels, an odd number."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels // 2):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def requests(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place of every API that takes an object of the client's own."""
    function = {"name": "f", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    flat = [{"type": "function", **function}]
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": schema}}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": schema}
    claude = [{"name": "f", "input_schema": schema}]
    hi = [user("hi")]
    chat: list[dict[str, Any]] = [
        {"messages": hi, "tools": tools},
        {"messages": hi, "tools": tools, "tool_choice": "required"},
        {"messages": hi, "response_format": format_},
        {"messages": hi, "guided_json": schema},
        {"messages": hi, "chat_template_kwargs": {"x": schema}},
        {"messages": [*hi, {"role": "assistant", "tool_calls": [call]}]},
    ]
    for body in chat:
        yield "/v1/chat/completions", body
        yield "/admin/cache/explain", body
    yield "/v1/completions", {"prompt": "hi", "response_format": format_}
    yield "/v1/completions", {"prompt": "hi", "guided_json": schema}
    yield "/v1/responses", {"input": "hi", "tools": flat}
    yield "/v1/responses", {"input": "hi", "tools": flat, "tool_choice": "required"}
    yield (
        "/v1/responses",
        {"input": "hi", "text": {"format": {"type": "json_schema", **format_["json_schema"]}}},
    )
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        yield path, {"messages": hi, "tools": claude}
        yield path, {"messages": hi, "tools": claude, "tool_choice": {"type": "any"}}
        yield path, {"messages": hi, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
        yield path, {"messages": [*hi, {"role": "assistant", "content": [use]}, *hi]}


def spoken(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place that takes JSON as text."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": text}}
    yield "/v1/chat/completions", {"messages": [user("hi"), {"role": "assistant", "tool_calls": [call]}]}
    yield "/v1/chat/completions", {"messages": [user("hi")], "guided_json": text}
    yield "/v1/completions", {"prompt": "hi", "guided_json": text}
    item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": text}
    yield "/v1/responses", {"input": [{"role": "user", "content": "hi"}, item]}


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_nests_deeply_is_answered_or_refused_everywhere(template: str) -> None:
    text, parser = TEMPLATES[template]
    engine = ReadingEngine(context_length=65_536, reader=codec_for(text, parser=parser))

    async def scenario() -> None:
        async with serving(engine, None) as server:

            async def ask(path: str, body: dict[str, Any]) -> tuple[int, str | None]:
                limit = {"max_output_tokens": 2} if "responses" in path else {"max_tokens": 2}
                fields = {} if "count" in path else limit
                status, answer = await server.call("POST", path, body | fields)
                return status, (answer.get("error") or {}).get("code")

            for path, body in requests(nested(MAX_DEPTH - AROUND)):
                assert await ask(path, body) in {(200, None), (400, "invalid_constraint")}, (path, body)
            for path, body in requests(nested(MAX_DEPTH + 1)):
                assert await ask(path, body) == (400, "body_too_complex"), (path, body)
            for levels in (301, 901):
                for path, body in spoken(json.dumps(nested(levels))):
                    assert await ask(path, body) in {(200, None), (400, "invalid_constraint")}, (path, body)

    run(scenario())
