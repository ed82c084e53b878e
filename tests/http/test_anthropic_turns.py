"""What a chat template gets of Anthropic's turns, tools and settings."""

from __future__ import annotations

from typing import Any

import pytest
from samovar.runtime.engine.port import ModelInfo
from samovar.runtime.http.anthropic.translation import counted_request, message_call
from samovar.runtime.http.errors import HttpError
from samovar.runtime.http.schema.anthropic import CountBody, MessagesBody
from samovar.runtime.http.schema.base import parse

from .anthropic_kit import ASK, WEATHER
from .fakes import INFO, conversation

HINT = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def call(**fields: Any) -> Any:
    return message_call(parse(MessagesBody, ASK | fields), {}, INFO, ())


def turns(*messages: Any, system: Any = None) -> list[Any]:
    """What comes of (role, content) pairs."""
    sent = [{"role": role, "content": content} for role, content in messages]
    return [*conversation(call(messages=sent, system=system).request).messages]


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def use(name: str, call_id: str = "toolu_1", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(content: Any, call_id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("user", use("weather")),
        ("user", {"type": "thinking", "thinking": "Hm", "signature": ""}),
        ("assistant", result("sun")),
        ("system", result("sun")),
    ],
)
def test_blocks_in_turns_where_they_have_no_place_are_refused(role: str, block: Any) -> None:
    with pytest.raises(HttpError) as caught:
        turns(("user", "Hi"), (role, [text("a"), block]), ("user", "Go on"))
    assert (caught.value.status, caught.value.param) == (400, "messages[1].content[1]")


def test_input_that_is_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(HttpError, match="nested too deeply"):
        turns(("user", "Hi"), ("assistant", [use("weather", **deep)]), ("user", [result("sun")]))


def test_text_and_blocks_of_text_are_the_same_turn() -> None:
    plain = turns(("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), system="Be brief.")
    blocks = turns(
        ("user", [text("Hi", **HINT)]),
        ("assistant", [text("Hel", citations=[]), text("lo")]),
        ("user", [text("Bye")]),
        system=[text("Be brief.", **HINT)],
    )
    assert plain == blocks
    assert [turn["role"] for turn in plain] == ["system", "user", "assistant", "user"]


def test_passages_of_the_user_and_the_system_prompt_are_kept_apart() -> None:
    found = turns(("user", [text("a"), text("b")]), ("user", "c"), system=[text("You are"), text("Rules")])
    assert found == [{"role": "system", "content": "You are\nRules"}, {"role": "user", "content": "a\nb\nc"}]


@pytest.mark.parametrize(
    "system",
    [
        [text("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"), text("You are")],
        [text("x-anthropic-billing-header: cc_version=2.1; cch=00000;\nYou are")],
        "x-anthropic-billing-header: cch=1\nYou are",
    ],
)
def test_b100_the_line_for_anthropics_accounting_is_dropped(system: Any) -> None:
    assert turns(("user", "Hi"), system=system)[0] == {"role": "system", "content": "You are"}


def test_b100_only_the_first_line_of_the_system_prompt_is_one_for_accounting() -> None:
    header = "x-anthropic-billing-header: cch=1"
    assert turns(("user", header)) == [{"role": "user", "content": header}]
    kept = turns(("user", "Hi"), system=[text("You are"), text(header)])
    assert kept[0]["content"] == f"You are\n{header}"
    assert turns(("user", "Hi"), system=header) == [{"role": "user", "content": "Hi"}]


def test_a_system_turn_amid_the_conversation_stays_there() -> None:
    found = turns(("user", "Hi"), ("assistant", "Hello"), ("system", "Be brief."), ("user", "Bye"))
    assert [turn["role"] for turn in found] == ["user", "assistant", "system", "user"]


def test_calls_results_and_thoughts() -> None:
    found = turns(
        ("user", "Weather?"),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "Two cities.", "signature": "EqRk"},
                {"type": "redacted_thinking", "data": "xyz"},
                text("Let me see."),
                use("weather", "toolu_1", city="Besançon"),
                use("weather", "toolu_2", city=None),
            ],
        ),
        (
            "user",
            [
                result([text("sun"), text("18 °C")], "toolu_1", **HINT),
                result("no such city", "toolu_2", is_error=True),
                text("And tomorrow?"),
            ],
        ),
    )
    said, sun, error, more = found[1:]
    assert (said["content"], said["reasoning_content"]) == ("Let me see.", "Two cities.")
    calls = [entry["function"]["arguments"] for entry in said["tool_calls"]]
    assert calls == ['{"city": "Besançon"}', '{"city": null}']
    assert sun == {"role": "tool", "content": "sun\n18 °C", "name": "weather", "tool_call_id": "toolu_1"}
    assert (error["tool_call_id"], error["content"]) == ("toolu_2", "Error: no such city")
    assert more == {"role": "user", "content": "And tomorrow?"}


def test_results_stay_in_their_place_and_may_be_empty() -> None:
    found = turns(("user", "Hi"), ("assistant", [use("weather")]), ("user", [text("Here:"), result(None)]))
    assert [(turn["role"], turn["content"]) for turn in found[2:]] == [("user", "Here:"), ("tool", "")]


def test_a_result_of_a_call_that_is_not_in_the_history_is_carried_through() -> None:
    (found,) = turns(("user", [result("sun", "toolu_9")]))
    assert found == {"role": "tool", "content": "sun", "tool_call_id": "toolu_9"}


def test_tools_are_functions() -> None:
    brief = {"name": "now", "type": "custom", "input_schema": {}, "input_examples": [{"zone": "UTC"}], **HINT}
    tools = conversation(call(tools=[WEATHER, brief]).request).tools
    first, second = (tool["function"] for tool in tools)
    assert first == {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": WEATHER["input_schema"],
    }
    assert second["description"] == 'now\n\nExamples of its input:\n{"zone": "UTC"}'


@pytest.mark.parametrize(
    ("choice", "may_call", "kind", "many"),
    [
        (None, True, None, None),
        ({"type": "auto"}, True, None, None),
        ({"type": "none"}, False, None, None),
        ({"type": "any"}, True, "tools", True),
        ({"type": "any", "disable_parallel_tool_use": True}, True, "tools", False),
        ({"type": "tool", "name": "weather"}, True, "tools", False),
    ],
)
def test_the_choice_among_tools(choice: Any, may_call: bool, kind: str | None, many: bool | None) -> None:
    found = call(tools=[WEATHER], tool_choice=choice)
    demand = found.request.constraint
    assert found.may_call == may_call
    assert (demand and demand.kind, demand and demand.many) == (kind, many)
    assert len(conversation(found.request).tools) == 1


def test_a_schema_for_the_reply() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        constraint = call(**fields).request.constraint
        assert (constraint.kind, constraint.source) == ("json_schema", '{"type": "object"}')
        with pytest.raises(HttpError, match="not beside tools"):
            call(**fields, tools=[WEATHER])
        assert call(**fields, tools=[WEATHER], tool_choice={"type": "none"}).request.constraint == constraint


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": False, "a": 1}},
            {"enable_thinking": False, "a": 1},
        ),
    ],
)
def test_what_the_template_is_told(fields: Any, kwargs: Any) -> None:
    assert conversation(call(**fields).request).template_kwargs == kwargs


def test_settings_of_the_generation() -> None:
    small = ModelInfo("smollm2", 100, 1000, "float32", 0.7, 0)
    fields = {"max_tokens": 5000, "temperature": 0, "top_p": 0.5, "top_k": 3, "session_id": "s"}
    request = message_call(parse(MessagesBody, ASK | fields), {}, small, ()).request
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 3)
    assert (request.max_tokens, request.session_id, request.temperature_given) == (100, "s", True)
    assert call().request.sampling.temperature == INFO.default_temperature


def test_a_conversation_that_ends_with_the_assistant_is_counted_and_not_gone_on_with() -> None:
    messages = [*ASK["messages"], {"role": "assistant", "content": "The"}]
    with pytest.raises(HttpError, match="prefilled"):
        call(messages=messages)
    counted = counted_request(parse(CountBody, {"messages": messages}), INFO, ())
    assert conversation(counted).messages[-1] == {"role": "assistant", "content": "The"}
