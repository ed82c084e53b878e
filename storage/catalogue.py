"""The entries of a directory in memory: by key, by id, and in order of last use. No files here.

Every method is atomic under a lock that is held for microseconds, so a lookup on one thread never waits for
an eviction on another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from .index import Match, PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from .entry import StoredEntry
    from .tokens import TokenIds


class Catalogue:
    """Entries, at most one for each (namespace, tokens) and for each id. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._index: PrefixIndex[StoredEntry] = PrefixIndex()
        self._by_id: OrderedDict[str, StoredEntry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return self._bytes

    # -- look

    def find(self, tokens: TokenIds, namespace: str, limit: int) -> Match[StoredEntry] | None:
        """Return an entry that serves the longest possible prefix of at most ``limit`` tokens."""
        with self._lock:
            return self._index.longest(tokens, namespace, limit)

    def covers(self, tokens: TokenIds, namespace: str) -> bool:
        """Whether some entry serves exactly these tokens."""
        with self._lock:
            return self._index.serving(tokens, namespace) is not None

    def longer_covers(self, tokens: TokenIds, namespace: str) -> bool:
        """Whether a longer entry serves exactly these tokens."""
        with self._lock:
            entry = self._index.serving(tokens, namespace)
            return entry is not None and len(entry.tokens) > len(tokens)

    def common_prefix(self, tokens: TokenIds, namespace: str) -> int:
        """Return how many tokens anything stored shares with ``tokens``, usable or not."""
        with self._lock:
            return self._index.common_prefix(tokens, namespace)

    def get(self, entry_id: str) -> StoredEntry | None:
        """Return the entry of an id."""
        with self._lock:
            return self._by_id.get(entry_id)

    def entries(self) -> tuple[StoredEntry, ...]:
        """Return all, least recently used first."""
        with self._lock:
            return tuple(self._by_id.values())

    def superseded_by(self, entry: StoredEntry) -> list[StoredEntry]:
        """Return the strict ancestors that ``entry`` serves as well (DESIGN §5, put)."""
        if not entry.trimmable:
            return []
        with self._lock:
            ancestors = self._index.ancestors(entry.tokens, entry.namespace)
        return [old for old in ancestors if entry.serves(len(old.tokens))]

    # -- change

    def add(self, entry: StoredEntry) -> StoredEntry | None:
        """Take an entry in as the most recently used; return the one of equal tokens that it replaced.

        ValueError for an id that another entry has.
        """
        with self._lock:
            if entry.id in self._by_id:
                raise ValueError(f"entry {entry.id} is there already")
            replaced = self._index.add(entry)
            if replaced is not None:
                self._bytes -= self._by_id.pop(replaced.id).file_bytes
            self._by_id[entry.id] = entry
            self._bytes += entry.file_bytes
            return replaced

    def drop(self, entry_id: str) -> StoredEntry | None:
        """Take an entry out and return it; None when it is not there."""
        with self._lock:
            entry = self._by_id.pop(entry_id, None)
            if entry is not None:
                self._index.remove(entry)
                self._bytes -= entry.file_bytes
            return entry

    def use(self, entry_id: str, now_s: float) -> StoredEntry | None:
        """Make an entry the most recently used; return it as it is now."""
        with self._lock:
            old = self._by_id.pop(entry_id, None)
            if old is None:
                return None
            entry = replace(old, last_used_s=now_s)
            self._index.add(entry)
            self._by_id[entry_id] = entry
            return entry

    def order(self, key: Callable[[StoredEntry], tuple[float, float, str]]) -> None:
        """Set the order of use by ``key``, smallest first."""
        with self._lock:
            self._by_id = OrderedDict((entry.id, entry) for entry in sorted(self._by_id.values(), key=key))

    def check_integrity(self) -> None:
        """Assert that both views hold the same entries. Walks all of them."""
        with self._lock:
            self._index.check_integrity()
            assert {entry.id: entry for entry in self._index} == self._by_id, "index and ids disagree"
            assert self._bytes == sum(entry.file_bytes for entry in self._by_id.values()), "bytes are wrong"
