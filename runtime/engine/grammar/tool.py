"""Tools as a client offers them, checked: what a grammar of calls needs of each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from .limits import TooLarge, check_length, check_schema
from .sources import BadSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_TOOLS: Final = 256
_WIDENING: Final = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "anyOf", "allOf", "oneOf"}
)


class Tool:
    """A function that may be called.

    ``parameters`` is the schema of its arguments, an object. Properties that a list of properties does not
    name, and does not expressly allow, are left out: the tool would not understand them.
    """

    def __init__(self, tool: Mapping[str, object]) -> None:
        function = tool.get("function")
        if not isinstance(function, dict):
            raise BadSource("a tool must be a function")
        fields = cast("dict[str, object]", function)
        name = fields.get("name")
        if not isinstance(name, str) or not name:
            raise BadSource("a tool must have a name")
        self.name = name
        self.strict = fields.get("strict") is True
        self.parameters = _parameters(name, fields.get("parameters"))

    @staticmethod
    def all_of(tools: Sequence[Mapping[str, object]]) -> list[Tool]:
        """Return the tools of a constraint. Raises BadSource and TooLarge over what is none."""
        if not 0 < len(tools) <= MOST_TOOLS:
            raise TooLarge(f"a call can be demanded of 1 to {MOST_TOOLS} tools, not of {len(tools)}")
        return [Tool(each) for each in tools]


def _parameters(name: str, given: object) -> dict[str, object]:
    if given is None or given == {}:
        given = {"type": "object", "properties": {}}
    if not isinstance(given, dict):
        raise BadSource(f"the parameters of {name} must be a JSON Schema")
    schema = {key: value for key, value in cast("dict[str, object]", given).items() if key != "x-guidance"}
    if schema.setdefault("type", "object") != "object":
        raise BadSource(f"the parameters of {name} must be an object")
    check_length(json.dumps(schema))
    check_schema(schema)
    if "properties" in schema and not _WIDENING & schema.keys():
        schema["additionalProperties"] = False
    return schema
