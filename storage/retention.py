"""Which entry goes first, and which ones a new one makes superfluous. Pure policy: no clock, no I/O."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from .index import Indexed, PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

E = TypeVar("E", bound=Indexed)
H = TypeVar("H", bound="Hashable")


class Retention(Protocol[H]):
    """An order in which entries are let go. One owner at a time; entries are told apart by hash."""

    def admit(self, entry: H) -> None:
        """Take a new entry in; it counts as used now."""
        ...

    def use(self, entry: H) -> None:
        """Note that an entry was used. KeyError for one that is not here."""
        ...

    def prefer(self, entry: H, *, kept: bool) -> None:
        """Let go of every other entry before this one, or no longer. KeyError for one that is not here."""
        ...

    def discard(self, entry: H) -> None:
        """Forget an entry. KeyError for one that is not here."""
        ...

    def victims(self) -> Iterator[H]:
        """Yield all entries, the most expendable first. The order must not change meanwhile."""
        ...


class LeastRecentlyUsed(Generic[H]):
    """A true LRU: a use refreshes. Preferred entries go last, in the same order among themselves.

    Preferring is no use: an entry that loses its preference stands where its last use puts it. Each change
    costs a binary search and a move within a flat list.
    """

    def __init__(self) -> None:
        self._order: list[tuple[bool, int]] = []
        self._entries: dict[tuple[bool, int], H] = {}
        self._places: dict[H, tuple[bool, int]] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._order)

    def admit(self, entry: H) -> None:
        """Take a new entry in; it counts as used now."""
        assert entry not in self._places, "admitted twice"
        self._put(entry, (False, self._tick()))

    def use(self, entry: H) -> None:
        """Note that an entry was used."""
        preferred, _ = self._take(entry)
        self._put(entry, (preferred, self._tick()))

    def prefer(self, entry: H, *, kept: bool) -> None:
        """Let go of every other entry before this one, or no longer."""
        _, used = self._take(entry)
        self._put(entry, (kept, used))

    def discard(self, entry: H) -> None:
        """Forget an entry."""
        self._take(entry)

    def victims(self) -> Iterator[H]:
        """Yield all entries, least recently used first, preferred ones after all others."""
        return (self._entries[place] for place in self._order)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _put(self, entry: H, place: tuple[bool, int]) -> None:
        insort(self._order, place)
        self._entries[place] = entry
        self._places[entry] = place

    def _take(self, entry: H) -> tuple[bool, int]:
        place = self._places.pop(entry)
        del self._entries[place]
        del self._order[bisect_left(self._order, place)]
        return place


def superseded_by(new: E, index: PrefixIndex[E]) -> list[E]:
    """Return the strict ancestors of ``new`` that nobody needs once ``new`` is there (DESIGN §5).

    Those whose exact length ``new`` can serve. An untrimmable ``new``, so also one with attachments, serves
    its own length only and makes none superfluous.
    """
    if not new.trimmable:
        return []
    ancestors = index.ancestors(new.tokens, new.namespace)
    return [ancestor for ancestor in ancestors if new.reusable_from <= len(ancestor.tokens)]
