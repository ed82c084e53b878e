"""What a directory's files take on the disk, and what goes first when room is needed.

First files that nobody can use (stuck leftovers, older formats, the quarantine), then entries, least recently
used first. A file that will not go is skipped and tried again later. One owner; methods block on the disk.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final

from .catalogue import Catalogue
from .directory_errors import NoRoom
from .directory_figures import Departure, Withdrawal
from .entry import QUARANTINE_NAME, StoredEntry
from .quarantine import Quarantine
from .removal import Removals
from .room import Shortage, Usage, shortage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .filesystem import Filesystem, Space
    from .room import Limits

MAX_WITHDRAWALS: Final = 100_000
_NOT_IN_A_NAME: Final = re.compile(r"[^0-9a-z_]+")


class Stock:
    """Entries, leftovers and their bytes under one root. ``identity`` is the id of the owner's."""

    def __init__(
        self, fs: Filesystem, root: Path, identity: str, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self.entries = Catalogue()
        self.removals = Removals(fs, clock, limits.retry_s)
        self.quarantine = Quarantine(fs, root / QUARANTINE_NAME, limits.quarantine_bytes)
        self.outdated: dict[Path, int] = {}
        self.outdated_bytes = 0
        self.unread: dict[Path, int] = {}
        self.unread_bytes = 0
        self.foreign_bytes = 0
        self.reserved_bytes = 0
        self.evictions = 0
        self.quarantined = 0
        self.withdrawals: deque[Withdrawal] = deque(maxlen=MAX_WITHDRAWALS)
        self._fs = fs
        self._root = root
        self._identity = identity
        self._limits = limits

    def usage(self) -> Usage:
        """Return the bytes as they are now. Any thread; does not block."""
        return Usage(
            entry_bytes=self.entries.bytes,
            outdated_bytes=self.outdated_bytes,
            quarantined_bytes=self.quarantine.bytes,
            stuck_bytes=self.removals.stuck_bytes,
            foreign_bytes=self.foreign_bytes,
            unread_bytes=self.unread_bytes,
            reserved_bytes=self.reserved_bytes,
        )

    # -- room

    def make_room(self, needed_bytes: int) -> None:
        """Remove what must go for ``needed_bytes`` more. NoRoom, before anything goes if it cannot do."""
        self.removals.retry()
        gap = shortage(self._limits, self.usage(), self._space(), needed_bytes)
        if gap.excess_bytes > self._reclaimable_bytes() or self.free(gap.excess_bytes) < gap.excess_bytes:
            raise self._no_room(gap, needed_bytes)

    def trim(self) -> int:
        """Remove what exceeds the cap; returns how many entries went."""
        before = self.evictions
        self.free(shortage(self._limits, self.usage(), None, 0).excess_bytes)
        return self.evictions - before

    def free(self, wanted_bytes: int) -> int:
        """Free ``wanted_bytes`` or as much as will go; returns the bytes freed."""
        freed = 0
        for shrink in (self._shrink_outdated, self.quarantine.shrink, self._evict):
            if freed < wanted_bytes:
                freed += shrink(wanted_bytes - freed)
        return freed

    def _shrink_outdated(self, wanted_bytes: int) -> int:
        freed = 0
        for path in list(self.outdated):
            if freed >= wanted_bytes:
                break
            if not self.removals.rests(path) and self.removals.unlink(path):
                freed += self._forget_outdated(path)
        return freed

    def _forget_outdated(self, path: Path) -> int:
        file_bytes = self.outdated.pop(path)
        self.outdated_bytes -= file_bytes
        return file_bytes

    def _evict(self, wanted_bytes: int) -> int:
        freed = 0
        for entry in self.entries.entries():
            if freed >= wanted_bytes:
                break
            if not self.removals.rests(entry.path) and self.removals.unlink(entry.path):
                self.withdraw(entry.id, "evicted")
                self.evictions += 1
                freed += entry.file_bytes
        return freed

    def _reclaimable_bytes(self) -> int:
        resting = sum(
            entry.file_bytes
            for entry in (self.entries.entries() if self.removals.any_rests() else ())
            if self.removals.rests(entry.path)
        )
        return self.usage().reclaimable_bytes - resting

    def _space(self) -> Space | None:
        try:
            return self._fs.space(self._root)
        except OSError:
            return None  # the write will tell

    def _no_room(self, gap: Shortage, needed_bytes: int) -> NoRoom:
        usage = self.usage()
        return NoRoom(
            gap.reason,
            f"no room for {needed_bytes} bytes in {self._root} ({gap.reason}): {usage.total_bytes} in use, "
            f"{usage.foreign_bytes} of them foreign, cap {self._limits.max_bytes}",
        )

    # -- files that leave

    def withdraw(self, entry_id: str, why: Departure) -> StoredEntry | None:
        """Take an entry out of the index and note that it is no longer durable. Does not block."""
        entry = self.entries.drop(entry_id)
        if entry is not None:
            self.withdrawals.append(Withdrawal(entry, why))
        return entry

    def keep_outdated(self, path: Path, file_bytes: int) -> None:
        """Count a file that this version cannot use; it goes first."""
        self.outdated[path] = file_bytes
        self.outdated_bytes += file_bytes

    def keep_unread(self, folder: Path, files: dict[Path, int]) -> None:
        """Count, with their bytes, a folder's files that cannot be taken up yet, instead of those before."""
        others = {path: size for path, size in self.unread.items() if path.parent != folder}
        self.unread = others | files
        self.unread_bytes = sum(self.unread.values())

    def forget_unread(self) -> None:
        """Count nothing as unread any more."""
        self.unread = {}
        self.unread_bytes = 0

    def exile(self, path: Path, file_bytes: int, reason: str) -> None:
        """Move a bad file to the quarantine; where that fails it stays, never to be used. No OSError."""
        self.quarantined += 1
        word = _NOT_IN_A_NAME.sub("_", reason.lower())[:40]
        try:
            self.quarantine.admit(path, file_bytes, self._identity, word)
        except FileNotFoundError:
            pass
        except OSError:
            self.keep_outdated(path, file_bytes)

    def clear_leftovers(self) -> None:
        """Remove what nobody can use."""
        self._shrink_outdated(self.outdated_bytes + 1)
        self.quarantine.shrink(self.quarantine.bytes + 1)
