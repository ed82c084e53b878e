"""Typed access to what a GGUF file says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import mlx.core as mx

from ..errors import ModelUnreadable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_T = TypeVar("_T")
GgufValue: TypeAlias = mx.array | str | list[str]


class GgufMetadata:
    """The metadata of one file; a key that is missing or of another type is ModelUnreadable.

    Keys of the architecture (``llama.block_count``) are asked for by their last part.
    """

    def __init__(self, path: Path, values: Mapping[str, GgufValue]) -> None:
        self.path = path
        self._values = values
        self.architecture = self.text("general.architecture")

    @property
    def context_length(self) -> int:
        """Positions (tokens) that the model was made for."""
        return self.integer(self.of_model("context_length"))

    def of_model(self, key: str) -> str:
        """Return the full name of a key of this file's architecture."""
        return f"{self.architecture}.{key}"

    def text(self, key: str) -> str:
        """Return a string value."""
        return self._required(key, self.optional_text(key), "text")

    def optional_text(self, key: str) -> str | None:
        """Return a string value, None when the key is missing."""
        value = self._values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(key, "text")

    def texts(self, key: str) -> list[str]:
        """Return a list of strings."""
        value = self._values.get(key)
        return self._required(key, value if isinstance(value, list) else None, "a list of texts")

    def integer(self, key: str) -> int:
        """Return a whole number."""
        return self._required(key, self.optional_integer(key), "a number")

    def optional_integer(self, key: str) -> int | None:
        """Return a whole number, None when the key is missing."""
        value = self.optional_number(key)
        return None if value is None else int(value)

    def number(self, key: str) -> float:
        """Return a number."""
        return self._required(key, self.optional_number(key), "a number")

    def optional_number(self, key: str) -> float | None:
        """Return a number, None when the key is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        # Writers differ in whether a scalar is stored as such or as an array of one.
        if isinstance(value, mx.array) and value.size == 1:
            return float(cast("float", value.item()))
        raise self._wrong(key, "a number")

    def flag(self, key: str) -> bool:
        """Return a truth value, False when the key is missing."""
        return bool(self.optional_number(key))

    def optional_integers(self, key: str) -> list[int] | None:
        """Return a list of whole numbers, None when the key is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, mx.array) and value.ndim == 1:
            return cast("list[int]", value.tolist())
        raise self._wrong(key, "a list of numbers")

    def _required(self, key: str, value: _T | None, kind: str) -> _T:
        if value is None:
            raise self._wrong(key, kind)
        return value

    def _wrong(self, key: str, kind: str) -> ModelUnreadable:
        found = "missing" if key not in self._values else "of another type"
        return ModelUnreadable(f"{self.path}: metadata {key!r} is {found}; expected {kind}")
