"""Rebuilding a directory from its files: sweep, scan headers, sort by use, count strangers, trim to the cap.

Nothing here stops a start but the root's own folder and lock: each file or folder that cannot be used is
told in the report. Recovery that is itself interrupted has lost nothing, and starts again.
"""

from __future__ import annotations

import contextlib
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
    from .stock import Stock


class Recovery:
    """One pass over the files of ``identity`` into an empty ``stock``. The caller holds the root's lock."""

    def __init__(self, fs: Filesystem, root: Path, identity: Identity, stock: Stock) -> None:
        self._fs = fs
        self._root = root
        self._identity = identity
        self._stock = stock
        self._problems: dict[str, Tally] = {}
        self._failures: list[str] = []
        self._created_s: dict[str, float] = {}

    def run(self) -> OpenReport:
        """Recover. PowerLoss and programming errors apart, nothing is raised. Blocks."""
        self._attempt(self._stock.quarantine.load)
        swept = self._sweep()
        self._attempt(self._describe)
        for finding in examine_all(self._fs, self._identity.id, self._our_files()):
            self._accept(finding)
        entries = self._stock.entries
        entries.order(self._order)
        foreign = self._survey()
        trimmed = self._stock.trim()
        return OpenReport(
            entries=len(entries),
            entry_bytes=entries.bytes,
            swept=swept,
            trimmed=trimmed,
            problems=self._problems,
            foreign=foreign,
            failures=tuple(self._failures),
        )

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            self._failures.append(str(error))

    @property
    def _folder(self) -> Path:
        return self._root / self._identity.id

    def _sweep(self) -> int:
        """Remove what writers left half done; returns how many files that was."""
        temp = self._folder / TEMP_NAME
        try:
            left = [(path, item) for path, item in listed_in(self._fs, temp) if not item.is_folder]
        except OSError as error:
            self._failures.append(str(error))
            return 0
        return sum(self._stock.removals.discard(path, item.size_bytes) for path, item in left)

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
            yield from self._files_of(folder)

    def _files_of(self, folder: Path) -> list[Listed]:
        """Return a folder's files, each under a durable name: a process may have died before its sync."""
        try:
            files = listed_in(self._fs, folder)
            self._fs.sync_folder(folder)  # an empty one too: what was removed must not come back
            if not files:
                with contextlib.suppress(OSError):
                    self._fs.remove_folder(folder)
        except OSError as error:
            self._failures.append(str(error))
            return []
        return files

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
            self._stock.foreign_bytes += problem.file_bytes
        elif problem.code in OUTDATED or problem.code == UNREADABLE:
            self._stock.keep_outdated(problem.path, problem.file_bytes)
        else:
            self._stock.exile(problem.path, problem.file_bytes, problem.code)

    def _index(self, found: Found) -> None:
        entry, entries = found.entry, self._stock.entries
        if entries.get(entry.id) is not None:
            self._note("duplicate_id", entry.file_bytes)
            self._stock.exile(entry.path, entry.file_bytes, "duplicate_id")
            return
        self._created_s[entry.id] = found.created_s
        older = entries.add(entry)
        if older is None:
            return
        if self._created_s[older.id] > found.created_s:
            entries.add(older)
            older = entry
        # It was replaced, and the process died before it was removed.
        self._stock.removals.discard(older.path, older.file_bytes)

    def _order(self, entry: StoredEntry) -> tuple[float, float, str]:
        return (entry.last_used_s, self._created_s[entry.id], entry.id)

    # -- the others

    def _survey(self) -> tuple[ForeignFolder, ...]:
        try:
            tallies = strangers(self._fs, self._root, self._identity.id)
        except OSError as error:
            self._failures.append(str(error))
            return ()
        self._stock.foreign_bytes += sum(tally.size_bytes for tally in tallies.values())
        return tuple(
            ForeignFolder(name, tally, self._differs(name)) for name, tally in tallies.items() if tally.files
        )

    def _differs(self, name: str) -> tuple[str, ...]:
        other = read_identity(self._fs, self._root / name) if name not in {"", self._identity.id} else None
        return self._identity.differences(other) if other is not None else ()
