"""Prefixes that were let go before they were durable: a flush answers for each of them (seed §5.6)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .dirty import Key
    from .tokens import TokenIds


class LostPrefixes:
    """At most ``limit`` are remembered, the latest; earlier ones are only counted, and never found again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lost_in: OrderedDict[Key, int] = OrderedDict()
        self._untracked = 0

    def __len__(self) -> int:
        return len(self._lost_in) + self._untracked

    def add(self, key: Key, run: int) -> None:
        """Note a loss, during flush number ``run`` (0: during none)."""
        self._lost_in[key] = run
        if len(self._lost_in) > self._limit:
            self._lost_in.popitem(last=False)
            self._untracked += 1

    def discard(self, key: Key) -> None:
        """Note that a prefix is there again, or covered. Unknown ones are ignored."""
        self._lost_in.pop(key, None)

    def discard_covered(self, namespace: str, tokens: TokenIds, reusable_from: int) -> None:
        """Discard ``tokens`` and those of its prefixes that are at least ``reusable_from`` long."""
        for lost in list(self._lost_in):
            length = len(lost[1])
            covered = reusable_from <= length <= len(tokens) or length == len(tokens)
            if covered and lost[0] == namespace and tokens.common_prefix(lost[1]) == length:
                del self._lost_in[lost]

    def keys(self) -> list[Key]:
        """Return what is remembered, oldest first."""
        return list(self._lost_in)

    def during(self, run: int) -> int:
        """Return how many of them were lost during flush number ``run``."""
        return sum(1 for lost_in in self._lost_in.values() if lost_in == run)
