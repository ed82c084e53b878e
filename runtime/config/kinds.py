"""What a configuration value may be: one class per kind, each able to read, write and describe itself.

A kind turns a raw TOML value into the typed one (``read``), the typed one back into TOML (``write``),
names what it expects in words for error messages, and gives its JSON Schema. Pure; any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

Raw: TypeAlias = "str | int | float | bool | list[Raw] | dict[str, Raw]"
Schema: TypeAlias = "dict[str, object]"
T = TypeVar("T")


class Mismatch(ValueError):
    """A raw value is not of the kind. ``expected`` says in words what would be."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


class Kind(Protocol[T]):
    """One kind of configuration value."""

    @property
    def expected(self) -> str:
        """What the kind accepts, in words that follow "expected"."""
        ...

    def read(self, raw: object) -> T:
        """Return the typed value. Raises Mismatch."""
        ...

    def write(self, value: T) -> Raw:
        """Return TOML that ``read`` turns back into ``value``."""
        ...

    def schema(self) -> Schema:
        """Return the JSON Schema of the raw value."""
        ...


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    expected: str = "true or false"

    def read(self, raw: object) -> bool:
        """Take a TOML boolean and nothing else."""
        if not isinstance(raw, bool):
            raise Mismatch(self.expected)
        return raw

    def write(self, value: bool) -> Raw:  # noqa: FBT001 - the value itself
        """Return it unchanged."""
        return value

    def schema(self) -> Schema:
        """Return a boolean schema."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Int:
    """A whole number within limits, both included."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        """Name the range."""
        return f"a whole number from {self.least} to {self.most}"

    def read(self, raw: object) -> int:
        """Take a TOML integer in the range."""
        if isinstance(raw, bool) or not isinstance(raw, int) or not self.least <= raw <= self.most:
            raise Mismatch(self.expected)
        return raw

    def write(self, value: int) -> Raw:
        """Return it unchanged."""
        return value

    def schema(self) -> Schema:
        """Return an integer schema with its limits."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Text:
    """A string that matches ``pattern`` as a whole; ``what`` says so in words. By default just not empty."""

    what: str = "a string that is not empty"
    pattern: str = r"[^\x00-\x1f\x7f]+"

    @property
    def expected(self) -> str:
        """Say what the string stands for."""
        return self.what

    def read(self, raw: object) -> str:
        """Take a string that matches."""
        if not isinstance(raw, str) or re.fullmatch(self.pattern, raw) is None:
            raise Mismatch(self.expected)
        return raw

    def write(self, value: str) -> Raw:
        """Return it unchanged."""
        return value

    def schema(self) -> Schema:
        """Return a string schema with the pattern."""
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words or numbers."""

    options: tuple[str | int, ...]

    @property
    def expected(self) -> str:
        """List the options."""
        return "one of " + ", ".join(
            f'"{item}"' if isinstance(item, str) else str(item) for item in self.options
        )

    def read(self, raw: object) -> str | int:
        """Take an option exactly as written."""
        for option in self.options:
            if raw == option and type(raw) is type(option):
                return option
        raise Mismatch(self.expected)

    def write(self, value: str | int) -> Raw:
        """Return it unchanged."""
        return value

    def schema(self) -> Schema:
        """Return an enumeration."""
        return {"enum": list(self.options)}
