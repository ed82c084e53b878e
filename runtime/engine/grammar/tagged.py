"""Tool calls whose arguments are written one by one, each in marks of its own or behind its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from .lark import PLAIN_ESCAPES, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .lark import Lark
    from .tool import Tool

_MOST_REFERENCES: Final = 8
_COMPOSING: Final = frozenset({"$ref", "anyOf", "allOf", "oneOf", "patternProperties"})


@dataclass(frozen=True, slots=True)
class Style:
    """How a model writes a call. ``NAME`` and ``KEY`` stand for the tool's and an argument's name.

    Between the marks of the ToolFormat: ``before``, calls with ``between`` between them if they come
    ``together`` in one pair of marks, ``after``. A text value stands between ``quote``s, as a JSON string if
    that is ``"``, and bare if it is "".
    """

    opens: str
    key: str
    value_end: str = ""
    closes: str = ""
    separator: str = ""
    quote: str = ""
    before: str = ""
    between: str = ""
    after: str = ""
    together: bool = False


_GLM: Final = Style("NAME", "<arg_key>KEY</arg_key><arg_value>", "</arg_value>")
STYLES: Final[Mapping[str, Style]] = {
    "function_gemma": Style("call:NAME{", "KEY:", closes="}", separator=",", quote="<escape>"),
    "gemma4": Style("call:NAME{", "KEY:", closes="}", separator=",", quote='<|"|>'),
    "glm47": _GLM,
    "laguna": _GLM,
    "minicpm5": Style('"NAME">', '<param name="KEY">', "</param>"),
    "minimax_m2": Style(
        '<invoke name="NAME">\n',
        '<parameter name="KEY">',
        "</parameter>\n",
        "</invoke>",
        before="\n",
        between="\n",
        after="\n",
        together=True,
    ),
    "muse_spark": Style(
        '<atem:invoke name="NAME">\n',
        '<atem:parameter name="KEY">',
        "</atem:parameter>\n",
        "</atem:invoke>",
        before="\n",
        between="\n",
        after="\n",
        together=True,
    ),
    "pythonic": Style(
        "NAME(",
        "KEY=",
        closes=")",
        separator=", ",
        quote='"',
        before="[",
        between=", ",
        after="]",
        together=True,
    ),
    "qwen3_coder": Style(
        "<function=NAME>\n", "<parameter=KEY>\n", "\n</parameter>\n", "</function>", before="\n", after="\n"
    ),
}


def is_plain(tool: Tool) -> bool:
    """Whether a tool's parameters are a list of properties, so that each can be written by itself."""
    return isinstance(tool.parameters.get("properties"), dict) and not _COMPOSING & tool.parameters.keys()


def tagged_call(lark: Lark, tool: Tool, style: Style) -> str:
    """Return the item of one call: arguments in the order of the schema, those not required at will."""
    properties = dict(cast("dict[str, object]", tool.parameters["properties"]))
    given = tool.parameters.get("required")
    required = [str(key) for key in cast("list[object]", given)] if isinstance(given, list) else []
    properties.update({key: {} for key in required if key not in properties})
    arguments = [
        (_argument(lark, tool, style, key, schema), key in required) for key, schema in properties.items()
    ]
    opens, closes = lark.literal(style.opens.replace("NAME", tool.name)), lark.literal(style.closes)
    return f"{opens} {_sequence(lark, arguments, style.separator)} {closes}"


def _sequence(lark: Lark, arguments: list[tuple[str, bool]], separator: str) -> str:
    """Return arguments in a row, separated, of which some may be missing."""
    mark = text(separator)
    first, later = '""', '""'  # from here on: where none was written yet, and behind another
    for item, required in reversed(arguments):
        here, behind = f"{item} {later}", f"{mark} {item} {later}"
        first = lark.either([here]) if required else lark.either([here, first])
        later = lark.either([behind]) if required else lark.either([behind, later])
    return first


def _argument(lark: Lark, tool: Tool, style: Style, key: str, schema: object) -> str:
    value = _value(lark, tool.parameters, style, _resolved(schema, tool.parameters))
    return lark.either([f"{lark.literal(style.key.replace('KEY', key))} {value}"])


def _value(lark: Lark, root: Mapping[str, object], style: Style, schema: Mapping[str, object]) -> str:
    """Return the item of a value with what ends it."""
    end = style.quote + style.value_end
    texts = _enumerated(schema)
    if style.quote != '"' and texts is not None:
        return f"{lark.literal(style.quote)} {lark.either(map(text, texts))} {lark.literal(end)}"
    if style.quote != '"' and (schema.get("type") == "string" or (not style.quote and _may_be_text(schema))):
        return f"{lark.literal(style.quote)} {lark.until(end)}"
    named = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return f"{lark.json({**schema, **named}, escapes=PLAIN_ESCAPES)} {lark.literal(style.value_end)}"


def _enumerated(schema: Mapping[str, object]) -> list[str] | None:
    """Return the texts that a value must be one of, if it must be a text of a list."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list) or not values:
        return None
    texts = [each for each in cast("list[object]", values) if isinstance(each, str)]
    return texts if len(texts) == len(cast("list[object]", values)) else None


def _may_be_text(schema: Mapping[str, object]) -> bool:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return "string" in cast("list[object]", kinds)
    return kinds is None


def _resolved(schema: object, root: Mapping[str, object]) -> Mapping[str, object]:
    """Return what a property's schema refers to within its tool's schema, or itself."""
    for _ in range(_MOST_REFERENCES):
        reference = _get(schema, "$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for step in reference[2:].split("/"):
            schema = _get(schema, step)
    return cast("dict[str, object]", schema) if isinstance(schema, dict) else {}


def _get(value: object, key: str) -> object:
    return cast("dict[str, object]", value).get(key) if isinstance(value, dict) else None
