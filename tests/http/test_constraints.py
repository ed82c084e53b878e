"""What tools, their choice and forms of replies come to in a call, and what of them is refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.engine.prompt import Constraint
from samovar.runtime.http.errors import HttpError
from samovar.runtime.http.schema.chat import parse_chat

from .fakes import INFO, chat, conversation

if TYPE_CHECKING:
    from samovar.runtime.http.call import Call

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}}


def tool(name: str = "f", **function: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **function}}


def shown(name: str = "f", **function: object) -> dict[str, object]:
    parameters = {"parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": {"name": name, **parameters, **function}}


def named(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, object]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


def parse(**fields: object) -> Call:
    return parse_chat(chat(**fields), {}, INFO, [])


def constraint(**fields: object) -> Constraint | None:
    return parse(**fields).request.constraint


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": {}}, "invalid_value", "tools"),
        ({"tools": ["f"]}, "invalid_value", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "invalid_value", "tools[0].type"),
        ({"tools": [tool(""), tool()]}, "invalid_value", "tools[0].function.name"),
        ({"tools": [tool("a b")]}, "invalid_value", "tools[0].function.name"),
        ({"tools": [tool(), tool("g" * 129)]}, "invalid_value", "tools[1].function.name"),
        ({"tools": [tool(), tool()]}, "invalid_value", "tools[1].function.name"),
        ({"tools": [tool(parameters=[])]}, "invalid_value", "tools[0].function.parameters"),
        ({"tools": [tool(f"t{n}") for n in range(10_000)]}, "invalid_value", "tools"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tool_choice": named("f")}, "invalid_value", "tool_choice.function.name"),
        ({"tools": [tool()], "tool_choice": "always"}, "invalid_value", "tool_choice"),
        ({"tools": [tool()], "tool_choice": 1}, "invalid_value", "tool_choice"),
        ({"tools": [tool()], "tool_choice": named("g")}, "invalid_value", "tool_choice.function.name"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, None, "tool_choice.function"),
        ({"tools": [tool()], "tool_choice": allowed("none", "f")}, None, "tool_choice.allowed_tools.mode"),
        ({"tools": [tool()], "tool_choice": allowed("auto")}, None, "tool_choice.allowed_tools.tools"),
        (
            {"tools": [tool()], "tool_choice": allowed("auto", "f", "g")},
            "invalid_value",
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"parallel_tool_calls": "no"}, "invalid_value", "parallel_tool_calls"),
        ({"response_format": "text"}, "invalid_value", "response_format"),
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, None, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            None,
            "response_format.json_schema.schema",
        ),
        ({"guided_json": 5}, "invalid_value", "guided_json"),
        ({"guided_choice": []}, "invalid_value", "guided_choice"),
        ({"guided_choice": ["a", 5]}, "invalid_value", "guided_choice[1]"),
        ({"guided_regex": ""}, "invalid_value", "guided_regex"),
        ({"structured_outputs": {"jsn": {}}}, "unknown_parameter", "structured_outputs.jsn"),
        ({"structured_outputs": {"structural_tag": "x"}}, None, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "invalid_value", "guided_regex"),
        (
            {"tools": [tool()], "response_format": {"type": "json_object"}},
            "unsupported_parameter",
            "response_format",
        ),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 17}, "invalid_value", "n"),
        ({"n": True}, "invalid_value", "n"),
        ({"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort"),
        ({"cache_salt": ""}, "invalid_value", "cache_salt"),
    ],
)
def test_what_cannot_be_asked_is_named(fields: dict[str, object], code: str | None, param: str) -> None:
    with pytest.raises(HttpError) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert code in {None, caught.value.code}


def test_b085_ten_thousand_tools_are_refused_with_the_limit() -> None:
    with pytest.raises(HttpError, match="has 10000 items; at most 1024 are allowed"):
        parse(tools=[tool()] * 10_000)


def test_tools_reach_the_prompt_with_what_templates_show() -> None:
    call = parse(tools=[tool(description="d", strict=True, parameters=SCHEMA), tool("g", extra=1)])
    assert conversation(call.request).tools == (shown(description="d", parameters=SCHEMA), shown("g"))
    assert (call.request.constraint, call.may_call, call.one_call) == (None, True, False)


@pytest.mark.parametrize("choice", [None, "auto"])
def test_without_tools_nothing_is_called(choice: str | None) -> None:
    assert not parse(tools=[], tool_choice=choice).may_call


def test_choosing_none_keeps_the_tools_in_the_prompt() -> None:
    call = parse(tools=[tool()], tool_choice="none")
    assert conversation(call.request).tools == (shown(),)
    assert (call.request.constraint, call.may_call) == (None, False)


def test_a_demand_for_calls_is_a_constraint() -> None:
    tools, f, g = [tool(), tool("g")], shown(), shown("g")
    demands: list[tuple[dict[str, object], tuple[dict[str, object], ...], bool]] = [
        ({"tool_choice": "required"}, (f, g), True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, (f, g), False),
        ({"tool_choice": named("g")}, (g,), False),
        ({"tool_choice": allowed("required", "g", "g")}, (g,), True),
    ]
    for fields, offered, many in demands:
        call = parse(tools=tools, **fields)
        assert call.request.constraint == Constraint("tools", tools=offered, many=many, param="tool_choice")
        assert conversation(call.request).tools == (f, g)
        assert call.may_call


def test_only_allowed_tools_are_offered_where_none_must_be_called() -> None:
    call = parse(tools=[tool(), tool("g")], tool_choice=allowed("auto", "g"))
    assert (conversation(call.request).tools, call.request.constraint) == ((shown("g"),), None)
    assert call.may_call


def test_calls_one_at_a_time() -> None:
    assert parse(tools=[tool()], parallel_tool_calls=False).one_call


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
        ({"guided_regex": "a+"}, Constraint("regex", "a+", param="guided_regex")),
        ({"guided_grammar": 'start: "a"'}, Constraint("grammar", 'start: "a"', param="guided_grammar")),
        ({"guided_choice": ["a", "b"]}, Constraint("choice", '["a","b"]', param="guided_choice")),
        ({"guided_json": '{"a":1}'}, Constraint("json_schema", '{"a":1}', param="guided_json")),
        (
            {"structured_outputs": {"json": {"a": 1}}},
            Constraint("json_schema", '{"a":1}', param="structured_outputs.json"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            Constraint("json_object", param="structured_outputs.json_object"),
        ),
        ({"structured_outputs": {}}, None),
    ],
)
def test_forms_come_to_constraints(fields: dict[str, object], wanted: Constraint | None) -> None:
    assert constraint(**fields) == wanted


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_schema_constrains_strict_or_not(strict: bool | None) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": strict}}
    found = constraint(response_format=form)
    assert found is not None
    assert (found.kind, json.loads(found.source), found.param) == ("json_schema", SCHEMA, "response_format")
    assert constraint(response_format={"type": "json_object", "schema": SCHEMA}) == found


def test_a_form_goes_with_tools_that_must_or_must_not_be_called() -> None:
    form = {"type": "json_object"}
    bound = parse(tools=[tool()], tool_choice="none", response_format=form)
    assert bound.request.constraint == Constraint("json_object")
    called = parse(tools=[tool()], tool_choice="required", response_format=form)
    assert called.request.constraint is not None
    assert called.request.constraint.kind == "tools"


def test_choices_share_one_prompt_and_a_seed_tells_them_apart() -> None:
    requests = parse(n=3, seed=5).requests
    assert len({request.id for request in requests}) == 3
    assert len({request.sampling.seed for request in requests}) == 3
    assert len({id(request.prompt) for request in requests}) == 1


@pytest.mark.parametrize(
    ("effort", "kwargs"),
    [
        ("none", {"enable_thinking": False}),
        ("minimal", {"enable_thinking": False, "reasoning_effort": "low"}),
        ("medium", {"reasoning_effort": "medium"}),
    ],
)
def test_effort_goes_to_the_template(effort: str, kwargs: dict[str, object]) -> None:
    assert conversation(parse(reasoning_effort=effort).request).template_kwargs == kwargs
    own = parse(reasoning_effort=effort, chat_template_kwargs={"enable_thinking": True})
    assert conversation(own.request).template_kwargs == kwargs | {"enable_thinking": True}


def test_a_salt_is_passed_on() -> None:
    assert parse(cache_salt="a").request.cache_salt == "a"
    assert parse().request.cache_salt is None
