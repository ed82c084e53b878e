"""Ids of calls in a history, for templates that insist on a form of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.engine.text.call_ids import ids_of_kimi, ids_of_nine

from tests.engine.text.texts import CHATML, QWEN3, SPECIAL, byte_level, chat, codec_for, said, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# As Mistral's third tokenizer: ids of nine characters, calls as a list, turns that alternate.
MISTRAL_NINE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + '[/INST]' }}"
    "{% elif m['role'] == 'tool' %}"
    "{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    "{{ '[RESULT]' + m['content'] + ' ' + m.tool_call_id }}"
    "{% elif m['tool_calls'] %}{{ '[TOOL_CALLS] [' }}{% for call in m['tool_calls'] %}"
    "{% if call.id is not defined or call.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    "{{ call.function | tojson + ' ' + call.id }}{% endfor %}{{ ']' + eos_token }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}{{ tools or '' }}"
)
KIMI = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'tool' %}{{ '## Return of ' + m.tool_call_id + '\n' }}{% endif %}"
    "{{ m['content'] or '' }}"
    "{% for call in m['tool_calls'] or [] %}"
    "{{ '<|tool_call_begin|>' + call['id'] + '<|tool_call_argument_begin|>' }}"
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}{{ '<|tool_call_end|>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{{ tools or '' }}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = said("user", "Weather?")
OURS = ("call_0123456789abcdef01234567", "call_fedcba9876543210fedcba98")


def calls(*ids: str | None) -> dict[str, Any]:
    made = [
        {"type": "function", "function": {"name": "weather", "arguments": '{"town": "Rome"}'}}
        | ({} if each is None else {"id": each})
        for each in ids
    ]
    return said("assistant", "", tool_calls=made)


def result(sent: str | None, text: str = "21") -> dict[str, Any]:
    return said("tool", text) | ({} if sent is None else {"tool_call_id": sent})


def mistral() -> Any:
    return codec_for(MISTRAL_NINE, byte_level([*SPECIAL[CHATML], "[TOOL_CALLS]"]), parser="mistral")


@pytest.mark.parametrize("ids", [OURS, (None, None), ("toolu_1", "toolu_2"), ("aB3dE6gH9", "zzzzzzzzz")])
def test_a_template_that_insists_on_nine_gets_them_and_calls_stay_calls(ids: Sequence[str | None]) -> None:
    text = shown(codec := mistral(), chat(codec, USER, calls(*ids), *map(result, ids), USER).tokens)
    assert text.count("[TOOL_CALLS]") == 1
    assert "tool_response" not in text
    first, second = re.findall(r"\} (\w{9})", text)
    assert re.findall(r"\[RESULT\]21 (\w{9})", text) == [first, second]
    assert first != second
    assert ids[0] != "aB3dE6gH9" or (first, second) == ids


def test_a_result_without_its_call_is_no_refusal() -> None:
    text = shown(
        codec := mistral(), chat(codec, USER, result("call_of_a_turn_that_was_cut_off"), USER).tokens
    )
    assert re.search(r"\[RESULT\]21 \w{9}\[INST\]", text)


def test_a_later_call_keeps_the_prefix() -> None:
    codec = mistral()
    turns = USER, calls(OURS[0]), result(OURS[0]), said("assistant", "Warm.")
    first = chat(codec, *turns, USER)
    later = chat(codec, *turns, USER, calls(OURS[1]), result(OURS[1]))
    assert later.tokens.starts_with(first.tokens[: first.boundary])


def test_kimi_sees_the_ids_that_it_writes() -> None:
    codec = codec_for(KIMI, parser="kimi_k2")
    assert codec.reply.tools.parser == "kimi_k2"
    turns = USER, calls(*OURS), result(OURS[1], "b"), result(OURS[0], "a"), calls(None), result(None, "c")
    text = shown(codec, chat(codec, *turns, result("lost", "d")).tokens)
    assert re.findall(r"call_begin\|>⟧?(\S+?)(?:⟦|<)", text) == [f"functions.weather:{n}" for n in range(3)]
    assert re.findall(r"Return of (\S+)\n(\w)", text) == [
        ("functions.weather:1", "b"),
        ("functions.weather:0", "a"),
        ("functions.weather:2", "c"),
        ("lost", "d"),
    ]


def test_other_templates_get_ids_as_they_were_sent() -> None:
    template = QWEN3.replace("{{ call", "{{ call.id }}{{ call").replace(
        "{% set tool_call", "{{ call.id }}{% set tool_call"
    )
    codec = codec_for(template, parser="json_tools")
    assert OURS[0] in shown(codec, chat(codec, USER, calls(OURS[0]), result(OURS[0]), USER).tokens)


IDS = st.none() | st.sampled_from(["", "a", "call_1", "abcdefghi"])
TURNS = st.lists(
    st.just(USER)
    | st.builds(result, IDS)
    | st.lists(IDS, min_size=1, max_size=3).map(lambda ids: calls(*ids)),
    max_size=8,
)


@given(TURNS, TURNS)
def test_what_comes_later_changes_no_id(turns: list[dict[str, Any]], later: list[dict[str, Any]]) -> None:
    for renamed in (ids_of_nine, ids_of_kimi):
        assert renamed([*turns, *later])[: len(turns)] == renamed(turns)
        assert len(renamed(turns)) == len(turns)
    for turn in ids_of_nine(turns):
        ids = [call["id"] for call in turn.get("tool_calls", ())]
        ids += [turn["tool_call_id"]] if turn["role"] == "tool" else []
        assert all(re.fullmatch(r"[A-Za-z0-9]{9}", each) for each in ids)
