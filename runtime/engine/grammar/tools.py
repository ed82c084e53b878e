"""Grammars of tool calls, in the format that the model at hand writes them in (``prompt.ToolFormat``).

By the module of ``mlx_lm.tool_parsers`` that reads them back:

- ``json_tools``, ``longcat``, ``mistral``, ``kimi_k2``, ``kimi_k3``: name and arguments exactly.
- ``pythonic`` and the other formats of tagged.py (``glm47``, ``laguna``, ``qwen3_coder``, ``minimax_m2``,
  ``minicpm5``, ``muse_spark``, ``function_gemma``, ``gemma4``): names of tool and arguments exactly, required
  ones present, values by their schemas; but text without quotes is free, whatever its schema says beyond
  an enumeration. Tools whose schema is not a plain list of properties are taken as below.
- any other: the start mark, a tool's name soon behind it, then free text up to the end mark.

A tool without ``strict`` whose schema uses what llguidance does not know is held to the rest of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from .lark import SPACE, Lark, text
from .tagged import STYLES, is_plain, tagged_call
from .tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..prompt import Constraint, ToolFormat
    from .vocabulary import Vocabulary

_NAME_WITHIN: Final = 64
_NAME, _ARGUMENTS = text('"name":'), text('"arguments":')
_K3_CALL: Final = '<|open|>call tool="NAME" index="'
_K3_JSON: Final = '"<|sep|><|open|>json type="object"<|sep|>'


def tool_grammars(constraint: Constraint, form: ToolFormat, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield grammars of a call (of several: ``constraint.many``), the exactest first.

    Raises BadSource and TooLarge over tools that are none.
    """
    tools = Tool.all_of(constraint.tools)
    for lenient in (False,) if any(tool.strict for tool in tools) else (False, True):
        lark = Lark(vocabulary, lenient=lenient)
        yield lark.grammar(_start(lark, form, tools, many=constraint.many))


def _start(lark: Lark, form: ToolFormat, tools: Sequence[Tool], *, many: bool) -> str:
    repeat = "+" if many else ""
    if form.parser in STYLES and all(map(is_plain, tools)):
        return _tagged(lark, form, tools, many=many)
    if form.parser == "mistral" and not lark.has("[ARGS]"):
        return _listed(lark, form, tools, many=many)
    marked = _MARKED.get(form.parser)
    if marked is not None:
        return marked(lark, form, tools, repeat)
    return _loose(lark, form, tools, repeat if form.end else "")


def _hermes(lark: Lark, form: ToolFormat, tools: Sequence[Tool], repeat: str) -> str:
    """Return ``<tool_call>{"name": …, "arguments": …}</tool_call>``, the object on its own line or not."""
    call = f'{lark.literal(form.start)} "\\n"? {_object(lark, tools)} "\\n"? {lark.literal(form.end)}'
    return f'{call} ("\\n"? {call})*' if repeat else call


def _object(lark: Lark, tools: Sequence[Tool]) -> str:
    head, middle = f'"{{" {_NAME} {SPACE}', f'"," {SPACE} {_ARGUMENTS} {SPACE}'
    return lark.either(
        f'{head} {text(json.dumps(tool.name))} {middle} {lark.json(tool.parameters)} "}}"' for tool in tools
    )


def _listed(lark: Lark, form: ToolFormat, tools: Sequence[Tool], *, many: bool) -> str:
    """Return ``[TOOL_CALLS] [{"name": …, "arguments": …}]``."""
    call = _object(lark, tools)
    more = f' ("," {SPACE} {call})*' if many else ""
    return f'{lark.literal(form.start)} {SPACE} "[" {call}{more} "]"'


def _mistral(lark: Lark, form: ToolFormat, tools: Sequence[Tool], repeat: str) -> str:
    """Return ``[TOOL_CALLS]name[ARGS]{…}``."""
    mark = lark.literal("[ARGS]")
    calls = (f"{text(tool.name)} {mark} {lark.json(tool.parameters)}" for tool in tools)
    return f"({lark.literal(form.start)} {lark.either(calls)}){repeat}"


def _kimi_k2(lark: Lark, form: ToolFormat, tools: Sequence[Tool], repeat: str) -> str:
    begin, end = lark.literal("<|tool_call_begin|>"), lark.literal("<|tool_call_end|>")
    middle = f"/[0-9]{{1,3}}/ {lark.literal('<|tool_call_argument_begin|>')}"
    calls = (
        f"{begin} {text(f'functions.{tool.name}:')} {middle} {lark.json(tool.parameters)} {end}"
        for tool in tools
    )
    return f"{lark.literal(form.start)} {lark.either(calls)}{repeat} {lark.literal(form.end)}"


def _kimi_k3(lark: Lark, form: ToolFormat, tools: Sequence[Tool], repeat: str) -> str:
    end = lark.literal("<|close|>json<|sep|><|close|>call<|sep|>")
    middle = f"/[0-9]{{1,3}}/ {lark.literal(_K3_JSON)}"
    calls = (
        f"{lark.literal(_K3_CALL.replace('NAME', tool.name))} {middle} {lark.json(tool.parameters)} {end}"
        for tool in tools
    )
    return f"{lark.literal(form.start)} {lark.either(calls)}{repeat} {lark.literal(form.end)}"


def _tagged(lark: Lark, form: ToolFormat, tools: Sequence[Tool], *, many: bool) -> str:
    style = STYLES[form.parser]
    start, end = lark.literal(form.start + style.before), lark.literal(style.after + form.end)
    call = lark.either(tagged_call(lark, tool, style) for tool in tools)
    if not many:
        return f"{start} {call} {end}"
    if style.together:
        return f"{start} {call} ({lark.literal(style.between)} {call})* {end}"
    return f"({start} {call} {end})+"


def _loose(lark: Lark, form: ToolFormat, tools: Sequence[Tool], repeat: str) -> str:
    named = lark.holding([tool.name for tool in tools], _NAME_WITHIN)
    return f"({lark.literal(form.start)} {named} {lark.until(form.end)}){repeat}"


_MARKED: Final[dict[str, Callable[[Lark, ToolFormat, Sequence[Tool], str], str]]] = {
    "json_tools": _hermes,
    "kimi_k2": _kimi_k2,
    "kimi_k3": _kimi_k3,
    "longcat": _hermes,
    "mistral": _mistral,
}
