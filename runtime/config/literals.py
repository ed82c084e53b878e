"""TOML values as text: read from a variable or flag, written for people, shown in messages."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .kinds import Raw

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_LIMIT = 80


def parse_value(text: str) -> object:
    """Return ``text`` as one TOML value, or as the string it is where it is no TOML value."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def write_value(value: Raw) -> str:
    """Return ``value`` as TOML on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return "[" + ", ".join(write_value(item) for item in value) + "]"
        case dict():
            pairs = [f"{write_key(name)} = {write_value(item)}" for name, item in value.items()]
            return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
        case _:
            return repr(value)


def write_key(name: str) -> str:
    """Return ``name`` as a TOML key, quoted where it must be."""
    return name if _BARE_KEY.fullmatch(name) else write_value(name)


def describe(raw: object) -> str:
    """Return a found value for an error message: short, on one line, with its type where that helps."""
    match raw:
        case bool():
            return "true" if raw else "false"
        case str():
            return _short(write_value(raw))
        case dict():
            return "a table"
        case list():
            return f"a list of {len(cast('list[object]', raw))}"
        case _:
            return _short(str(raw))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LIMIT else text[: _SHOWN_LIMIT - 1] + "…"
