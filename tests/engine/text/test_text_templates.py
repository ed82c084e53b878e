"""Conversations in the forms that templates take: odd turns, tools and their calls."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.engine.errors import TemplateError
from samovar.runtime.engine.prompt import Conversation
from samovar.runtime.engine.text.arranging import ARRANGEMENTS, leaves_out
from samovar.runtime.engine.text.tool_arguments import WRITINGS, arguments_text

from tests.engine.text.texts import (
    CHATML,
    TEMPLATES,
    called,
    chat,
    codec_for,
    codec_named,
    said,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a town.", "parameters": {"type": "object"}},
}
SYSTEM, USER, REPLY = said("system", "Be brief."), said("user", "Hi"), said("assistant", "Good day.")
ONE_SYSTEM_FIRST = (
    "{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}{% endfor %}"
)


def rendered(name: str, *messages: Mapping[str, object], **kwargs: Any) -> str:
    codec = codec_named(name)
    return shown(codec, chat(codec, *messages, **kwargs).tokens)


# -- turns --------------------------------------------------------------------------------------------------


def test_a_template_that_refuses_everything_says_why_it_refused_what_was_sent() -> None:
    codec = codec_for("{{ raise_exception('no ' + messages | length | string) }}")
    with pytest.raises(TemplateError, match="refused the messages: no 3"):
        chat(codec, SYSTEM, SYSTEM, USER)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(
    "turns",
    [
        (SYSTEM, USER, REPLY, said("system", "Say GREEN."), said("user", "Grass?")),
        (SYSTEM, said("system", "And kind."), USER),
        (USER, said("user", "Two."), REPLY, said("assistant", "Four."), said("user", "Five.")),
        (REPLY, USER),
        (SYSTEM, REPLY, USER),
        (USER, said("tool", "21 degrees", tool_call_id="x"), said("user", "And?")),
        (USER, called("weather", '{"town": "Rome"}'), said("tool", "21 degrees"), said("user", "And?")),
        (USER, called("weather", '{"town": "Rom'), said("tool", "21 degrees"), USER),
        (SYSTEM,),
        (SYSTEM, USER, REPLY),
    ],
)
def test_r008_r010_b051_every_template_takes_every_order_of_turns(
    name: str, turns: tuple[dict[str, object], ...]
) -> None:
    text = rendered(name, *turns)
    for turn in turns:
        assert str(turn["content"]) in text
    assert name != "mistral" or text.count("[INST]") == text.count("[/INST]")


@pytest.mark.parametrize("name", TEMPLATES)
def test_r008_a_later_system_turn_keeps_the_prefix(name: str) -> None:
    codec = codec_named(name)
    before = chat(codec, SYSTEM, USER, REPLY)
    first = chat(codec, SYSTEM, USER)
    later = chat(codec, SYSTEM, USER, REPLY, said("system", "Say GREEN."), said("user", "Grass?"))
    assert later.tokens.starts_with(first.tokens[: first.boundary])
    assert later.tokens.common_prefix(before.tokens) > len(first.tokens) + len("Good day.") - 3
    assert shown(codec, later.tokens).index("GREEN") < shown(codec, later.tokens).index("Grass?")


def test_what_the_template_takes_is_left_alone() -> None:
    text = rendered("chatml", USER, said("system", "x"), said("system", "y"), said("user", "z"))
    assert [line for line in text.splitlines() if "start" in line] == [
        "⟦<|im_start|>⟧user",
        "⟦<|im_start|>⟧system",
        "⟦<|im_start|>⟧system",
        "⟦<|im_start|>⟧user",
        "⟦<|im_start|>⟧assistant",
    ]


def test_a_system_turn_that_comes_later_speaks_as_the_user_where_it_must() -> None:
    codec = codec_for(ONE_SYSTEM_FIRST + CHATML)
    turns = SYSTEM, said("system", "And kind."), USER, REPLY, said("system", "Say GREEN."), USER
    text = shown(codec, chat(codec, *turns).tokens)
    assert text.startswith("⟦<|im_start|>⟧system\nBe brief.\n\nAnd kind.⟦<|im_end|>⟧\n")
    assert "⟦<|im_start|>⟧user\nSay GREEN.⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\nHi⟦<|im_end|>⟧" in text


def test_a_template_that_drops_a_system_turn_without_a_word_gets_them_otherwise() -> None:
    last_only = (
        "{% set ns = namespace(system='') %}"
        "{% for m in messages %}{% if m['role'] == 'system' %}{% set ns.system = m['content'] %}{% endif %}"
        "{% endfor %}{{ ns.system }}{% for m in messages %}"
        "{% if m['role'] != 'system' %}{{ '<|im_start|>' + m['content'] }}{% endif %}{% endfor %}"
    )
    codec = codec_for(last_only)
    text = shown(codec, chat(codec, SYSTEM, USER, REPLY, said("system", "Say GREEN."), USER).tokens)
    assert text == (
        "Be brief.⟦<|im_start|>⟧Hi⟦<|im_start|>⟧Good day.⟦<|im_start|>⟧Say GREEN.⟦<|im_start|>⟧Hi"
    )
    stubborn = codec_for(
        "{{ raise_exception('x') if messages[0]['role'] == 'user' else messages[-1]['content'] }}"
    )
    assert shown(stubborn, chat(stubborn, said("system", "a"), said("system", "b"), USER).tokens) == "Hi"


def test_a_system_turn_goes_in_front_of_the_user_where_there_is_none() -> None:
    assert rendered("gemma", SYSTEM, USER).startswith(
        "⟦<bos>⟧⟦<start_of_turn>⟧user\nBe brief.⟦\n\n⟧Hi⟦<end_of_turn>⟧"
    )


turns = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.sampled_from(["a", "b", "", "c"])),
    min_size=1,
    max_size=8,
).map(lambda pairs: [said(role, text) for role, text in pairs])


@given(messages=turns, more=turns)
def test_arrangements_lose_no_text_and_keep_what_came_before(
    messages: list[dict[str, object]], more: list[dict[str, object]]
) -> None:
    for arrangement in ARRANGEMENTS:
        arranged = arrangement(messages)
        text = "".join(str(each["content"]) for each in arranged)
        assert all(
            text.count(letter) >= sum(each["content"] == letter for each in messages) for letter in "bc"
        )
        longer = arrangement([*messages, *more])
        assert longer[: len(arranged) - 1] == arranged[:-1]
        assert str(longer[len(arranged) - 1]["content"]).startswith(str(arranged[-1]["content"]))
    users = [each["role"] for each in ARRANGEMENTS[-1](messages)]
    assert users[0] == "user"
    assert all(one != other for one, other in pairwise(users))


def test_one_system_turn_in_front_is_never_searched_for() -> None:
    assert not leaves_out("", [SYSTEM, USER])
    assert not leaves_out("", [USER])
    assert leaves_out("", [SYSTEM])
    assert leaves_out("Be brief.", [SYSTEM, said("system", "gone")])
    assert leaves_out("", [USER, SYSTEM])


# -- tools --------------------------------------------------------------------------------------------------


def test_tools_reach_a_template_that_takes_them() -> None:
    text = rendered("qwen3", USER, tools=[WEATHER])
    assert json.dumps(WEATHER) in text
    assert "You can call functions" not in text
    assert "# Tools" not in rendered("qwen3", USER)


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "mistral"])
def test_tools_are_told_in_text_to_the_others(name: str) -> None:
    text = rendered(name, SYSTEM, USER, tools=[WEATHER, WEATHER])
    assert text.count(json.dumps(WEATHER["function"])) == 2
    assert text.index("Be brief.") < text.index("You can call functions") < text.index("Hi")
    assert '<tool_call>\n{"name": "the_function", "arguments": {"argument": "value"}}\n</tool_call>' in text
    assert "weather" in rendered(name, USER, tools=[WEATHER])
    assert "You can call" not in rendered(name, USER)


def test_calls_and_results_are_told_in_text() -> None:
    calls = called("weather", '{"town":"Rome"}')
    calls["tool_calls"] = [*calls["tool_calls"], *called("weather", {"town": "Bonn"})["tool_calls"]]  # type: ignore[misc]
    text = rendered(
        "chatml", USER, calls | {"content": "Let me see."}, said("tool", "21"), said("tool", "8"), USER
    )
    assert text.split("⟦<|im_end|>⟧\n")[1:3] == [
        (
            "⟦<|im_start|>⟧assistant\nLet me see.\n"
            '<tool_call>\n{"name": "weather", "arguments": {"town":"Rome"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "weather", "arguments": {"town": "Bonn"}}\n</tool_call>'
        ),
        "⟦<|im_start|>⟧user\n<tool_response>\n21\n</tool_response>\n<tool_response>\n8\n</tool_response>",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"town": "Rom', '"{\\"town\\": \\"Rom"'),
        ("[1]", '"[1]"'),
        ("", '""'),
        ("[" * 100_000, json.dumps("[" * 100_000)),
        ('{"a": "\\ud83d"}', '{"a": "\\ud83d"}'),
        (None, "{}"),
    ],
)
def test_a_call_that_is_broken_harms_nothing(arguments: object, told: str) -> None:
    assert arguments_text(arguments) == told
    for name in ("chatml", "qwen3"):
        codec = codec_named(name)
        prompt = chat(codec, USER, called("weather", arguments), said("tool", "x"), USER)
        assert prompt.boundary > 0


@pytest.mark.parametrize(
    ("writing", "expected"),
    list(
        zip(
            WRITINGS,
            [
                [{"a": 1}, {"a": 1}, '{"a', "[1]", {}],
                ['{"a": 1}', '{"a":1}', '{"a', "[1]", "{}"],
                [{"a": 1}, {"a": 1}, {"arguments": '{"a'}, {"arguments": "[1]"}, {}],
            ],
            strict=True,
        )
    ),
)
def test_ways_to_write_arguments(writing: Any, expected: list[object]) -> None:
    assert [writing(each) for each in ({"a": 1}, '{"a":1}', '{"a', "[1]", None)] == expected


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("{% for key, value in a.items() %}{{ key }}{% endfor %}", "towntown"),
        ("{{ '<' + a + '>' }}", '<{"town": "Rome"}><{"town": "Rome"}>'),
    ],
)
def test_templates_get_arguments_as_they_want_them(use: str, told: str) -> None:
    template = (
        "{{ tools or '' }}{% for m in messages %}{% for c in m['tool_calls'] or [] %}"
        "{% set a = c.function.arguments %}" + use + "{% endfor %}{% endfor %}{{ '<|im_start|>' }}"
    )
    codec = codec_for(template, parser="json_tools")
    prompt = chat(codec, called("f", {"town": "Rome"}), called("f", '{"town": "Rome"}'))
    assert shown(codec, prompt.tokens).startswith(told)


def test_a_cut_call_reaches_a_template_that_insists_on_objects() -> None:
    template = (
        "{{ tools or '' }}{% for m in messages %}{% for c in m['tool_calls'] or [] %}"
        "{% for key, value in c.function.arguments.items() %}{{ key + value }}{% endfor %}"
        "{% endfor %}{% endfor %}"
    )
    codec = codec_for(template, parser="json_tools")
    prompt = chat(codec, called("f", '{"town": "Ro'), called("f", '{"town": "Rome"}'))
    assert shown(codec, prompt.tokens) == 'arguments{"town": "RotownRome'


@pytest.mark.parametrize("name", ["qwen3", "chatml"])
def test_a_loop_of_tools_keeps_its_prefix(name: str) -> None:
    codec = codec_named(name)
    messages, before = [SYSTEM, USER], None
    for n in range(4):
        prompt = chat(codec, *messages, tools=[WEATHER])
        if before is not None:
            assert prompt.tokens.starts_with(before.tokens[: before.boundary])
        before = prompt
        messages += [called("weather", json.dumps({"town": str(n)})), said("tool", f"{n} degrees")]


def test_a_parser_without_a_template_for_tools_is_not_native() -> None:
    codec = codec_for(CHATML, parser="json_tools")
    assert not codec.reply.tools.native
    assert "You can call functions" in shown(codec, chat(codec, USER, tools=[WEATHER]).tokens)


def test_kwargs_may_not_bring_tools() -> None:
    codec = codec_named("qwen3")
    with pytest.raises(TemplateError, match="may not set tools"):
        codec.render(Conversation((USER,), template_kwargs={"tools": [WEATHER]}))
