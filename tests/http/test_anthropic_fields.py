"""Every field of Anthropic's bodies is honoured, without effect, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from samovar.runtime.http.errors import HttpError
from samovar.runtime.http.schema.anthropic import CountBody, MessagesBody
from samovar.runtime.http.schema.base import parse

from .anthropic_kit import ASK, MARKS, anthropic
from .fakes import live, run

pytestmark = MARKS

TOOL = {"name": "weather", "input_schema": {"type": "object"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_token": 5}, "max_token"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"stream": "yes"}, "stream"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}, "tools[0].type"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ({"tools": [{"name": "weather"}]}, "tools[0].input_schema"),
    ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
    ({"tools": [TOOL | {"name": "the weather"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [TOOL | {"allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "rain"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"output_config": {"effort": "utmost"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0].type"),
    (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management.edits[0].type",
    ),
    ({"mcp_servers": [{"type": "url", "name": "a", "url": "https://example.org"}]}, "mcp_servers"),
    ({"container": "container_1"}, "container"),
    ({"compaction": {"type": "summarize"}}, "compaction"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"service_tier": "flex"}, "service_tier"),
]
TAKEN: list[dict[str, Any]] = [
    {"metadata": {"user_id": '{"device_id":"a","session_id":"b"}'}},
    {"service_tier": "standard_only", "inference_geo": "eu", "speed": "fast"},
    {"cache_control": {"type": "ephemeral"}, "diagnostics": {"previous_message_id": None}},
    {"mcp_servers": [], "container": None, "fallbacks": "default", "betas": ["effort-2025-11-24"]},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    {"context_management": {"edits": []}, "output_config": {"task_budget": {"type": "tokens", "total": 9}}},
    {"thinking": {"type": "enabled", "budget_tokens": 31999, "display": "summarized"}},
    {"tools": [TOOL | {"strict": True, "eager_input_streaming": True, "allowed_callers": ["direct"]}]},
    {"tools": [], "tool_choice": None, "system": None, "stop_sequences": None, "temperature": None},
    {"model": None},
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        async with live() as server:
            reply = await server.post(ASK | fields, "/v1/messages")
            assert reply.status == 400, reply.body
            error = reply.json()["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", param)
            assert param.rpartition(".")[2] in error["message"]
            assert not server.serving.requests

    run(scenario())


@pytest.mark.parametrize("fields", TAKEN)
def test_hints_are_taken(fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with live() as server:
            for stream in (False, True):
                reply = await server.post(ASK | fields | {"stream": stream}, "/v1/messages?beta=true")
                assert reply.status == 200, reply.body

    run(scenario())


def test_only_what_makes_a_prompt_is_counted() -> None:
    with pytest.raises(HttpError, match="max_tokens"):
        parse(CountBody, ASK)
    parse(CountBody, {"messages": ASK["messages"], "compaction": {"type": "summarize"}})


def test_the_bodies_name_every_field_that_the_client_package_knows() -> None:
    known = anthropic.types.beta.message_create_params.MessageCreateParamsBase.__annotations__
    headers = {"user_profile_id", "workspace_id"}
    assert set(known) - headers - set(MessagesBody.model_fields) == set()
    known = anthropic.types.beta.message_count_tokens_params.MessageCountTokensParams.__annotations__
    assert set(known) - headers - set(CountBody.model_fields) == set()


@pytest.mark.parametrize("model", [MessagesBody, CountBody])
def test_the_bodies_describe_themselves(model: type[MessagesBody | CountBody]) -> None:
    schema = json.loads(json.dumps(model.model_json_schema()))
    assert "messages" in schema["required"]
