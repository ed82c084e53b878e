"""Orders in which RAM lets entries go, for replay: the shipped one with books, and one that sees ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from samovar.storage.retention import LeastRecentlyUsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samovar.storage.residence import Resident

    from .retention_traces import Trace


class Books:
    """What RAM holds, seen through its retention.

    ``peak_bytes`` counts what has just come before others go for it. ``repeated``: held tokens for each
    distinct one, at times.
    """

    def __init__(self) -> None:
        self._entries: dict[Any, None] = {}
        self._bytes = 0
        self.peak_bytes = 0
        self.repeated: list[float] = []

    def came(self, entry: Resident[Any]) -> None:
        """Count an entry in."""
        self._entries[entry] = None
        self._bytes += entry.held_bytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)

    def went(self, entry: Resident[Any]) -> None:
        """Count an entry out."""
        del self._entries[entry]
        self._bytes -= entry.held_bytes

    def sample(self) -> None:
        """Look at how much of what is held is there more than once."""
        longest: dict[int, int] = {}
        for entry in self._entries:
            nodes, counts = np.unique(np.frombuffer(entry.tokens.to_bytes(), "<u4"), return_counts=True)
            for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                longest[node] = max(count, longest.get(node, 0))
        distinct = sum(longest.values())
        if distinct:
            self.repeated.append(sum(len(entry.tokens) for entry in self._entries) / distinct)


class Watched(LeastRecentlyUsed[Any]):
    """The shipped order, with books."""

    def __init__(self, books: Books) -> None:
        super().__init__()
        self._books = books

    def admit(self, entry: Any) -> None:
        """Take in."""
        super().admit(entry)
        self._books.came(entry)

    def discard(self, entry: Any) -> None:
        """Let go."""
        super().discard(entry)
        self._books.went(entry)


class Clairvoyant(Watched):
    """Lets go first of what is of use last: an entry is used when a prompt shares all but the end of it.

    No bound: it knows the future but not sizes, and takes no account of what a later entry will supersede. It
    tells how much of what is lost to OPT is the order's, and how much is that entries repeat their prefixes.
    """

    def __init__(self, books: Books, uses: dict[int, np.ndarray], at: list[int]) -> None:
        super().__init__(books)
        self._uses = uses
        self._at = at

    def victims(self) -> Iterator[Any]:
        """Yield the entries, farthest next use first."""
        yield from sorted(super().victims(), key=self._next_use, reverse=True)

    def _next_use(self, entry: Any) -> int:
        uses = self._uses[entry.tokens[-1]]
        place = int(np.searchsorted(uses, self._at[0], side="right"))
        return int(uses[place]) if place < len(uses) else 1 << 60


def coming_uses(trace: Trace) -> dict[int, np.ndarray]:
    """Return, by the last token of an entry, which requests use the last but one of its blocks.

    The last one is often partial, and then the next turn has another in its place.
    """
    watched = {
        int(request.nodes[-1]): int(request.nodes[max(0, len(request.nodes) - 2)])
        for request in trace.requests
    }
    wanted = np.zeros(len(trace.sizes), dtype=bool)
    wanted[list(watched.values())] = True
    visits: dict[int, list[int]] = {node: [] for node in watched.values()}
    for number, request in enumerate(trace.requests):
        for node in request.nodes[wanted[request.nodes]].tolist():
            visits[node].append(number)
    uses = {node: np.array(numbers) for node, numbers in visits.items()}
    return uses | {last: uses[node] for last, node in watched.items()}
