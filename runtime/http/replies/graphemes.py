"""How much of a text that goes on may be shown: up to the last grapheme cluster that may still grow. Pure.

A client that shows every piece as it comes should not see a family emoji as three people first. Only scripts
and signs that are made of several code points are held back, by one cluster: never ASCII, and neither Latin,
Greek, Cyrillic nor CJK letters (a mark that combines with one of those comes in the next piece).
"""

from __future__ import annotations

from typing import Final
from unicodedata import category, east_asian_width

import regex

_CLUSTER: Final = regex.compile(r"\X")
_GROWING: Final = frozenset({"Cf", "Lo", "Mc", "Me", "Mn", "Sk", "So"})
LONGEST_CLUSTER: Final = 64
"""A cluster of more code points than that is shown as it comes, so that little is ever held back."""


def settled(text: str) -> int:
    """Return how many characters of ``text`` belong to clusters that are complete whatever follows."""
    size = len(text)
    if not size or not _may_grow(text[-1]):
        return size
    tail = text[-LONGEST_CLUSTER - 1 :]
    *_, last = _CLUSTER.finditer(tail)
    length = len(last[0])
    return size if length > LONGEST_CLUSTER else size - length


def _may_grow(character: str) -> bool:
    if character < "\x80":
        return False
    kind = category(character)
    return kind in _GROWING and not (kind == "Lo" and east_asian_width(character) == "W")
