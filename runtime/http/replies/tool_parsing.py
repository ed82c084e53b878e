"""From the text of a tool block to the calls that it makes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ...engine.text.call_parsers import UnknownParserError, call_parser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What mlx-lm's parsers raise over text that is no call; each has its own ways. Without a parser none is.
_NO_CALL: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    SyntaxError,
    TypeError,
    UnknownParserError,
    ValueError,
)
JSON_PARSER: Final = "json_tools"
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
# The name that mlx-lm's parser of GLM's format gives to text that it cannot read.
_UNREADABLE: Final = ("unknown", {"raw"})


class BadCallError(Exception):
    """The text of a block is no tool call. The message tells what is wrong, and quotes nothing."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call of a tool. ``arguments`` is the text of one JSON object."""

    name: str
    arguments: str


class ToolText:
    """Understands the tool blocks of one format. ``tools`` are those offered.

    Their schemas guide some parsers. The parser is loaded when the first block is read. Loop thread only.
    """

    def __init__(self, parser: str, tools: Sequence[Mapping[str, object]]) -> None:
        self.parser = parser
        self._tools = list(tools)
        self.names = frozenset(_name_of(tool) for tool in tools)

    def goes_on(self, body: str) -> bool:
        """Whether an end mark behind ``body`` is a part of the call: a string of its JSON is still open."""
        return self.parser == JSON_PARSER and '"' in _STRING.sub("", body)

    def read(self, body: str) -> list[ParsedCall]:
        """Return the calls of a block, at least one. Raises BadCallError if any of them is none."""
        try:
            found = call_parser(self.parser)(body, self._tools)
            calls = cast("list[object]", found) if isinstance(found, list) else [found]
            parsed = [_parsed(call) for call in calls]
        except _NO_CALL as error:
            raise BadCallError(type(error).__name__) from error
        if not parsed:
            raise BadCallError("no call")
        return parsed


def _parsed(call: object) -> ParsedCall:
    if not isinstance(call, dict):
        raise BadCallError("not an object")
    fields = cast("dict[str, object]", call)
    name, arguments = fields.get("name"), fields.get("arguments")
    if isinstance(arguments, str):  # some models write the object as a string, as OpenAI does
        arguments = json.loads(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name:
        raise BadCallError("no name")
    if not isinstance(arguments, dict):
        raise BadCallError("arguments are no object")
    if (name, set(cast("dict[str, object]", arguments))) == _UNREADABLE:
        raise BadCallError("unreadable")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # a lone surrogate is a ValueError here, and none on its way out
    name.encode()
    return ParsedCall(name, text)


def _name_of(tool: Mapping[str, object]) -> str:
    return cast("dict[str, str]", tool["function"])["name"]
