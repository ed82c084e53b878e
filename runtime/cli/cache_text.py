"""How cache files are told to people: sizes, ages, names, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...storage.entry import BASE_FOLDER
from .complaints import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...storage.scan import Tally

_HASH_DIGITS: Final = 32
_SHORT_DIGITS: Final = 8
_SIZES: Final = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_AGES: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


def size(size_bytes: int) -> str:
    """Return bytes as people read them."""
    for unit, factor in _SIZES:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"


def age(seconds: float) -> str:
    """Return how long ago something was, in its largest whole unit."""
    for unit, factor in _AGES:
        if seconds >= factor:
            return f"{int(seconds // factor)} {unit}"
    return f"{max(0, int(seconds))} s"


def namespace(name: str) -> str:
    """Return a namespace's name: that of the model itself is ``base``."""
    return printable(name) if name else BASE_FOLDER


def tally(what: str, of: Tally) -> str:
    """Return "3 entries, 1.2 MB"; ``what`` is "entry/entries"."""
    one, many = what.split("/")
    return f"{of.files:,} {one if of.files == 1 else many}, {size(of.size_bytes)}"


def fields(of: Mapping[str, str]) -> str:
    """Return an identity's fields on one line, hashes cut short."""
    return ", ".join(f"{printable(name)} {_short(printable(of[name]))}" for name in sorted(of))


def _short(value: str) -> str:
    is_hash = len(value) >= _HASH_DIGITS and all(digit in "0123456789abcdef" for digit in value)
    return f"{value[:_SHORT_DIGITS]}…" if is_hash else value


def table(rows: Sequence[Sequence[str]], right: str) -> list[str]:
    """Return rows as aligned lines; ``right`` says for each column "<" or ">"."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{way}{width}}" for cell, way, width in zip(row, right, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
