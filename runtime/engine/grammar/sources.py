"""What a constraint is as a grammar of llguidance, for every kind but tool calls (tools.py).

JSON comes on one line, with at most one space behind a comma or colon: small models otherwise write
whitespace without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import orjson
from llguidance import LLMatcher

from .limits import MOST_CHOICES, TooLarge, check_grammar, check_length, check_schema
from .vocabulary import quoted

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

    from ..prompt import Constraint

JSON_STYLE: Final[JsonCompileOptions] = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ?",
    "key_separator": ": ?",
}


class BadSource(Exception):
    """The source of a constraint is not of its kind; the text says how."""


def grammar_of(constraint: Constraint) -> str:
    """Return a constraint's grammar. Raises BadSource, TooLarge."""
    source = constraint.source
    check_length(source)
    match constraint.kind:
        case "json_object":
            return schema_grammar({"type": "object"})
        case "json_schema":
            return schema_grammar(_object(source))
        case "regex":
            return LLMatcher.grammar_from_regex(source)
        case "grammar":
            check_grammar(source)
            return LLMatcher.grammar_from_lark(source)
        case "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(quoted, _choices(source))))
        case "tools":
            raise AssertionError("tool calls have grammars of their own")


def schema_grammar(schema: dict[str, object]) -> str:
    """Return the grammar of one JSON Schema; the client's own options for llguidance are left out."""
    check_schema(schema)
    plain = {key: value for key, value in schema.items() if key != "x-guidance"}
    return LLMatcher.grammar_from_json_schema(plain, overrides=JSON_STYLE)


def _object(source: str) -> dict[str, object]:
    schema = _json(source)
    if not isinstance(schema, dict):
        raise BadSource("a JSON Schema must be an object")
    return cast("dict[str, object]", schema)


def _choices(source: str) -> list[str]:
    choices = _json(source)
    if not isinstance(choices, list) or not choices:
        raise BadSource("choices must be a list of strings, at least one")
    texts = [each for each in cast("list[object]", choices) if isinstance(each, str)]
    if len(texts) < len(cast("list[object]", choices)):
        raise BadSource("every choice must be a string")
    if len(texts) > MOST_CHOICES:
        raise TooLarge(f"there are {len(texts)} choices; at most {MOST_CHOICES} are taken")
    return texts


def _json(source: str) -> object:
    try:
        return cast("object", orjson.loads(source))
    except orjson.JSONDecodeError as error:
        raise BadSource(f"it is not JSON: {error}") from error
