"""Control tokens in text: which ones a template wrote, and which ones somebody only typed.

A *marked* text has one lone surrogate, the mark, for each control token; a spelling like ``<|im_end|>`` in it
is ordinary text. No client can send a mark, since lone surrogates are not Unicode. Before a template is
rendered, spellings in what the client sent are exchanged for marks, which templates pass on like any other
character; in the rendered text marks and spellings are exchanged once more. So what is a mark then was
written by the template, and what is spelled out came from the client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_FIRST_MARK: Final = 0xD800
MAX_MARKS: Final = 0x800
"""How many control tokens can have a mark. Those beyond are never control tokens in a prompt."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOTHING: Final = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class Control:
    """A control token. ``lstrip`` and ``rstrip``: it swallows the white space before or behind it."""

    id: int
    spelling: str
    lstrip: bool = False
    rstrip: bool = False


def lone_surrogate(text: str) -> int | None:
    """Return where ``text`` has its first lone surrogate, which no tokenizer takes; None without one."""
    found = _SURROGATE.search(text)
    return None if found is None else found.start()


class Controls:
    """The control tokens of a tokenizer, the most needed first. Immutable; any thread.

    ``unknown`` is the token of characters that the vocabulary lacks: it turns up wherever one is.
    """

    def __init__(self, controls: Sequence[Control], unknown: int | None = None) -> None:
        marked = controls[:MAX_MARKS]
        self._by_mark = {chr(_FIRST_MARK + n): each for n, each in enumerate(marked)}
        self._spelling = {mark: each.spelling for mark, each in self._by_mark.items()}
        self._mark = {each.spelling: mark for mark, each in self._by_mark.items()}
        self._marks = {each.id: mark for mark, each in self._by_mark.items()}
        spellings = [each.spelling for each in controls]
        self._spelled = _any_of(spellings)
        self._marked = _any_of(self._by_mark)
        self._either = _any_of([*self._spelling.values(), *self._by_mark])
        self._unknown = unknown
        self.ids = frozenset(each.id for each in controls)
        self._telling = np.array(sorted(self.ids - {unknown}), dtype=np.int64)

    def mark_of(self, token: int) -> str | None:
        """Return the mark of a control token; None where it has none or is no control token."""
        return self._marks.get(token)

    def spelled_in(self, text: str) -> bool:
        """Whether ``text`` spells a control token."""
        return self._spelled.search(text) is not None

    def exchange(self, text: str) -> str:
        """Return ``text`` with marks for spellings and spellings for marks; the longest spelling counts."""
        return self._either.sub(self._other, text)

    def exchange_all(self, value: object) -> object:
        """Exchange in every string of a JSON value, keys included."""
        match value:
            case str():
                return self.exchange(value)
            case dict():
                items = cast("dict[str, object]", value).items()
                return {self.exchange(key): self.exchange_all(item) for key, item in items}
            case list() | tuple():
                return [self.exchange_all(item) for item in cast("list[object]", value)]
            case _:
                return value

    def unmarked(self, text: str) -> str:
        """Return a marked text with every mark spelled out."""
        return self._marked.sub(lambda found: self._spelling[found[0]], text)

    def marked_ids(self, text: str) -> list[int]:
        """Return the control tokens of a marked text in order, unknown ones left out."""
        ids = (self._by_mark[mark].id for mark in cast("list[str]", self._marked.findall(text)))
        return [token for token in ids if token != self._unknown]

    def among(self, ids: NDArray[np.int64]) -> list[int]:
        """Return the control tokens among ``ids`` in order, unknown ones left out."""
        return ids[np.isin(ids, self._telling)].tolist()

    def parts(self, text: str) -> Iterator[tuple[str, Control | None]]:
        """Split a marked text: what stands before each mark with its control token, then the rest."""
        start = 0
        for found in self._marked.finditer(text):
            yield text[start : found.start()], self._by_mark[found[0]]
            start = found.end()
        yield text[start:], None

    def in_two(self, text: str) -> Iterator[str]:
        """Cut every spelling in ``text`` after its first character, so that no part spells one."""
        while (found := self._spelled.search(text)) is not None:
            yield text[: found.start() + 1]
            text = text[found.start() + 1 :]
        yield text

    def shortened_by(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many characters shorter than spelled out a marked text is after each of its ``ids``."""
        saved = {token: len(self._spelling[mark]) - 1 for token, mark in self._marks.items()}
        spots = np.flatnonzero(np.isin(ids, self._telling))
        shorter = np.zeros(len(ids), dtype=np.int64)
        shorter[spots] = [saved.get(token, 0) for token in ids[spots].tolist()]
        return np.cumsum(shorter)

    def _other(self, found: re.Match[str]) -> str:
        return self._mark.get(found[0]) or self._spelling[found[0]]


def strings_of(value: object) -> Iterator[str]:
    """Yield every string of a JSON value, keys included."""
    match value:
        case str():
            yield value
        case dict():
            for key, item in cast("dict[str, object]", value).items():
                yield key
                yield from strings_of(item)
        case list() | tuple():
            for item in cast("list[object]", value):
                yield from strings_of(item)
        case _:
            return


def _any_of(spellings: Sequence[str] | Mapping[str, object]) -> re.Pattern[str]:
    """Return a pattern of any of them, the longest that fits, as tokenizers look for added tokens."""
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else _NOTHING
