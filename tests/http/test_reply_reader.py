"""What a reply's text is read as, however it is cut into deltas."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samovar.runtime.engine.port import Sampling
from samovar.runtime.engine.prompt import PlainText, ReplyFormat, ToolFormat
from samovar.runtime.http.errors import HttpError
from samovar.runtime.http.replies.graphemes import settled
from samovar.runtime.http.replies.marks import Splitter

from .replies import HERMES, MISTRAL, THINK, read

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN = ReplyFormat()
HERMES_ONLY = ReplyFormat(HERMES)
THINKER = ReplyFormat(HERMES, THINK)
ODD = ReplyFormat(MISTRAL, ("<|channel>thought", "<channel|>"))
GOOD = '<tool_call>\n{"name": "f", "arguments": {"p": "a"}}\n</tool_call>'
BAD = '<tool_call>{"name": "f", "arguments": {"p": "\\d+"}}</tool_call>'
CALL = ("f", '{"p": "a"}')


@pytest.mark.parametrize(
    ("text", "reason", "kept"),
    [
        (BAD, "stop", BAD),  # an escape that JSON does not know
        ("<tool_call><function=f><parameter=p>x</parameter></function></tool_call>", "stop", None),
        ('<tool_call>{"name": "f", "arguments": {"p": {"q": {"r": 1}}}</tool_call>', "stop", None),
        ("<tool_call>[]</tool_call>", "stop", None),
        ("<tool_call>7</tool_call>", "stop", None),
        ('<tool_call>{"arguments": {}}</tool_call>', "stop", None),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "stop", None),
        ('<tool_call>{"name": "f", "arguments": {"p": NaN}}</tool_call>', "stop", None),
        ('<tool_call>{"name": "f", "arguments": {"p": "\\ud800"}}</tool_call>', "stop", None),
        ("<tool_call>" + "[" * 20_000 + "</tool_call>", "stop", None),
        ('a \n<tool_call>{"name": "f", "argum', "length", None),
        ('a \n<tool_call>{"name": "f", "arguments": {}}</tool_c', "length", None),
        ('a \n<tool_call>{"name": "f", "argum', "stop", None),
        ("a\n<tool_c", "stop", None),
    ],
)
def test_b061_text_that_is_no_call_is_content_and_nothing_of_it_is_lost(
    text: str, reason: Any, kept: str | None
) -> None:
    for at_once in (False, True):
        found = read(HERMES_ONLY, list(text), reason=reason, may_call=True, at_once=at_once)
        assert found.said == (kept or text, "", [], reason)
        assert "".join(found.logprobs) == text


def test_b061_of_two_calls_the_good_one_is_made() -> None:
    for pair, content in (([BAD, GOOD], f"so: \n{BAD}"), ([GOOD, BAD], f"so:{BAD}\n")):
        found = read(HERMES_ONLY, ["so: \n", "\n".join(pair), "\n"], may_call=True)
        assert found.said == (content, "", [CALL], "tool_calls")


@pytest.mark.parametrize("again", [True, False])
def test_a_tool_that_was_not_offered_is_an_error_that_names_it(again: bool) -> None:
    sampling = Sampling(1.0, seed=None if again else 4)
    with pytest.raises(HttpError) as caught:
        read(HERMES_ONLY, [GOOD.replace('"f"', '"rm_rf"')], may_call=True, sampling=sampling)
    assert (caught.value.status, caught.value.code, caught.value.param) == (422, "unknown_tool", "tools")
    assert "'rm_rf'" in caught.value.message
    assert "f, get_weather" in caught.value.message
    assert caught.value.headers["x-should-retry"] == str(again).lower()


@pytest.mark.parametrize(
    ("form", "text", "content", "reasoning", "calls"),
    [
        (THINKER, "<think>\nhm\n</think>\n\nYes.\n", "Yes.\n", "hm", []),
        (THINKER, "\n <think>\n\n</think>\n\n Yes", "Yes", "", []),
        (THINKER, " \n Yes <think>no</think>", " \n Yes <think>no</think>", "", []),
        (THINKER, '{"a": "<think>"}', '{"a": "<think>"}', "", []),
        (THINKER, "<think>a</think><think>b</think>c", "c", "ab", []),
        (THINKER, "<think>unclosed \n", "", "unclosed", []),
        (THINKER, "<think>" + GOOD + "</think>x", "x", GOOD, []),
        (THINKER, f"<think>a</think>\n{GOOD}\n{GOOD}\n", "", "a", [CALL, CALL]),
        (THINKER, f"Wait.\n{GOOD}\n<think>b</think> Done", "Wait.Done", "b", [CALL]),
        (HERMES_ONLY, f"Wait. \n{GOOD}\n\nDone.\n", "Wait.Done.\n", "", [CALL]),
        (HERMES_ONLY, "<tool_call>" * 2, "<tool_call>" * 2, "", []),
        (HERMES_ONLY, "a<b <tool", "a<b <tool", "", []),
        (HERMES_ONLY, GOOD.removesuffix("</tool_call>"), "", "", [CALL]),
        (PLAIN, "<think>x</think>", "<think>x</think>", "", []),
        (ODD, '[TOOL_CALLS][{"name": "f", "arguments": {"p": "a"}}]', "", "", [CALL]),
        (ODD, 'I\n[TOOL_CALLS]f[ARGS]{"p": "a"}[TOOL_CALLS]f[ARGS]{"p": "a"}', "I", "", [CALL, CALL]),
        (ODD, "I\n[TOOL_CALLS]none", "I\n[TOOL_CALLS]none", "", []),
        (ODD, "<|channel>thought\nhm<channel|>Yes", "Yes", "hm", []),
    ],
)
def test_what_is_content_reasoning_and_a_call(
    form: ReplyFormat, text: str, content: str, reasoning: str, calls: list[tuple[str, str]]
) -> None:
    wanted = (content, reasoning, calls, "tool_calls" if calls else "stop")
    for cut in ([text], list(text), re.split(r"(?<=[<>\n])", text), [text[:7], "", text[7:]]):
        for at_once in (False, True):
            assert read(form, cut, may_call=True, at_once=at_once).said == wanted


def test_a_reply_may_begin_in_reasoning() -> None:
    for text, content, reasoning in (
        ("\nhm\n</think>\n\nYes", "Yes", "hm"),
        ("<think>hm</think>Yes", "Yes", "hm"),
        ("hm", "", "hm"),
        ("</think>Yes", "Yes", ""),
    ):
        assert read(THINKER, list(text), in_reasoning=True).said == (content, reasoning, [], "stop")
    assert read(PLAIN, ["hm"], in_reasoning=True).content == "hm"


def test_what_goes_on_from_a_text_is_text() -> None:
    text = "<think>a</think> " + GOOD
    assert read(THINKER, list(text), prompt=PlainText("Once")).said == (text, "", [], "stop")


def test_calls_are_read_only_where_they_may_be_made() -> None:
    assert read(HERMES_ONLY, list(GOOD)).said == (GOOD, "", [], "stop")


def test_an_end_mark_within_a_string_of_the_call_is_a_part_of_it() -> None:
    inner = 'say </tool_call> and \\"go\\" </tool_call>'
    text = GOOD.replace('"a"', f'"{inner}"')
    found = read(HERMES_ONLY, list(text + text), may_call=True)
    assert [json.loads(arguments)["p"] for _, arguments in found.calls] == [json.loads(f'"{inner}"')] * 2
    assert found.content == ""


def test_a_call_makes_the_end_unless_the_limit_does() -> None:
    for reason, wanted in (("stop", "tool_calls"), ("length", "length")):
        found = read(HERMES_ONLY, [GOOD, "\nand"], reason=reason, may_call=True)
        assert found.said == ("and", "", [CALL], wanted)


def test_one_call_alone_and_nothing_behind_it() -> None:
    for at_once in (False, True):
        found = read(HERMES_ONLY, ["x", GOOD, GOOD, "more"], may_call=True, one_call=True, at_once=at_once)
        assert (found.content, found.calls) == ("x", [CALL])


def test_text_is_given_out_as_soon_as_it_can_be_no_mark() -> None:
    found = read(HERMES_ONLY, ["a <", "b", " <tool", "box", "\n", "x"], may_call=True)
    assert found.pieces == ["a", " <b", " <toolbox", "\nx"]
    found = read(ReplyFormat(HERMES, THINK), ["<thi", "s> ", "\n", "<think>"])
    assert found.pieces == ["<this> ", "\n", "<think>"]


def test_logprobs_are_those_of_content_and_reasoning_tokens_are_counted() -> None:
    texts = ["<think>", "\n", "hm", "", "</th", "ink>", "\n\n", "Yes", "", ".", "\n", "<tool", "_x", GOOD, ""]
    found = read(THINKER, texts, may_call=True)
    assert found.logprobs == ["Yes", "", ".", "\n", "<tool", "_x"]
    assert found.end is not None
    assert found.end.reasoning_tokens == 6
    unclosed = read(THINKER, ["<think>", "a", "", "b", ""], reason="length")
    assert unclosed.end is not None
    assert (unclosed.end.reasoning_tokens, unclosed.logprobs) == (5, [])
    assert read(PLAIN, ["", "a", ""], last="b").logprobs == ["", "a", ""]
    assert read(HERMES_ONLY, [" <tool", "_", ""], may_call=True).logprobs == [" <tool", "_", ""]


# --- any text, any cut --------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    [
        *"a<>/ \n\t",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        GOOD,
        BAD,
        '"',
        "é",
        "👨‍👩‍👧",
        "think>",
        "[TOOL_CALLS]",
    ]
)
_TEXTS = st.lists(_WORDS, max_size=12).map("".join)
_FORMS = st.sampled_from([PLAIN, HERMES_ONLY, THINKER, ODD])


def cut_at(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(ends)]


@settings(max_examples=300, deadline=None)
@given(_FORMS, _TEXTS, st.lists(st.integers(0, 2000), max_size=20), st.booleans(), st.booleans())
@example(THINKER, "\n<think>\n</think> \n<tool_call>", [1, 4, 9, 20], False, True)
def test_pieces_do_not_depend_on_the_cut(
    form: ReplyFormat, text: str, places: list[int], in_reasoning: bool, may_call: bool
) -> None:
    whole = read(form, [text], in_reasoning=in_reasoning, may_call=may_call)
    cut = cut_at(text, places)
    found = read(form, cut[:-1], last=cut[-1] if cut else "", in_reasoning=in_reasoning, may_call=may_call)
    assert found.said == whole.said
    tokens = read(form, list(text), in_reasoning=in_reasoning, may_call=may_call, at_once=True)
    assert tokens.said == whole.said
    assert "".join(tokens.logprobs) == whole.content


@settings(max_examples=200, deadline=None)
@given(_FORMS, _TEXTS, st.lists(st.integers(0, 2000), max_size=20), st.booleans())
def test_the_parts_of_a_text_join_to_it(
    form: ReplyFormat, text: str, places: list[int], in_reasoning: bool
) -> None:
    splitter = Splitter(form, may_call=True, in_reasoning=in_reasoning, goes_on=lambda _: False)
    parts = [part for piece in cut_at(text, places) for part in splitter.add(piece)] + splitter.flush()
    assert "".join(part.text for part in parts) == text


# --- calls that a grammar holds to their form ---------------------------------------------------------

FORCED = '<tool_call>\n{"name": "f", "arguments": {"p": "\\"}</tool_call>", "q": [{}, "]"]}}\n</tool_call>'
ARGUMENTS = '{"p": "\\"}</tool_call>", "q": [{}, "]"]}'


def test_arguments_are_told_as_they_come() -> None:
    found = read(HERMES_ONLY, list(FORCED), may_call=True, forced=True)
    assert found.said == ("", "", [("f", ARGUMENTS)], "tool_calls")
    assert found.pieces[:8] == list(ARGUMENTS[:8])
    json.loads(ARGUMENTS)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 2000), max_size=20),
    st.integers(0, 2 * len(FORCED)),
    st.sampled_from(["stop", "length"]),
)
def test_told_early_or_at_once_a_call_is_the_same_wherever_it_is_cut(
    places: list[int], size: int, reason: Any
) -> None:
    text = (FORCED + FORCED)[:size]
    how = {"may_call": True, "forced": True, "reason": reason}
    whole = read(HERMES_ONLY, [text], **how)
    cut = cut_at(text, places)
    assert read(HERMES_ONLY, cut[:-1], last=cut[-1] if cut else "", **how).said == whole.said
    assert read(HERMES_ONLY, list(text), at_once=True, **how).said == whole.said
    if not whole.calls:
        assert whole.content == text


def test_of_forced_calls_too_only_one_where_only_one_is_wanted() -> None:
    for texts in (list(FORCED * 2), [FORCED + FORCED[:40], FORCED[40:]], [FORCED * 2]):
        found = read(HERMES_ONLY, texts, may_call=True, forced=True, one_call=True)
        assert found.calls == [("f", ARGUMENTS)]


def test_a_forced_call_cut_by_the_limit_is_told_as_far_as_it_goes() -> None:
    found = read(HERMES_ONLY, list(FORCED[:50]), reason="length", may_call=True, forced=True)
    (call,) = found.calls
    assert found.said == ("", "", [("f", call[1])], "length")
    assert ARGUMENTS.startswith(call[1])
    early = FORCED[:20]
    assert read(HERMES_ONLY, [early], reason="length", may_call=True, forced=True).content == early


# --- grapheme clusters --------------------------------------------------------------------------------

CLUSTERED = ["👨‍👩‍👧", "🏳️‍🌈", "🇩🇪🇫🇷", "שָׁלוֹם", "مَرْحَبًا", "नमस्ते", "👍🏽", "ก็"]


@pytest.mark.parametrize("text", CLUSTERED)
def test_b094_pieces_end_where_clusters_end_and_join_to_the_text(text: str) -> None:
    for around in (text, f"so {text} ok", text * 2):
        found = read(PLAIN, list(around))
        assert found.content == around
        ends, borders = 0, {match.end() for match in regex.finditer(r"\X", around)}
        for piece in found.pieces:
            ends += len(piece)
            assert ends in borders


def test_b094_letters_without_further_signs_are_never_held_back() -> None:
    for text in ("plain", "žluťoučký", "жить", "日本語", "한국어", "e\u0301"):
        found = read(PLAIN, [*text, "."])
        assert found.content == text + "."
        assert len(found.pieces) == len(text) + (text != "e\u0301")


def test_a_cluster_without_end_is_shown_as_it_comes() -> None:
    assert settled("a" + "\u0301" * 30) == 0
    assert settled("a" + "\u0301" * 300) == 301


def test_every_parser_of_mlx_lm_loads_and_refuses_nonsense_by_one_error() -> None:
    names = (
        "function_gemma",
        "gemma4",
        "kimi_k2",
        "kimi_k3",
        "longcat",
        "minicpm5",
        "minimax_m2",
        "muse_spark",
    )
    for name in (*names, "pythonic", "qwen3_coder", "mistral", "json_tools", "of_tomorrow"):
        form = ReplyFormat(ToolFormat("<c>", "</c>", name, native=True))
        for nonsense in ("<c>!</c>", "<c></c>", "<c>{[<</c>"):
            assert read(form, [nonsense], may_call=True).said == (nonsense, "", [], "stop"), name


def test_calls_in_other_formats() -> None:
    xml = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"
    for name, body in (
        ("qwen3_coder", f"\n{xml}\n"),
        ("pythonic", "[get_weather(city='Oslo')]"),
        ("glm47", "get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"),
    ):
        form = ReplyFormat(ToolFormat("<c>", "</c>", name, native=True))
        assert read(form, list(f"<c>{body}</c>"), may_call=True).calls == [
            ("get_weather", '{"city": "Oslo"}')
        ]
