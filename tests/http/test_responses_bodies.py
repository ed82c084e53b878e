"""Bodies of the Responses API without a server: none breaks it, and what their items mean as a chat."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.http.body import parse_object
from samovar.runtime.http.errors import HttpError
from samovar.runtime.http.responses.history import messages_of
from samovar.runtime.http.responses.inputs import known_items
from samovar.runtime.http.responses.reasoning import sealed, unsealed
from samovar.runtime.http.responses.request import parsed, responses_call
from samovar.runtime.http.responses.store import ResponseStore

from .fakes import INFO
from .responses_kit import WEATHER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samovar.runtime.http.responses.request import ResponsesCall

CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
GAVE = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "y"}]}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "s"}],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
BODY: dict[str, Any] = {
    "model": "gpt-4o",
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        THOUGHT,
        CALLED,
        GAVE,
    ],
    "tools": [WEATHER],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_weather"}],
    },
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"team": "tea"},
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "temperature": 0.5,
    "top_logprobs": 2,
    "store": False,
}
JUNK = (None, True, 0, -1, 1.5, 2**70, "", "x", [], {}, [[]], [{}], {"type": []}, {"type": {}}, {"id": 3})


def call_of(body: dict[str, Any]) -> ResponsesCall:
    sent = parse_object(json.dumps(body).encode())  # numbers as the server reads them
    return responses_call(parsed(sent), {}, INFO, ("gpt-4o",), ResponseStore())


def chat_of(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(message) for message in messages_of(known_items(items))]


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))  # pyright: ignore[reportIndexIssue]


def with_other(path: tuple[Any, ...], other: object) -> dict[str, Any]:
    body = copy.deepcopy(BODY)
    place: Any = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = other
    return body


def complaint_about(body: dict[str, Any]) -> HttpError | None:
    try:
        call_of(body)
    except HttpError as error:
        return error
    return None


def test_whatever_stands_in_any_place_is_taken_or_refused_by_name() -> None:
    assert complaint_about(BODY) is None
    tried = [(path, index) for path in places(BODY) for index in range(len(JUNK))]
    found = {(path, index): complaint_about(with_other(path, JUNK[index])) for path, index in tried}
    errors = {place: error for place, error in found.items() if error is not None}
    assert len(found) > len(errors) > len(JUNK)
    assert {error.status for error in errors.values()} == {400, 404}
    assert [place for place, error in errors.items() if not error.param] == []


@pytest.mark.parametrize("name", ["n", "max_tokens", "messages", "response_format", "frequency_penalties"])
def test_fields_of_other_apis_are_unknown(name: str) -> None:
    with pytest.raises(HttpError) as unknown:
        call_of({"input": "x", name: 1})
    assert (unknown.value.code, unknown.value.param) == ("unknown_parameter", name)


def test_a_turn_of_the_assistant_is_thought_text_and_calls() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    assert chat_of(said("user", "Hi"), THOUGHT, said("assistant", "Let me see."), CALLED, CALLED, GAVE) == [
        said("user", "Hi"),
        said("assistant", "Let me see.") | {"reasoning_content": "Hm.", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c1", "content": "y"},
    ]


def test_what_comes_out_of_order_begins_another_turn() -> None:
    assert [message["content"] for message in chat_of(said("assistant", "a"), said("assistant", "b"))] == [
        "a",
        "b",
    ]
    roles = [
        message["role"] for message in chat_of(CALLED, said("assistant", "b"), THOUGHT, said("user", "c"))
    ]
    assert roles == ["assistant", "assistant", "assistant", "user"]


def test_parts_are_joined_and_developers_speak_as_the_system() -> None:
    parts = [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "b"}]
    assert chat_of(said("developer", "d"), {"role": "assistant", "content": parts}) == [
        said("system", "d"),
        said("assistant", "ab"),
    ]


def test_a_broken_call_in_the_history_is_carried_as_it_stands() -> None:
    (message,) = chat_of(CALLED | {"arguments": '{"a": '})
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_reasoning_that_cannot_be_read_here_is_dropped() -> None:
    bare = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    for carried in (None, "gAAAA", "samovar.1.%%%", "samovar.1._w==", "samovar.1.a"):
        assert chat_of(bare | {"encrypted_content": carried}) == [], carried
    for text in ("", "Hm.", "né\n日本"):
        assert unsealed(sealed(text)) == text
