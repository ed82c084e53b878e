"""On which line of a TOML file a key stands: tomllib does not say, and an error message should."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .tree import Path

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=\s*(.*)")
_PARTS = re.compile(_PART)


def key_lines(text: str) -> Mapping[Path, int]:
    """Return the line (from 1) of every key and table of valid TOML that starts a line of its own.

    Best effort: keys inside inline tables are not listed, nor ones with escapes in quotes.
    """
    lines: dict[Path, int] = {}
    table: Path = ()
    closing = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            closing = "" if closing in line else closing
        elif header := _HEADER.fullmatch(line):
            table = _path(header[1])
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault(table + _path(assignment[1]), number)
            closing = _still_open(assignment[2])
    return lines


def _path(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PARTS.findall(dotted))


def _still_open(value: str) -> str:
    """Return the quotes that must come before keys can follow, where a multi-line string stays open."""
    return next(
        (quotes for quotes in ('"""', "'''") if value.startswith(quotes) and value.count(quotes) == 1), ""
    )
