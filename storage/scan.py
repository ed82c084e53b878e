"""What lies in a cache root, file by file: headers only, without a lock, changing nothing.

The directory recovers its index from this, and the offline tools list it. A file that is wrong is a Problem
in the sequence, never an error that ends it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from .container_errors import ContainerError, UnsupportedFeature, UnsupportedVersion
from .entry import (
    FILE_SUFFIX,
    LOCK_NAME,
    QUARANTINE_NAME,
    TEMP_NAME,
    StoredEntry,
    entry_of,
    namespace_folder,
)
from .front import FIRST_READ_BYTES
from .identity import IDENTITY_FILE
from .summary import Summary, read_summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .filesystem import FileEntry, Filesystem

AHEAD: Final = 16
"""How many files the system reads ahead of the one that is examined; on cold disks they come together."""

OUTDATED: Final = frozenset({UnsupportedVersion.code, UnsupportedFeature.code})
"""Whole files that this version cannot use: they stay where they are, first in line for eviction."""

UNREADABLE: Final = "unreadable"
VANISHED: Final = "vanished"
WRONG_IDENTITY: Final = "wrong_identity"
MISPLACED: Final = "misplaced"
UNKNOWN_FILE: Final = "unknown_file"


@dataclass(frozen=True, slots=True)
class Found:
    """A whole file in the folder of ``identity``, which its header names too. ``created_s``: Unix time."""

    identity: str
    entry: StoredEntry
    created_s: float


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that cannot be used: ``code`` is a container error's, or one of this module's."""

    identity: str
    path: Path
    code: str
    file_bytes: int
    mtime_s: float
    detail: str


Finding: TypeAlias = Found | Problem
Listed: TypeAlias = "tuple[Path, FileEntry]"


def examine(fs: Filesystem, identity: str, listed: Listed) -> Finding:
    """Read one file's header and compare it with where the file lies. Blocks; raises no OSError."""
    path, item = listed
    code, detail = UNKNOWN_FILE, "not a cache file"
    if _is_ours(item):
        try:
            return _found(identity, listed, read_summary(fs, path, item.size_bytes))
        except ContainerError as error:
            code, detail = error.code, error.problem
        except _Misfit as error:
            code, detail = error.code, str(error)
        except FileNotFoundError as error:
            code, detail = VANISHED, str(error)
        except OSError as error:
            code, detail = UNREADABLE, str(error)
    return Problem(identity, path, code, item.size_bytes, item.mtime_s, detail)


def _is_ours(item: FileEntry) -> bool:
    return item.name.endswith(FILE_SUFFIX) and not item.is_folder


class _Misfit(Exception):
    """A whole file in a wrong place."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _found(identity: str, listed: Listed, summary: Summary) -> Found:
    path, item = listed
    if summary.identity != identity:
        raise _Misfit(WRONG_IDENTITY, f"its header names {summary.identity}")
    entry = entry_of(path, summary.spec, summary.file_bytes, item.mtime_s)
    if namespace_folder(entry.namespace) != path.parent.name:
        raise _Misfit(MISPLACED, "lies in the folder of another namespace")
    return Found(identity, entry, summary.created_s)


def examine_all(fs: Filesystem, identity: str, files: Iterable[Listed]) -> Iterator[Finding]:
    """Examine the files in their order, while the system reads those that follow.

    Threads would not help: a file costs more Python than waiting, and they would wait for each other.
    """
    for listed in _prefetched(fs, files):
        yield examine(fs, identity, listed)


def _prefetched(fs: Filesystem, files: Iterable[Listed]) -> Iterator[Listed]:
    waiting: deque[Listed] = deque()
    for path, item in files:
        if _is_ours(item):
            fs.prefetch(path, min(item.size_bytes, FIRST_READ_BYTES))
        waiting.append((path, item))
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    yield from waiting


def namespace_folders(fs: Filesystem, identity_folder: Path) -> list[Path]:
    """Return the folders of an identity that hold cache files. OSError."""
    return sorted(
        identity_folder / item.name
        for item in fs.list(identity_folder)
        if item.is_folder and item.name != TEMP_NAME
    )


def listed_in(fs: Filesystem, folder: Path) -> list[Listed]:
    """Return what is in a folder, in order of name. OSError."""
    return [(folder / item.name, item) for item in sorted(fs.list(folder), key=lambda item: item.name)]


def scan(fs: Filesystem, root: Path) -> Iterator[Finding]:
    """Examine every file of every identity beneath ``root``; what is in no identity's folder is left out.

    For offline tools: takes no lock, so a server that runs meanwhile may remove what was just seen. Blocks.
    """
    for item in sorted(fs.list(root), key=lambda item: item.name):
        if item.is_folder and item.name != QUARANTINE_NAME:
            for folder in namespace_folders(fs, root / item.name):
                yield from examine_all(fs, item.name, listed_in(fs, folder))


@dataclass(frozen=True, slots=True)
class Tally:
    """Files and their bytes."""

    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.files + other.files, self.size_bytes + other.size_bytes)


_MAX_DEPTH: Final = 8


def weigh(fs: Filesystem, folder: Path, depth: int = _MAX_DEPTH) -> Tally:
    """Count everything beneath a folder. What cannot be listed counts nothing."""
    total = Tally()
    try:
        items = fs.list(folder)
    except OSError:
        return total
    for item in items:
        if not item.is_folder:
            total += Tally(1, item.size_bytes)
        elif depth:
            total += weigh(fs, folder / item.name, depth - 1)
    return total


def strangers(fs: Filesystem, root: Path, ours: str) -> dict[str, Tally]:
    """Count what in ``root`` is neither of identity ``ours`` nor of the cache as a whole, by name at the top.

    Loose files of the root count under "", those in our folder that are no cache's under our own name.
    OSError when the root cannot be listed.
    """
    found: dict[str, Tally] = {}
    for item in fs.list(root):
        if item.name in {LOCK_NAME, QUARANTINE_NAME}:
            continue
        if not item.is_folder:
            found[""] = found.get("", Tally()) + Tally(1, item.size_bytes)
        elif item.name != ours:
            found[item.name] = weigh(fs, root / item.name)
    loose = [item for item in fs.list(root / ours) if not item.is_folder and item.name != IDENTITY_FILE]
    if loose:
        found[ours] = Tally(len(loose), sum(item.size_bytes for item in loose))
    return found
