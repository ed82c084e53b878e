"""The responses that clients may name again, in memory, within limits.

Everything is kept as JSON text: its size is known exactly, and nothing of it is work for the garbage
collector. The least recently used go first, and what nobody asked for in ``ttl_s`` is gone. The store is made
beside the actor tree, so a restarted HTTP actor finds what its predecessor kept; it ends with the process.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_ENTRY_BYTES = 1024  # what an entry takes beside its texts, generously


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What the store may hold. Any 0 keeps nothing. ``ttl_s`` counts from an entry's last use."""

    responses: int = 4096
    size_bytes: int = 128 << 20
    ttl_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response. All texts are JSON.

    ``body``: the response object as the client got it. ``inputs``: the list of this call's own input items,
    each with an id. ``conversation``: the chat messages of all turns up to its reply, instructions left out.
    ``item_ids`` are those of input and output.
    """

    id: str
    body: bytes
    inputs: bytes
    conversation: bytes
    item_ids: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What it counts for; turns that it has in common with others count in each."""
        ids = sum(map(len, self.item_ids))
        return len(self.body) + len(self.inputs) + len(self.conversation) + ids + _ENTRY_BYTES


class ResponseStore:
    """Keeps finished responses. Never beyond any limit, also not for a moment. Loop thread only."""

    def __init__(
        self, limits: StoreLimits | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits or StoreLimits()
        self._clock_s = clock_s
        self._entries: OrderedDict[str, tuple[StoredResponse, float]] = OrderedDict()  # by last use
        self._items: dict[str, str] = {}
        self._size_bytes = 0
        self._evictions = 0

    def __len__(self) -> int:
        """How many responses are held, expired ones included until the next call."""
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """What all entries count for together."""
        return self._size_bytes

    def figures(self) -> dict[str, int]:
        """Return the store's part of ``/stats``. ``evictions`` counts what had to make room."""
        self._expire()
        return {
            "entries": len(self._entries),
            "bytes": self._size_bytes,
            "max_bytes": self._limits.size_bytes,
            "evictions": self._evictions,
        }

    def takes(self, size_bytes: int) -> bool:
        """Return whether something of that size would be kept at all."""
        limits = self._limits
        return limits.responses > 0 and limits.ttl_s > 0 and size_bytes <= limits.size_bytes

    def put(self, entry: StoredResponse) -> bool:
        """Keep a response; False where it is larger than all there is room for, and nothing has changed."""
        if not self.takes(entry.size_bytes):
            return False
        self.delete(entry.id)
        self._expire()
        room_bytes = self._limits.size_bytes - entry.size_bytes
        while self._entries and (
            len(self._entries) >= self._limits.responses or self._size_bytes > room_bytes
        ):
            self._drop(next(iter(self._entries)))
            self._evictions += 1
        self._entries[entry.id] = (entry, self._clock_s())
        self._size_bytes += entry.size_bytes
        self._items.update(dict.fromkeys(entry.item_ids, entry.id))
        return True

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response and count that as a use; None for one that is unknown, expired or displaced."""
        self._expire()
        found = self._entries.get(response_id)
        if found is None:
            return None
        self._entries[response_id] = (found[0], self._clock_s())
        self._entries.move_to_end(response_id)
        return found[0]

    def holder(self, item_id: str) -> StoredResponse | None:
        """Return the response among whose items ``item_id`` is; a use of it. None where there is none."""
        response_id = self._items.get(item_id)
        return None if response_id is None else self.get(response_id)

    def delete(self, response_id: str) -> bool:
        """Forget a response; False when there was none."""
        self._expire()
        if response_id not in self._entries:
            return False
        self._drop(response_id)
        return True

    def _expire(self) -> None:
        until_s = self._clock_s() - self._limits.ttl_s
        while self._entries:
            oldest = next(iter(self._entries))
            if self._entries[oldest][1] > until_s:
                return
            self._drop(oldest)

    def _drop(self, response_id: str) -> None:
        entry, _ = self._entries.pop(response_id)
        self._size_bytes -= entry.size_bytes
        for item_id in entry.item_ids:
            if self._items.get(item_id) == response_id:
                del self._items[item_id]
