"""Kinds of fields that request models are made of: bounds and choices with their words for a bad value.

Each is an annotation: ``Annotated[float, Number(0.0, 2.0)] | None``. It checks the value before pydantic sees
it, so that a complaint names the whole range and what was found, and it writes the same bounds into the JSON
Schema. JSON booleans are never taken for numbers. Optional fields are ``… | None``: null is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import Discriminator, Tag
from pydantic_core import core_schema

from .complaints import describe, invalid, not_supported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

# The members of a union that its value's JSON kind tells apart. Paths in errors leave these steps out.
TEXT: Final = Tag("<text>")
LIST: Final = Tag("<list>")
OBJECT: Final = Tag("<object>")
WHOLE: Final = Tag("<whole>")
_TAGS: Mapping[type[object], str] = {str: TEXT.tag, list: LIST.tag, dict: OBJECT.tag, int: WHOLE.tag}


def by_kind(wanted: str) -> Discriminator:
    """Return the annotation of a union of members tagged TEXT, LIST, OBJECT, WHOLE; ``wanted`` names them."""
    return Discriminator(tag_of, custom_error_type="kind", custom_error_message=wanted)


def tag_of(value: object) -> str | None:
    """Return the tag of a value's JSON kind; None where it has none."""
    return _TAGS.get(type(value))


class Bounded:
    """A kind that checks values itself and tells its bounds."""

    __slots__ = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Check in front of what ``source`` asks for."""
        return core_schema.no_info_before_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the bounds to what ``source`` is described as."""
        return handler(schema) | self._bounds()

    def _bounds(self) -> JsonSchemaValue:
        """Return the bounds as JSON Schema has them."""
        raise NotImplementedError

    def _checked(self, value: object) -> object:
        """Return the value; raises ``invalid`` with the whole range and what was found."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Whole(Bounded):
    """An integer from ``low`` to ``high``."""

    low: int
    high: int

    def _bounds(self) -> JsonSchemaValue:
        return {"minimum": self.low, "maximum": self.high}

    def _checked(self, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(f"must be an integer, not {describe(value)}.")
        if not self.low <= value <= self.high:
            raise invalid(f"must be an integer from {self.low} to {self.high}, not {describe(value)}.")
        return value


@dataclass(frozen=True, slots=True)
class Number(Bounded):
    """A finite number from ``low`` to ``high``; above ``low`` if ``open``."""

    low: float
    high: float
    open: bool = False

    def _bounds(self) -> JsonSchemaValue:
        return {"exclusiveMinimum" if self.open else "minimum": self.low, "maximum": self.high}

    def _checked(self, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise invalid(f"must be a number, not {describe(value)}.")
        if not (isfinite(value) and self.low <= value <= self.high):
            raise invalid(f"must be a number from {self.low:g} to {self.high:g}, not {describe(value)}.")
        if self.open and value == self.low:
            raise invalid(f"must be greater than {self.low:g}.")
        return float(value)


@dataclass(frozen=True, slots=True)
class Chars(Bounded):
    """A string of ``low`` to ``high`` characters."""

    low: int
    high: int

    def _bounds(self) -> JsonSchemaValue:
        return {"minLength": self.low, "maxLength": self.high}

    def _checked(self, value: object) -> object:
        if not isinstance(value, str):
            raise invalid(f"must be a string, not {describe(value)}.")
        if not self.low <= len(value) <= self.high:
            raise invalid(f"must have {self.low} to {self.high} characters.")
        return value


@dataclass(frozen=True, slots=True)
class Items:
    """A list of ``low`` to ``high`` items. The first bad item ends the search for more."""

    low: int
    high: int

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Bound the list that ``source`` asks for."""
        schema = handler(source)
        assert schema["type"] == "list"
        schema.update({"min_length": self.low, "max_length": self.high, "fail_fast": True})
        return schema


@dataclass(frozen=True, slots=True)
class Entries(Bounded):
    """An object of at most ``high`` entries of any name."""

    high: int

    def _bounds(self) -> JsonSchemaValue:
        return {"maxProperties": self.high}

    def _checked(self, value: object) -> object:
        if isinstance(value, dict) and (count := len(cast("dict[str, object]", value))) > self.high:
            raise invalid(f"has {count} entries; at most {self.high} are allowed.")
        return cast("object", value)


class Only:
    """A feature that does not exist here: refused with ``why``.

    Values that ask for what happens anyway are ``harmless``.
    """

    def __init__(self, why: str, *harmless: object) -> None:
        self._why = why
        self._harmless = harmless

    def __get_pydantic_core_schema__(self, source: Any, _: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Take the harmless values alone, whatever ``source`` says."""
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Tell the harmless values, and why there are no others."""
        return {"enum": [*self._harmless, None], "description": f"Not supported: {self._why}"}

    def _checked(self, value: object) -> object:
        if value is None or any(value == each and type(value) is type(each) for each in self._harmless):
            return value
        raise not_supported(self._why)
