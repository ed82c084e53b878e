"""Sizes, durations and percentages as people write them, and back without loss.

Sizes are whole bytes, durations seconds, percentages fractions of one. Every reader raises ValueError
for text it does not understand; every writer gives text that its reader turns back into the same value.
"""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z%]*)\s*")
_SIZES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_WRITTEN_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_WRITTEN_SIZES_10 = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
_DURATIONS = {
    "": Decimal(1),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3600),
}
_MINUTE_S = 60
_HOUR_S = 3600

SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*([Bb]|[KkMmGgTt][Ii]?[Bb])?\s*$"
DURATION_PATTERN = r"^\s*\d+(\.\d+)?\s*([Mm][Ss]|[Ss]|[Mm]|[Mm][Ii][Nn]|[Hh])?\s*$"
PERCENT_PATTERN = r"^\s*\d+(\.\d+)?\s*%\s*$"


def parse_size(text: str) -> int:
    """Return the bytes of ``"8GiB"``, ``"500MB"`` or ``"0"``; units in any case, plain digits are bytes."""
    number, unit = _split(text)
    factor = _SIZES.get(unit)
    if factor is None:
        raise ValueError(f"unknown unit {unit!r}")
    size = number * factor
    if size != int(size):
        raise ValueError("not a whole number of bytes")
    return int(size)


def format_size(size_bytes: int) -> str:
    """Write bytes in the largest unit that loses nothing, binary units before decimal ones."""
    if size_bytes == 0:
        return "0"
    for units in (_WRITTEN_SIZES, _WRITTEN_SIZES_10):
        for name, factor in units:
            if size_bytes % factor == 0:
                return f"{size_bytes // factor}{name}"
    return f"{size_bytes}B"


def parse_duration(text: str) -> float:
    """Return the seconds of ``"250ms"``, ``"120s"``, ``"5m"`` or ``"1h"``; plain digits are seconds."""
    number, unit = _split(text)
    factor = _DURATIONS.get(unit)
    if factor is None:
        raise ValueError(f"unknown unit {unit!r}")
    return float(number * factor)


def format_duration(duration_s: float) -> str:
    """Write finite seconds, 0 or more, in hours, minutes, seconds or milliseconds without loss."""
    exact = Decimal(repr(duration_s))
    whole = int(exact)
    if whole == exact and whole > 0:
        if whole % _HOUR_S == 0:
            return f"{whole // _HOUR_S}h"
        return f"{whole // _MINUTE_S}m" if whole % _MINUTE_S == 0 else f"{whole}s"
    thousandths = exact * 1000
    if 0 < thousandths == int(thousandths):
        return f"{int(thousandths)}ms"
    return f"{_plain(exact)}s"


def parse_percent(text: str) -> float:
    """Return the fraction of ``"5%"``: 0.05. The sign is needed, since a bare 5 could mean either."""
    number, unit = _split(text)
    if unit != "%":
        raise ValueError("the percent sign is missing")
    return float(number / 100)


def format_percent(fraction: float) -> str:
    """Write a finite fraction, 0 or more, as a percentage without loss."""
    return f"{_plain(Decimal(repr(fraction)) * 100)}%"


def _split(text: str) -> tuple[Decimal, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("not a number with a unit")
    return Decimal(match["number"]), match["unit"].lower()


def _plain(number: Decimal) -> str:
    digits = format(number, "f")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
