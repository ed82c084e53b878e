"""Rebuilding a directory from its files: sweep, scan headers, sort by use, count strangers, trim to the cap.

Nothing here stops a start but the root's own folder and lock: each file or folder that cannot be used is
told in the report. Recovery that is itself interrupted has lost nothing, and starts again.

What a pass failed to do, another one may do later, on a directory that is in use. Until then the files of a
folder that could not be listed, or not be synced, are not served, since everything that can be found is
durable. Those that could be listed count towards the cap, and nothing else is given their names.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from .directory_figures import ForeignFolder, OpenReport
from .entry import TEMP_NAME
from .identity import read_identity, write_identity
from .scan import (
    OUTDATED,
    UNKNOWN_FILE,
    UNREADABLE,
    VANISHED,
    Found,
    Listed,
    Problem,
    Tally,
    examine_all,
    listed_in,
    namespace_folders,
    strangers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .entry import StoredEntry
    from .filesystem import Filesystem
    from .identity import Identity
    from .reservation import Reservations
    from .stock import Stock


class Recovery:
    """Passes over the files of ``identity`` into ``stock``. The caller holds the root's lock.

    The first finds ``stock`` empty. A later one takes up what is neither known nor being written.
    """

    def __init__(
        self,
        fs: Filesystem,
        root: Path,
        identity: Identity,
        stock: Stock,
        reservations: Reservations,
    ) -> None:
        self._fs = fs
        self._root = root
        self._identity = identity
        self._stock = stock
        self._reservations = reservations
        self._swept = self._trimmed = 0
        self._problems: dict[str, Tally] = {}
        self._failures: list[str] = []
        self._created_s: dict[str, float] = {}
        self._unknown: dict[Path, int] = {}
        self._foreign: tuple[ForeignFolder, ...] = ()
        self._cleared: set[str | None] = set()
        self._emptied: set[Path] = set()

    def run(self) -> OpenReport:
        """Make a pass; return what all have found, and what this one could not do. Blocks.

        PowerLoss and programming errors apart, nothing is raised.
        """
        self._failures = []
        self._attempt(self._stock.quarantine.load)
        self._attempt(self._sweep)
        self._attempt(self._describe)
        for finding in examine_all(self._fs, self._identity.id, self._our_files()):
            self._accept(finding)
        self._sync_emptied()
        if not self._failures:  # also of folders that have vanished
            self._stock.forget_unread()
        entries = self._stock.entries
        entries.order(self._order)
        self._attempt(self._survey)
        self._stock.foreign_bytes = sum(self._unknown.values()) + sum(
            folder.tally.size_bytes for folder in self._foreign
        )
        self._trimmed += self._stock.trim()
        return OpenReport(
            entries=len(entries),
            entry_bytes=entries.bytes,
            swept=self._swept,
            trimmed=self._trimmed,
            problems=dict(self._problems),
            foreign=self._foreign,
            failures=tuple(self._failures),
        )

    def clear(self, namespace: str | None) -> None:
        """Let a later pass remove what this one could not read of a namespace, or (None) of all."""
        if self._failures:
            self._cleared.add(namespace)

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            self._failures.append(str(error))

    @property
    def _folder(self) -> Path:
        return self._root / self._identity.id

    def _sweep(self) -> None:
        """Remove what writers left half done."""
        for path, item in listed_in(self._fs, self._folder / TEMP_NAME):
            if not (item.is_folder or self._reservations.knows(path)):
                self._swept += self._stock.removals.discard(path, item.size_bytes)

    def _describe(self) -> None:
        temp = self._folder / TEMP_NAME
        self._fs.make_folder(temp)
        write_identity(self._fs, self._folder, temp, self._identity)

    # -- our files

    def _our_files(self) -> Iterator[Listed]:
        try:
            folders = namespace_folders(self._fs, self._folder)
        except OSError as error:
            self._failures.append(str(error))
            return
        for folder in folders:
            try:
                yield from self._files_of(folder)
            except OSError as error:
                self._failures.append(str(error))

    def _files_of(self, folder: Path) -> list[Listed]:
        """Return what is new in a folder, under durable names: a process may have died before its sync."""
        listed = listed_in(self._fs, folder)
        files = [each for each in listed if not self._knows(each[0])]
        try:
            self._fs.sync_folder(folder)  # an empty one too: what was removed must not come back
        except OSError:
            self._stock.keep_unread(folder, {path: item.size_bytes for path, item in files})
            raise
        self._stock.keep_unread(folder, {})
        if not listed and not self._reservations.use(folder):
            with contextlib.suppress(OSError):
                self._fs.remove_folder(folder)
        return files

    def _knows(self, path: Path) -> bool:
        return path in self._unknown or self._reservations.knows(path)

    def _accept(self, finding: Found | Problem) -> None:
        if isinstance(finding, Found):
            self._index(finding)
        elif finding.code != VANISHED:
            self._note(finding.code, finding.file_bytes)
            self._put_aside(finding)

    def _note(self, code: str, file_bytes: int) -> None:
        self._problems[code] = self._problems.get(code, Tally()) + Tally(1, file_bytes)

    def _put_aside(self, problem: Problem) -> None:
        if problem.code == UNKNOWN_FILE:
            self._unknown[problem.path] = problem.file_bytes
        elif problem.code in OUTDATED or problem.code == UNREADABLE:
            self._stock.keep_outdated(problem.path, problem.file_bytes)
        else:
            self._stock.exile(problem.path, problem.file_bytes, problem.code)

    def _index(self, found: Found) -> None:
        entry, entries = found.entry, self._stock.entries
        if not self._cleared.isdisjoint({None, entry.namespace}):
            self._stock.removals.discard(entry.path, entry.file_bytes)
            self._emptied.add(entry.path.parent)
            return
        if self._reservations.taken(entry.id, entry.path):
            self._note("duplicate_id", entry.file_bytes)
            self._stock.exile(entry.path, entry.file_bytes, "duplicate_id")
            return
        self._created_s[entry.id] = found.created_s
        older = entries.add(entry)
        if older is None:
            return
        if self._created(older) > found.created_s:
            entries.add(older)
            older = entry
        # It was replaced, and the process died before it was removed.
        self._stock.removals.discard(older.path, older.file_bytes)

    def _sync_emptied(self) -> None:
        """Let no power loss bring back what was cleared, as far as the disk goes along."""
        while self._emptied:
            with contextlib.suppress(OSError):
                self._fs.sync_folder(self._emptied.pop())

    def _order(self, entry: StoredEntry) -> tuple[float, float, str]:
        return (entry.last_used_s, self._created(entry), entry.id)

    def _created(self, entry: StoredEntry) -> float:
        """Return when an entry was made, Unix seconds; what this process stored is younger than all found."""
        return self._created_s.get(entry.id, math.inf)

    # -- the others

    def _survey(self) -> None:
        tallies = strangers(self._fs, self._root, self._identity.id)
        self._foreign = tuple(
            ForeignFolder(name, tally, self._differs(name)) for name, tally in tallies.items() if tally.files
        )

    def _differs(self, name: str) -> tuple[str, ...]:
        other = read_identity(self._fs, self._root / name) if name not in {"", self._identity.id} else None
        return self._identity.differences(other) if other is not None else ()
