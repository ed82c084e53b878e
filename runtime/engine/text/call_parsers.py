"""mlx-lm's parsers of tool calls, by name."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping


class CallParser(Protocol):
    """Reads what a model wrote between the marks of a tool block."""

    def __call__(self, text: str, tools: list[Mapping[str, object]], /) -> object:
        """Return a mapping with ``name`` and ``arguments``, or a list of them.

        Text that is no call raises one of many exceptions. May take a millisecond for each hundred kilobytes.
        """
        ...


class UnknownParserError(EngineError):
    """mlx-lm has no parser of that name."""

    code = "unknown_tool_parser"


@cache
def call_parser(name: str) -> CallParser:
    """Return the parser of ``mlx_lm.tool_parsers`` called ``name``. Raises UnknownParserError. Any thread."""
    try:
        module: Any = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
        return cast("CallParser", module.parse_tool_call)
    except (ImportError, AttributeError) as error:
        raise UnknownParserError(f"mlx-lm has no tool parser {name!r}") from error
