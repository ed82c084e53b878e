"""Constraints compiled, and what they let a row say."""

from __future__ import annotations

import importlib
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.errors import ConstraintError, ConstraintFailed
from samovar.runtime.engine.grammar.compiling import KEPT_GRAMMARS, Grammars
from samovar.runtime.engine.prompt import PLAIN_REPLIES, Constraint, ReplyFormat, ToolFormat
from tokenizers import Tokenizer

from tests.kit.grammars import END, byte_tokenizer, grammars, guide, ids, options, takes
from tests.kit.models import VOCAB

if TYPE_CHECKING:
    from collections.abc import Mapping

THINKS = ReplyFormat(reasoning=("<think>", "</think>"))
THINKS_IN_WORDS = ReplyFormat(reasoning=("[thoughts]", "[/thoughts]"))


def function(name: str, parameters: object = None, **more: object) -> Mapping[str, object]:
    fields: dict[str, object] = {"name": name, **more}
    return {
        "type": "function",
        "function": fields if parameters is None else fields | {"parameters": parameters},
    }


WEATHER = function(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"$ref": "#/$defs/count"},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city"],
        "$defs": {"count": {"type": "integer", "minimum": 1}},
    },
)
NOW = function("now")
CHOICES = ["yes", "no", 'q"\\', "a\nb", "ja/nein", ""]


def schema(**fields: object) -> Constraint:
    return Constraint("json_schema", json.dumps(fields))


def refused(constraint: Constraint, in_grammars: Grammars | None = None) -> str:
    with pytest.raises(ConstraintError) as caught:
        (in_grammars or grammars()).compile(constraint, in_reasoning=False)
    assert caught.value.param == constraint.param
    return str(caught.value)


# --- what cannot be compiled ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        (Constraint("json_schema", "{"), "not JSON"),
        (Constraint("json_schema", "[]"), "must be an object"),
        (Constraint("json_schema", "true"), "must be an object"),
        (schema(type="strin"), "strin"),
        (schema(type="object", properties=5), "properties must be an object"),
        (schema(**{"not": {"type": "string"}}), "not"),
        (schema(**{"$ref": "#/$defs/absent"}), "absent"),
        (schema(**{"$ref": "http://127.0.0.1:1/x"}), "127.0.0.1"),
        (schema(**{"$ref": "#"}), "no reply can match"),
        (schema(type="string", pattern="(?=a)b"), "look-around"),
        (schema(type="object", properties={"a": False}, required=["a"]), "unsatisfiable"),
        (Constraint("regex", "(a"), "unclosed group"),
        (Constraint("regex", r"[^\s\S]"), "no reply can match"),
        (Constraint("regex", "\ud83d"), "regular expression"),
        (Constraint("grammar", "a: b"), "start"),
        (Constraint("grammar", 'start: "a'), "grammar"),
        (Constraint("grammar", "start: start"), "no reply can match"),
        (Constraint("grammar", 'start: <|absent|> "a"'), "absent"),
        (Constraint("choice", "{}"), "list of strings"),
        (Constraint("choice", "[]"), "list of strings"),
        (Constraint("choice", '["a", 1]'), "must be a string"),
        (Constraint("tools"), "1 to 256 tools"),
        (Constraint("tools", tools=({"type": "function"},)), "function"),
        (Constraint("tools", tools=(function(""),)), "name"),
        (schema(type="string", const="\ud83d"), "cannot be used"),
        (Constraint("tools", tools=(function("f", []),)), "JSON Schema"),
        (Constraint("tools", tools=(function("f", {"type": "string"}),)), "must be an object"),
        (Constraint("tools", tools=(function("f", {"not": {}}, strict=True),)), "not"),
    ],
)
def test_a_source_that_is_wrong_is_refused_with_the_reason(constraint: Constraint, says: str) -> None:
    message = refused(constraint)
    assert says in message
    assert len(message) < 400
    assert "\n" not in message


def _chained(count: int) -> str:
    """Definitions that refer to each other in a chain: enough of them overflow a stack."""
    chain = {f"d{at}": {"items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(count)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": chain | {f"d{count}": {"type": "string"}}})


def _rules(count: int, letter: str) -> str:
    rules = "".join(f'{letter}{at}: {letter}{at + 1} "x"\n' for at in range(count))
    return f'start: {letter}0\n{rules}{letter}{count}: "x"\n'


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json_schema", _chained(6_000)),
        Constraint("json_schema", _chained(1_500)),
        Constraint("json_schema", '{"items":' * 5_000 + "{}" + "}" * 5_000),
        Constraint("json_schema", '{"items":' * 100 + "{}" + "}" * 100),
        Constraint("grammar", _rules(20_000, "a")),
        Constraint("grammar", _rules(4_100, "a")),
        Constraint("grammar", _rules(4_100, "A")),
        Constraint("grammar", "start: " + "(" * 90_000 + '"a"' + ")" * 90_000),
        Constraint("regex", "(" * 90_000 + "a" + ")" * 90_000),
        Constraint("regex", "a" * 300_000),
        Constraint("choice", json.dumps([str(number) for number in range(2_001)])),
        Constraint("tools", tools=(NOW,) * 257),
        Constraint("tools", tools=(function("f", json.loads(_chained(1_500))),)),
    ],
)
def test_a_source_beyond_the_limits_is_refused_and_harms_nobody(constraint: Constraint) -> None:
    assert "cannot be used" in refused(constraint)
    assert takes(guide(Constraint("regex", "a")), ids("a"))


@pytest.mark.parametrize("source", [_rules(900, "a"), _rules(900, "A"), _chained(900)])
def test_a_source_near_the_limits_compiles(source: str) -> None:
    kind = "json_schema" if source.startswith("{") else "grammar"
    guide(Constraint(kind, source))


def test_a_tokenizer_that_cannot_be_used_is_an_error_for_the_client() -> None:
    asked = Constraint("json_object")
    assert "tokenizer" in refused(asked, Grammars(None, {END}, PLAIN_REPLIES))
    assert "end token" in refused(asked, Grammars(byte_tokenizer(), set(), PLAIN_REPLIES))
    assert "cannot be constrained" in refused(asked, Grammars(byte_tokenizer(), {5_000_000}, PLAIN_REPLIES))


# --- what they let through ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (
            Constraint("json_object"),
            ["{}", '{"a":1}', '{"a": [true, null], "b": {"c": "d"}}'],
            ["[]", "1", "", "{", '{"a":  1}', '{\n"a": 1}', " {}", '{"a" : 1}'],
        ),
        (
            schema(
                type="object",
                properties={"n": {"type": "integer"}},
                required=["n"],
                additionalProperties=False,
            ),
            ['{"n": 5}', '{"n":-5}'],
            ["{}", '{"n": 5.5}', '{"n": "5"}', '{"n": 5, "m": 6}'],
        ),
        (
            Constraint(
                "json_schema", '{"type": "array", "x-guidance": {"whitespace_flexible": true}, "maxItems": 1}'
            ),
            ["[1]", "[]"],
            ["[ 1]", "[1, 2]"],
        ),
        (Constraint("regex", "[0-9]{2,3}(a|b)?"), ["12", "123", "123b"], ["1", "1234", "12c", "12ab"]),
        (
            Constraint("grammar", 'start: word+\nword: "a" NUMBER\nNUMBER: /[0-9]/'),
            ["a1", "a1a2"],
            ["a", "1a", ""],
        ),
        (
            Constraint("choice", json.dumps(CHOICES)),
            CHOICES,
            ["y", "yesno", "maybe", "a b"],
        ),
        (
            Constraint("tools", tools=(WEATHER, NOW)),
            [
                '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn"}}</tool_call>',
                '<tool_call>\n{"name":"get_weather","arguments":{"city":"","days":3,"unit":"C"}}\n</tool_call>',
                '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
            ],
            [
                '{"name": "now", "arguments": {}}',
                '<tool_call>{"name": "then", "arguments": {}}</tool_call>',
                '<tool_call>{"name": "now", "arguments": {"city": "Bonn"}}</tool_call>',
                '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>',
                '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn", "days": 0}}</tool_call>',
                '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn", "x": 1}}</tool_call>',
                '<tool_call>{"name": "now", "arguments": {}}',
                '<tool_call>{"name": "now", "arguments": {}}</tool_call>' * 2,
            ],
        ),
        (
            Constraint("tools", tools=(NOW,), many=True),
            ['<tool_call>{"name": "now", "arguments": {}}</tool_call>' * count for count in (1, 2, 3)],
            ["", '<tool_call>{"name": "now", "arguments": {}}</tool_call>.'],
        ),
        (
            Constraint("tools", tools=(function("f", {"properties": {"a": {"not": {}}}}),)),
            ['<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'],
            ['<tool_call>{"name": "f", "arguments": {"b": 1}}</tool_call>'],
        ),
    ],
)
def test_just_what_matches_can_be_said(constraint: Constraint, good: list[str], bad: list[str]) -> None:
    compiled = guide(constraint)
    assert [text for text in good if not takes(compiled, ids(text))] == []
    assert [text for text in bad if takes(compiled, ids(text))] == []


def test_marks_come_as_their_tokens_and_not_spelled() -> None:
    row = guide(Constraint("tools", tools=(NOW,))).start(())
    assert options(row) == {1}


def test_a_reply_ends_exactly_where_the_grammar_is_complete() -> None:
    row = guide(Constraint("regex", "ab?")).start(())
    assert options(row) == {ord("a")}
    row.advance(ord("a"))
    assert options(row) == {ord("b"), END}
    row.advance(ord("b"))
    assert options(row) == {END}


def test_ids_beyond_the_tokenizer_are_never_allowed() -> None:
    row = guide(Constraint("regex", r"(?s:.*)")).start(())
    known = options(row, 192)
    assert known is not None
    assert len(known) > 120
    assert options(row, VOCAB) == options(row, 10_000) == known
    assert options(row, 100) == {token for token in known if token < 100}


def test_a_token_that_is_not_allowed_ends_in_an_error_that_stays() -> None:
    compiled = guide(Constraint("regex", "ab"))
    row = compiled.start(())
    for _ in range(2):
        with pytest.raises(ConstraintFailed):
            row.advance(ord("z"))
    with pytest.raises(ConstraintFailed):
        row.allowed(VOCAB)
    with pytest.raises(ConstraintFailed):
        compiled.start(ids("az"))


def test_rows_of_one_guide_are_apart_and_start_anywhere() -> None:
    compiled = guide(Constraint("regex", "abcd"))
    rows = [compiled.start(ids("abcd")[:count]) for count in range(4)]
    assert [options(row) for row in rows] == [{token} for token in ids("abcd")]
    rows[0].advance(ord("a"))
    assert [options(row) for row in rows[:2]] == [{ord("b")}] * 2


# --- reasoning ------------------------------------------------------------------------------------


def test_nothing_binds_before_the_reasoning_ends() -> None:
    for reply, mark in ((THINKS, ids("</think>")), (THINKS_IN_WORDS, ids("[/thoughts]"))):
        row = guide(Constraint("regex", "ab"), in_reasoning=True, reply=reply).start(())
        for token in [*ids("b[/[/thoughts, hm "), *mark[:-1]]:
            assert options(row) is None
            row.advance(token)
        assert options(row) is None
        row.advance(mark[-1])
        assert options(row) == {ord("a")}
        again = guide(Constraint("regex", "ab"), in_reasoning=True, reply=reply).start(
            [*ids("hm"), *mark, ord("a")]
        )
        assert options(again) == {ord("b")}


def test_without_reasoning_the_first_token_is_bound_but_may_open_it() -> None:
    compiled = guide(Constraint("regex", "ab"), reply=THINKS)
    row = compiled.start(())
    assert options(row) == {ord("a"), 3}
    row.advance(3)
    assert options(row) is None
    row.advance(4)
    assert options(row) == {ord("a")}
    assert options(compiled.start(ids("a"))) == {ord("b")}
    assert options(guide(Constraint("regex", "ab")).start(())) == {ord("a")}


def test_text_of_the_token_that_ends_the_reasoning_counts() -> None:
    tokenizer = Tokenizer.from_str(byte_tokenizer().to_str())
    tokenizer.add_tokens(["]\n a", "]b"])
    own = Grammars(tokenizer, {END}, THINKS_IN_WORDS)
    compiled = own.compile(Constraint("regex", "ab"), in_reasoning=True)
    before = ids("[/thoughts")
    assert options(compiled.start([*before, 192])) == {ord("b")}
    with pytest.raises(ConstraintFailed):
        compiled.start([*before, 193])


# --- tool formats ---------------------------------------------------------------------------------

CITY = '{"city": "Bonn", "unit": "C"}'
CALLS = {
    "mistral": ("[ARGS]", f"get_weather[ARGS]{CITY}"),
    "kimi_k2": (
        "<|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>",
        f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{CITY}<|tool_call_end|>",
    ),
    "kimi_k3": (
        "",
        (
            '<|open|>call tool="get_weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
            f"{CITY}<|close|>json<|sep|><|close|>call<|sep|>"
        ),
    ),
    "longcat": ("", f'{{"name": "get_weather", "arguments": {CITY}}}'),
    "pythonic": ("", '[get_weather(city="Bonn", unit="C")]'),
    "glm47": (
        "<arg_key> </arg_key> <arg_value> </arg_value>",
        "get_weather<arg_key>city</arg_key><arg_value>Bonn</arg_value><arg_key>unit</arg_key><arg_value>C</arg_value>",
    ),
    "laguna": (
        "",
        "get_weather<arg_key>city</arg_key><arg_value>Bonn</arg_value><arg_key>unit</arg_key><arg_value>C</arg_value>",
    ),
    "qwen3_coder": (
        "",
        (
            "\n<function=get_weather>\n<parameter=city>\nBonn\n</parameter>\n"
            "<parameter=unit>\nC\n</parameter>\n</function>\n"
        ),
    ),
    "minimax_m2": (
        "",
        (
            '\n<invoke name="get_weather">\n<parameter name="city">Bonn</parameter>\n'
            '<parameter name="unit">C</parameter>\n</invoke>\n'
        ),
    ),
    "minicpm5": ("", '"get_weather"><param name="city">Bonn</param><param name="unit">C</param>'),
    "muse_spark": (
        "",
        (
            '\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Bonn</atem:parameter>\n'
            '<atem:parameter name="unit">C</atem:parameter>\n</atem:invoke>\n'
        ),
    ),
    "function_gemma": ("<escape>", "call:get_weather{city:<escape>Bonn<escape>,unit:<escape>C<escape>}"),
    "gemma4": ('<|"|>', 'call:get_weather{city:<|"|>Bonn<|"|>,unit:<|"|>C<|"|>}'),
}


@pytest.mark.parametrize("parser", CALLS)
def test_calls_in_every_format_are_what_its_parser_reads(parser: str) -> None:
    """A call as the model writes it passes; so does none of another tool, nor one that lacks an argument."""
    reader: Any = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    form = ToolFormat(reader.tool_call_start, reader.tool_call_end, parser, native=True)
    spelled, body = CALLS[parser]
    marks = (*spelled.split(), *(mark for mark in (form.start, form.end) if mark))
    compiled = grammars(ReplyFormat(form), marks).compile(
        Constraint("tools", tools=(WEATHER, NOW)), in_reasoning=False
    )

    def said(text: str) -> bool:
        return takes(compiled, ids(form.start + text + form.end, marks), 300)

    assert said(body)
    read = reader.parse_tool_call(body, [WEATHER, NOW])
    read = read[0] if isinstance(read, list) else read
    assert (read["name"], read["arguments"]) == ("get_weather", {"city": "Bonn", "unit": "C"})
    assert not said(body.replace("get_weather", "get_whether"))
    assert not said(body.replace("city", "town"))
    assert not said(body.replace("C", "K"))
    assert not takes(compiled, ids(body, marks), 300)
    assert not takes(compiled, ids(form.start + form.end, marks), 300)


def test_mistral_without_a_mark_for_arguments_writes_a_list() -> None:
    form = ReplyFormat(ToolFormat("[TOOL_CALLS]", "", "mistral", native=True))
    asked = Constraint("tools", tools=(WEATHER, NOW), many=True)
    compiled = grammars(form, ("[TOOL_CALLS]",)).compile(asked, in_reasoning=False)
    call = f'{{"name": "get_weather", "arguments": {CITY}}}'
    assert takes(compiled, ids(f"[TOOL_CALLS] [{call}, {call}]", ("[TOOL_CALLS]",)), 300)
    assert not takes(compiled, ids(f"[TOOL_CALLS] [{call}", ("[TOOL_CALLS]",)), 300)


def test_a_format_without_a_grammar_here_forces_marks_and_name() -> None:
    form = ReplyFormat(ToolFormat("<call>", "</call>", "nonesuch", native=True))
    compiled = grammars(form).compile(Constraint("tools", tools=(WEATHER, NOW)), in_reasoning=False)
    assert takes(compiled, ids("<call> do now: please</call>"))
    assert not takes(compiled, ids("<call> do then: please</call>"))
    assert not takes(compiled, ids("<call> do now: please"))
    assert not takes(compiled, ids("now</call>"))


# --- what is kept ---------------------------------------------------------------------------------


def test_the_last_grammars_are_kept_and_no_more() -> None:
    own = Grammars(byte_tokenizer(), {END}, PLAIN_REPLIES)
    for number in range(KEPT_GRAMMARS + 10):
        own.compile(Constraint("regex", f"a{{{number}}}"), in_reasoning=False)
        own.compile(Constraint("regex", "a{0}"), in_reasoning=False)
    assert len(own._kept) == KEPT_GRAMMARS
    assert any('"a{0}"' in key for key in own._kept)
    assert takes(own.compile(Constraint("regex", "a{3}"), in_reasoning=False), ids("aaa"))


def test_threads_compile_and_follow_one_constraint_at_once() -> None:
    own = Grammars(byte_tokenizer(), {END}, PLAIN_REPLIES)
    outcomes: list[bool] = []

    def work() -> None:
        compiled = own.compile(Constraint("json_object"), in_reasoning=False)
        outcomes.extend(takes(compiled, ids('{"a": [1, 2, {"b": "c"}]}')) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 40
