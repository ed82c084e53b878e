"""Kinds built from other kinds: a value or a word, lists, tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from .kinds import Kind, Mismatch, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .kinds import Raw, Schema

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Either(Generic[T]):
    """A kind, or one word that stands for "none given" (None in Python). ``means`` says what it does then."""

    kind: Kind[T]
    word: str
    means: str

    @property
    def expected(self) -> str:
        """Add the word to what the kind expects."""
        return f'{self.kind.expected}, or "{self.word}" ({self.means})'

    def read(self, raw: object) -> T | None:
        """Take the word as None, all else as the kind does."""
        if raw == self.word:
            return None
        try:
            return self.kind.read(raw)
        except Mismatch as error:
            raise Mismatch(self.expected) from error

    def write(self, value: T | None) -> Raw:
        """Return the word for None."""
        return self.word if value is None else self.kind.write(value)

    def schema(self) -> Schema:
        """Allow the word beside the kind."""
        return {"anyOf": [{"const": self.word}, self.kind.schema()]}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of distinct strings, in order."""

    kind: Text

    @property
    def expected(self) -> str:
        """Name the items."""
        return f"a list, each item {self.kind.expected}, none twice"

    def read(self, raw: object) -> tuple[str, ...]:
        """Take a TOML array."""
        if not isinstance(raw, list):
            raise Mismatch(self.expected)
        try:
            items = tuple(self.kind.read(item) for item in cast("list[object]", raw))
        except Mismatch as error:
            raise Mismatch(self.expected) from error
        if len(set(items)) != len(items):
            raise Mismatch(self.expected)
        return items

    def write(self, value: tuple[str, ...]) -> Raw:
        """Return a TOML array."""
        return [self.kind.write(item) for item in value]

    def schema(self) -> Schema:
        """Return an array schema."""
        return {"type": "array", "items": self.kind.schema(), "uniqueItems": True}


@dataclass(frozen=True, slots=True)
class TableOf:
    """Names to strings, in the order written."""

    kind: Text

    @property
    def expected(self) -> str:
        """Name the values."""
        return f"a table of names, each value {self.kind.expected}"

    def read(self, raw: object) -> Mapping[str, str]:
        """Take a TOML table."""
        if not isinstance(raw, dict):
            raise Mismatch(self.expected)
        try:
            return {name: self.kind.read(item) for name, item in cast("dict[str, object]", raw).items()}
        except Mismatch as error:
            raise Mismatch(self.expected) from error

    def write(self, value: Mapping[str, str]) -> Raw:
        """Return a TOML table."""
        return {name: self.kind.write(item) for name, item in value.items()}

    def schema(self) -> Schema:
        """Return an object schema with free names."""
        return {"type": "object", "additionalProperties": self.kind.schema()}
