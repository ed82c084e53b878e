"""The SSD directory: checkpoint files under one root, found by prefix, kept within a cap.

DESIGN §5, seed §5.1. Files are the database: ``open`` rebuilds everything from their headers and mtimes.
Durable means: data synced, renamed, folder synced; everything that can be found is durable. One owner holds
the root's lock. Lookups are in memory and may be called from any thread at any time; methods that say
"blocks" touch files and are for one thread at a time. ``publish`` is for the writer's thread.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

from .container import file_bytes_of
from .directory_errors import DirectoryClosed, DirectoryError, NoRoom, is_disk_full
from .directory_figures import DirectoryFigures
from .entry import LOCK_NAME, QUARANTINE_NAME, entry_of
from .recovery import Recovery
from .reservation import Reservation, Reservations, publish
from .scan import namespace_folders
from .stock import Stock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .container import StoredCheckpoint
    from .directory_figures import OpenReport, Withdrawal
    from .entry import StoredEntry
    from .filesystem import Filesystem, Lock
    from .identity import Identity
    from .index import Match
    from .room import Limits
    from .spec import CheckpointSpec
    from .tokens import TokenIds

_TICK_S = 1e-6


class CheckpointDirectory:
    """The files of one identity under ``root``. ``clock`` gives Unix seconds."""

    def __init__(
        self,
        fs: Filesystem,
        root: Path,
        identity: Identity,
        limits: Limits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self.identity = identity
        self.limits = limits
        self._fs = fs
        self._clock = clock
        self._stock = Stock(fs, root, identity.id, limits, clock)
        self._entries = self._stock.entries
        self._lock: Lock | None = None
        self._used = False
        self._reservations = Reservations(fs, root / identity.id, self._stock)
        self._recovery = Recovery(fs, root, identity, self._stock, self._reservations)
        self._latest_s = 0.0
        self._counts: Counter[str] = Counter()
        self._problems: Counter[str] = Counter()
        self._found: Counter[str] = Counter()
        self._unrecovered = 0

    # -- life

    def open(self) -> OpenReport:
        """Lock the root, recover the index from the files, trim to the cap. Blocks; lookups work meanwhile.

        Raises FileLocked (storage/fs.py), naming the holder, when another process has the root, and OSError
        when the root cannot be made or locked. Nothing else that is wrong in there stops it. After that this
        object has one life: DirectoryError for a second.
        """
        if self._used:
            raise DirectoryError(f"{self.root} was opened before")
        self._fs.make_folder(self.root)
        self._lock = self._fs.lock(self.root / LOCK_NAME)
        self._used = True
        try:
            return self.recover()
        except BaseException:
            self.close()
            raise

    def recover(self) -> OpenReport:
        """Take up what is there and not known: once more, where a report tells failures. Blocks.

        Raises no OSError. A folder whose listing or sync failed is missing from the index, and what was
        cleared meanwhile is still on the disk, until a call without failures. The cap is kept afterwards.
        """
        self._check_open()
        report = self._recovery.run()
        self._found = Counter({code: tally.files for code, tally in report.problems.items()})
        self._unrecovered = len(report.failures)
        newest_s = max((entry.last_used_s for entry in self._entries.entries()), default=0.0)
        self._latest_s = max(self._latest_s, newest_s)
        return report

    def close(self) -> None:
        """Give the root up. Idempotent. Blocks."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _check_open(self) -> None:
        if self._lock is None:
            raise DirectoryClosed(f"{self.root} is not open")

    # -- lookups: in memory, any thread

    def find(self, tokens: TokenIds, namespace: str, longer_than: int = 0) -> Match[StoredEntry] | None:
        """Return the longest usable prefix of ``tokens`` of more than ``longer_than`` tokens.

        At most ``len(tokens) - 1``: one token must be left to compute. Somebody may have removed the file.
        """
        match = self._entries.find(tokens, namespace, len(tokens) - 1)
        return match if match is not None and match.length > longer_than else None

    def covers(self, tokens: TokenIds, namespace: str) -> bool:
        """Whether something durable serves exactly these tokens: they themselves, or a longer one trimmed."""
        return self._entries.covers(tokens, namespace)

    def common_prefix(self, tokens: TokenIds, namespace: str) -> int:
        """Return how many tokens anything stored shares with ``tokens``, usable or not."""
        return self._entries.common_prefix(tokens, namespace)

    def entries(self) -> tuple[StoredEntry, ...]:
        """Return all entries, least recently used first."""
        return self._entries.entries()

    def withdrawn(self) -> tuple[Withdrawal, ...]:
        """Return, once, what stopped being durable since the last call and is covered by nothing else."""
        gone: list[Withdrawal] = []
        with contextlib.suppress(IndexError):
            while True:
                gone.append(self._stock.withdrawals.popleft())
        return tuple(one for one in gone if not self.covers(one.entry.tokens, one.entry.namespace))

    def figures(self) -> DirectoryFigures:
        """Return sizes and counts. Walks the entries once."""
        stock, usage, counts = self._stock, self._stock.usage(), self._counts
        return DirectoryFigures(
            entries=len(self._entries),
            entry_bytes=usage.entry_bytes,
            total_bytes=usage.total_bytes,
            max_bytes=self.limits.max_bytes,
            reserved_bytes=usage.reserved_bytes,
            foreign_bytes=usage.foreign_bytes,
            unread_bytes=usage.unread_bytes,
            unrecovered=self._unrecovered,
            outdated_files=len(stock.outdated),
            outdated_bytes=usage.outdated_bytes,
            quarantined=len(stock.quarantine),
            quarantined_bytes=usage.quarantined_bytes,
            stuck_bytes=usage.stuck_bytes,
            longest_tokens=max((len(entry.tokens) for entry in self.entries()), default=0),
            corrupt=stock.quarantined,
            evictions=stock.evictions,
            superseded=counts["superseded"],
            missing=counts["missing"],
            cleared=counts["cleared"],
            unlink_failures=stock.removals.failures,
            touch_failures=counts["touch_failures"],
            problems=dict(self._found + self._problems.copy()),
        )

    # -- writing

    publish = staticmethod(publish)

    def reserve(self, spec: CheckpointSpec) -> Reservation:
        """Set room aside for a checkpoint, removing the least recently used as needed. Blocks.

        Raises NoRoom with its reason, ValueError for a spec that no container can hold, and OSError when a
        folder cannot be made.
        """
        self._check_open()
        needed_bytes = file_bytes_of(spec, self.identity.id)
        self._stock.make_room(needed_bytes)
        reservation = self._reservations.prepare(spec, needed_bytes)
        self._make_folders(reservation)
        self._reservations.hold(reservation)
        return reservation

    def _make_folders(self, reservation: Reservation) -> None:
        try:
            self._fs.make_folder(reservation.temp_path.parent)
            self._fs.make_folder(reservation.final_path.parent)
        except OSError as error:
            if is_disk_full(error):
                raise NoRoom("disk_full", f"no room for a folder in {self.root}: {error}") from error
            raise

    def commit(self, reservation: Reservation, stored: StoredCheckpoint) -> list[StoredEntry]:
        """Take a published checkpoint into the index; return the entries that it made superfluous.

        Those are the one of equal tokens and, if the new one trims, the strict ancestors that it serves;
        their files are removed. So is the new one's own where a longer one that was faster serves it.
        Raises ReservationVoid, and removes the file, when the directory was cleared meanwhile. Blocks.
        """
        self._check_open()
        self._reservations.settle(reservation)
        entry = entry_of(reservation.final_path, stored.header.spec, stored.file_bytes, self._next_use_s())
        if self._entries.longer_covers(entry.tokens, entry.namespace):
            self._stock.removals.discard(entry.path, entry.file_bytes)
            self._counts["superseded"] += 1
            return []
        with contextlib.suppress(OSError):  # the order of use is all that suffers
            self._fs.touch(entry.path, entry.last_used_s)
        replaced = self._entries.add(entry)
        superseded = self._entries.superseded_by(entry)
        for old in superseded:
            self._entries.drop(old.id)
        gone = superseded if replaced is None else [replaced, *superseded]
        for old in gone:
            self._stock.removals.discard(old.path, old.file_bytes)
        self._counts["superseded"] += len(gone)
        return gone

    def abandon(self, reservation: Reservation, error: BaseException | None = None) -> None:
        """End a reservation whose write or publication failed, and remove what it left. Idempotent. Blocks.

        When ``error`` says that the disk is full, the least recently used entries make room for another try.
        """
        if not self._reservations.holds(reservation):
            return
        self._reservations.undo(reservation)
        if is_disk_full(error):
            self._stock.free(reservation.bytes)

    # -- use and removal

    def touch(self, entry_id: str) -> bool:
        """Make an entry the most recently used. False when it is gone, also by hand. Blocks."""
        entry = self._entries.get(entry_id)
        if entry is None:
            return False
        now_s = self._next_use_s()
        try:
            self._fs.touch(entry.path, now_s)
        except FileNotFoundError:
            self.forget(entry_id)
            return False
        except OSError:
            self._counts["touch_failures"] += 1
        return self._entries.use(entry_id, now_s) is not None

    def _next_use_s(self) -> float:
        """Return a time later than every earlier use, whatever the clock does."""
        self._latest_s = max(self._clock(), self._latest_s + _TICK_S)
        return self._latest_s

    def quarantine(self, entry_id: str, reason: str) -> StoredEntry | None:
        """Take a file that failed its checks out of use and keep it aside under ``reason``. Blocks."""
        entry = self._stock.withdraw(entry_id, "quarantined")
        if entry is not None:
            self._problems[reason] += 1
            self._stock.exile(entry.path, entry.file_bytes, reason)
        return entry

    def forget(self, entry_id: str) -> StoredEntry | None:
        """Take an entry out of the index whose file was found missing. In memory; any thread."""
        entry = self._stock.withdraw(entry_id, "missing")
        if entry is not None:
            self._counts["missing"] += 1
        return entry

    def clear(self, namespace: str | None = None) -> int:
        """Remove every entry of a namespace, or of all, durably; returns how many. Blocks.

        What is being written meanwhile will not be committed. With all namespaces the quarantine and files
        of older formats go too. A file that cannot be removed is not used again in this run, and tried again;
        so is one that ``recover`` could not take up yet, which is not counted here.
        """
        self._check_open()
        matching = [entry for entry in self.entries() if namespace is None or entry.namespace == namespace]
        self._reservations.void(namespace)
        self._recovery.clear(namespace)
        for entry in matching:
            self._stock.withdraw(entry.id, "cleared")
            self._stock.removals.discard(entry.path, entry.file_bytes)
        if namespace is None:
            self._stock.clear_leftovers()
        self._sync_names()
        self._counts["cleared"] += len(matching)
        return len(matching)

    def _sync_names(self) -> None:
        """Let no power loss bring back a name that is gone, as far as the disk goes along."""
        with contextlib.suppress(OSError):
            folders = namespace_folders(self._fs, self.root / self.identity.id)
            for folder in (*folders, self.root / QUARANTINE_NAME):
                with contextlib.suppress(OSError):
                    self._fs.sync_folder(folder)

    def check_integrity(self) -> None:
        """Assert that index and accounts agree. Walks everything."""
        self._entries.check_integrity()
        self._reservations.check_integrity()
