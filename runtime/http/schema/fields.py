"""Typed access to the fields of a JSON object. Every complaint names the field and what was found.

null counts as absent everywhere. JSON booleans are never taken for numbers.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, TypeVar, cast

from ..errors import bad_value

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")
_SHOWN_CHARS = 40


class Fields:
    """Reads one object. ``prefix`` is put before field names in errors, like ``messages[3].``."""

    __slots__ = ("_prefix", "_values")

    def __init__(self, values: Mapping[str, object], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def path(self, name: str) -> str:
        """Return the name of a field as errors give it."""
        return self._prefix + name

    def value(self, name: str) -> object:
        """Return the raw value; None when absent or null."""
        return self._values.get(name)

    def present(self) -> list[str]:
        """Return the names of the fields that are not null."""
        return [name for name, value in self._values.items() if value is not None]

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Return an integer from ``low`` to ``high``."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "an integer", value)
        if not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}", value)
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a finite number from ``low`` to ``high``."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, "a number", value)
        if not (isfinite(value) and low <= value <= high):
            raise self._wrong(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def boolean(self, name: str) -> bool | None:
        """Return true or false."""
        return self._typed(name, bool, "a boolean")

    def string(self, name: str, max_chars: int) -> str | None:
        """Return a non-empty string of at most ``max_chars`` characters."""
        value = self._typed(name, str, "a string")
        if value is not None and not 0 < len(value) <= max_chars:
            raise bad_value(self.path(name), f"{self.path(name)} must have 1 to {max_chars} characters.")
        return value

    def text(self, name: str) -> str | None:
        """Return a string of any length."""
        return self._typed(name, str, "a string")

    def items(self, name: str, max_items: int) -> list[object] | None:
        """Return a list of at most ``max_items`` items."""
        value = cast("list[object] | None", self._typed(name, list, "a list"))
        if value is not None and len(value) > max_items:
            message = f"{self.path(name)} has {len(value)} items; at most {max_items} are allowed."
            raise bad_value(self.path(name), message)
        return value

    def mapping(self, name: str) -> dict[str, object] | None:
        """Return an object."""
        return cast("dict[str, object] | None", self._typed(name, dict, "an object"))

    def _typed(self, name: str, kind: type[_T], wanted: str) -> _T | None:
        value = self._values.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise self._wrong(name, wanted, value)

    def _wrong(self, name: str, wanted: str, value: object) -> Exception:
        return bad_value(self.path(name), f"{self.path(name)} must be {wanted}, not {describe(value)}.")


def as_object(value: object, path: str) -> dict[str, object]:
    """Return ``value`` when it is a JSON object; raises HttpError naming ``path`` otherwise."""
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    raise bad_value(path, f"{path} must be an object, not {describe(value)}.")


def describe(value: object) -> str:
    """Return a JSON value's kind and, for scalars, its beginning."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:.6g}" if isinstance(value, float) else str(value)
        case str():
            shown = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "…"
            return f"the string {shown!r}"
        case list():
            return "a list"
        case _:
            return "an object"
