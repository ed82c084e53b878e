"""Takes that wait for the SSD tier, and the restores that several of them share. Pure bookkeeping.

A take waits for a lookup first, then maybe for a restore; it is known by its id throughout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from ...runtime.kernel import ActorRef, Deferred
    from ...storage.entry import StoredEntry
    from ...storage.tokens import TokenIds
    from .tiers import Taken

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Pending(Generic[T]):
    """A take that is not answered yet.

    ``lookups``: how often SSD was asked; ``known``: for more than how many tokens, the last time; ``seen``:
    how far it knew the prompt; ``failed``: a restore for it failed.
    """

    take: T
    id: int
    borrower: ActorRef[Any]
    answer: Deferred[Taken]
    lookups: int = 0
    known: int = 0
    seen: int = 0
    failed: bool = False
    restore: Restore[T] | None = None


@dataclass(slots=True, eq=False)
class Restore(Generic[T]):
    """One read of one file, the room kept free for it, and everybody who waits for it.

    ``withdrawn``: the file has left the directory meanwhile.
    """

    id: str
    entry: StoredEntry
    reserved_bytes: int
    waiters: dict[int, Pending[T]] = field(default_factory=dict[int, "Pending[T]"])
    task: asyncio.Task[Any] | None = None
    withdrawn: bool = False


class Restores(Generic[T]):
    """Who waits for what. A take is in at most one restore; a restore has at least one take."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending[T]] = {}
        self._by_id: dict[str, Restore[T]] = {}
        self._by_entry: dict[str, Restore[T]] = {}

    @property
    def waiting(self) -> int:
        """How many takes wait, for a lookup or a restore."""
        return len(self._pending)

    @property
    def running(self) -> int:
        """How many restores are under way."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[Pending[T]]:
        return iter(list(self._pending.values()))

    def wait(self, pending: Pending[T]) -> None:
        """Let a take wait for a lookup."""
        assert pending.id not in self._pending, f"take {pending.id} waits twice"
        self._pending[pending.id] = pending

    def looked_up(self, take_id: int) -> Pending[T] | None:
        """Return the take whose lookup has ended, unless it waits no more. It keeps waiting."""
        pending = self._pending.get(take_id)
        return None if pending is None or pending.restore is not None else pending

    def of(self, entry: StoredEntry) -> Restore[T] | None:
        """Return the restore of an entry that is under way."""
        return self._by_entry.get(entry.id)

    def begin(self, restore_id: str, entry: StoredEntry, reserved_bytes: int) -> Restore[T]:
        """Note a new restore. The first ``join`` must follow at once."""
        restore = Restore[T](restore_id, entry, reserved_bytes)
        self._by_id[restore_id] = self._by_entry[entry.id] = restore
        return restore

    def join(self, pending: Pending[T], restore: Restore[T]) -> None:
        """Let a take wait for a restore."""
        pending.restore = restore
        restore.waiters[pending.id] = pending

    def end(self, restore_id: str) -> Restore[T] | None:
        """Close a restore that came to an end; None for one that was given up. Its takes keep waiting."""
        restore = self._by_id.pop(restore_id, None)
        if restore is not None:
            del self._by_entry[restore.entry.id]
            for pending in restore.waiters.values():
                pending.restore = None
        return restore

    def withdraw(self, tokens: TokenIds, namespace: str) -> None:
        """Note that the file of these tokens has left the directory; who reads it may read it to the end."""
        for restore in self._by_id.values():
            if restore.entry.tokens == tokens and restore.entry.namespace == namespace:
                restore.withdrawn = True

    def withdraw_all(self) -> None:
        """Note that nobody knows which files are there."""
        for restore in self._by_id.values():
            restore.withdrawn = True

    def leave(self, take_id: int) -> tuple[Pending[T] | None, Restore[T] | None]:
        """Let a take wait no more. Return it, and its restore if nobody is left who wants it."""
        pending = self._pending.pop(take_id, None)
        if pending is None or (restore := pending.restore) is None:
            return pending, None
        del restore.waiters[take_id]
        pending.restore = None
        return pending, None if restore.waiters else self.end(restore.id)

    def check_integrity(self) -> None:
        """Assert that all books agree."""
        assert {r.entry.id: r for r in self._by_id.values()} == self._by_entry, "two restores of one entry"
        for restore in self._by_id.values():
            assert restore.waiters, f"{restore.id} is wanted by nobody"
            for take_id, pending in restore.waiters.items():
                assert self._pending.get(take_id) is pending, "a waiter that does not wait"
                assert pending.restore is restore, "a waiter of another restore"
