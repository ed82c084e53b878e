"""Kinds that carry a unit: sizes, durations and percentages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import units
from .kinds import Mismatch

if TYPE_CHECKING:
    from .kinds import Raw, Schema

TIB = 2**40
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes: ``"8GiB"``, ``"500MB"``, or a plain integer."""

    least: int = 0
    most: int = 1024 * TIB
    zero_means: str = ""

    @property
    def expected(self) -> str:
        """Give examples and the range."""
        zero = f', or "0" ({self.zero_means})' if self.zero_means else ""
        least = f", at least {units.format_size(self.least)}" if self.least else ""
        return f'a size like "8GiB", "500MB" or plain bytes{least}{zero}'

    def read(self, raw: object) -> int:
        """Take text with a unit or an integer, in the range."""
        size = raw
        if isinstance(raw, str):
            try:
                size = units.parse_size(raw)
            except ValueError as error:
                raise Mismatch(self.expected) from error
        if isinstance(size, bool) or not isinstance(size, int) or not self.least <= size <= self.most:
            raise Mismatch(self.expected)
        return size

    def write(self, value: int) -> Raw:
        """Return text with a unit."""
        return units.format_size(value)

    def schema(self) -> Schema:
        """Allow both spellings."""
        return {
            "anyOf": [
                {"type": "string", "pattern": units.SIZE_PATTERN},
                {"type": "integer", "minimum": self.least, "maximum": self.most},
            ]
        }


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds: ``"250ms"``, ``"120s"``, ``"5m"``, or a plain number."""

    least: float = 0.0
    most: float = 30 * DAY_S
    zero_means: str = ""

    @property
    def expected(self) -> str:
        """Give examples and the range."""
        zero = f", or 0 ({self.zero_means})" if self.zero_means else ""
        low, high = units.format_duration(self.least), units.format_duration(self.most)
        return f'a duration like "250ms", "120s", "5m" or plain seconds, from {low} to {high}{zero}'

    def read(self, raw: object) -> float:
        """Take text with a unit or a finite number, in the range."""
        duration = raw
        if isinstance(raw, str):
            try:
                duration = units.parse_duration(raw)
            except ValueError as error:
                raise Mismatch(self.expected) from error
        if isinstance(duration, bool) or not isinstance(duration, (int, float)):
            raise Mismatch(self.expected)
        if not math.isfinite(duration) or not self.least <= duration <= self.most:
            raise Mismatch(self.expected)
        return float(duration)

    def write(self, value: float) -> Raw:
        """Return text with a unit."""
        return units.format_duration(value)

    def schema(self) -> Schema:
        """Allow both spellings."""
        return {
            "anyOf": [
                {"type": "string", "pattern": units.DURATION_PATTERN},
                {"type": "number", "minimum": self.least, "maximum": self.most},
            ]
        }


@dataclass(frozen=True, slots=True)
class Percent:
    """A share written ``"5%"``, kept as a fraction of one."""

    least: float = 0.0
    most: float = 1.0

    @property
    def expected(self) -> str:
        """Give an example and the range."""
        low, high = units.format_percent(self.least), units.format_percent(self.most)
        return f'a percentage like "5%", from {low} to {high}'

    def read(self, raw: object) -> float:
        """Take text with a percent sign, in the range."""
        if not isinstance(raw, str):
            raise Mismatch(self.expected)
        try:
            fraction = units.parse_percent(raw)
        except ValueError as error:
            raise Mismatch(self.expected) from error
        if not self.least <= fraction <= self.most:
            raise Mismatch(self.expected)
        return fraction

    def write(self, value: float) -> Raw:
        """Return text with a percent sign."""
        return units.format_percent(value)

    def schema(self) -> Schema:
        """Return a string schema."""
        return {"type": "string", "pattern": units.PERCENT_PATTERN}
