"""Changing an SSD cache folder offline, under its lock: sweep, trim, drop, clear, put aside.

Only what is the cache's is ever removed: files in the folders of its identities, and the quarantine. What
will not go is told, and stops nothing else.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...storage.entry import LOCK_NAME, QUARANTINE_NAME, TEMP_NAME, namespace_folder
from ...storage.fs import FileLocked
from ...storage.identity import IDENTITY_FILE
from ...storage.quarantine import Quarantine
from ...storage.scan import Tally, listed_in, namespace_folders, weigh
from .cache_survey import Survey, survey, temporary_files

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from ...storage.filesystem import Filesystem
    from ...storage.scan import Found, Problem
    from .cache_survey import Holdings


class CacheInUse(Exception):
    """Another process, most likely a server, holds the folder's lock."""

    code = "cache_in_use"
    retryable = True
    usage = True


@contextlib.contextmanager
def held(fs: Filesystem, root: Path) -> Generator[None]:
    """Hold the folder's lock for a while. Raises CacheInUse, naming folder and holder, and OSError."""
    try:
        lock = fs.lock(root / LOCK_NAME)
    except FileLocked as error:
        raise CacheInUse(f"the cache {root} is in use: {error}; stop that server first") from error
    try:
        yield
    finally:
        lock.release()


def is_cache(fs: Filesystem, root: Path) -> bool:
    """Whether the folder is, or was, a cache: nothing may be made or removed in any other."""
    return any(item.name == LOCK_NAME for item in fs.list(root)) or survey(fs, root).is_cache


class Broom:
    """Removes files; ``failures`` says which would not go."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._folders: set[Path] = set()
        self.failures: list[str] = []

    def remove(self, files: Iterable[tuple[Path, int]]) -> Tally:
        """Remove files of known sizes; returns what went."""
        gone = Tally()
        for path, file_bytes in files:
            try:
                self._fs.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                self.failures.append(f"{path}: {error.strerror or error}")
                continue
            self._folders.add(path.parent)
            gone += Tally(1, file_bytes)
        return gone

    def settle(self) -> None:
        """Make the removals durable."""
        for folder in sorted(self._folders):
            with contextlib.suppress(FileNotFoundError):
                self._fs.sync_folder(folder)
        self._folders.clear()


@dataclass(frozen=True, slots=True)
class Swept:
    """What was removed. ``left``: what is still there beneath the root, foreign files included."""

    temporary: Tally
    entries: Tally
    unusable: Tally
    quarantine: Tally
    left: Tally
    failures: tuple[str, ...]


def collect(fs: Filesystem, root: Path, max_bytes: int | None, *, everything: bool) -> Swept:
    """Sweep temporary files, trim to ``max_bytes`` (None: do not), least recently used first.

    With ``everything`` drop what nobody can use, and the folders of identities without an entry, before. The
    caller holds the lock. OSError when the root cannot be listed. Blocks.
    """
    seen, broom = survey(fs, root), Broom(fs)
    temporary = broom.remove(_temporary(fs, root, seen.identities))
    unusable = broom.remove(map(_of_problem, seen.problems() if everything else ()))
    quarantine = broom.remove(_quarantined(fs, root) if everything else ())
    wanted_bytes = (temporary + unusable + quarantine).size_bytes
    excess_bytes = 0 if max_bytes is None else seen.total.size_bytes - wanted_bytes - max_bytes
    entries = Tally()
    for found in reversed(seen.found()):
        if entries.size_bytes >= excess_bytes:
            break
        entries += broom.remove([_of_found(found)])
    return _swept(fs, seen, broom, (temporary, entries, unusable, quarantine), whole=everything)


def clear(fs: Filesystem, seen: Survey, identity: str | None, namespace: str | None) -> Swept:
    """Remove the cache files of an identity, a namespace, both, or (None and None) all, quarantine included.

    The caller has ``seen`` under the lock and holds it still. Blocks.
    """
    broom, root = Broom(fs), seen.root
    chosen = [one for one in seen.identities if identity in (None, one.identity.id)]
    found = entries_of(seen, identity, namespace)
    problems = [each for one in chosen for each in one.problems if _lies_in(each, namespace)]
    entries, unusable = broom.remove(map(_of_found, found)), broom.remove(map(_of_problem, problems))
    temporary = broom.remove(_temporary(fs, root, chosen) if namespace is None else ())
    quarantine = broom.remove(_quarantined(fs, root) if identity is None and namespace is None else ())
    return _swept(fs, seen, broom, (temporary, entries, unusable, quarantine), whole=namespace is None)


def entries_of(seen: Survey, identity: str | None, namespace: str | None) -> list[Found]:
    """Return the entries of an identity (None: any) and a namespace (None: any)."""
    return [
        found
        for found in seen.found()
        if identity in (None, found.identity) and namespace in (None, found.entry.namespace)
    ]


def put_aside(fs: Filesystem, root: Path, problem: Problem, max_bytes: int) -> Literal["moved", "removed"]:
    """Move a bad file to the quarantine of ``max_bytes``; returns "moved", or "removed" if it is larger.

    The caller holds the lock. OSError. Blocks.
    """
    quarantine = Quarantine(fs, root / QUARANTINE_NAME, max_bytes)
    quarantine.load()
    quarantine.admit(problem.path, problem.file_bytes, problem.identity, problem.code)
    return "removed" if problem.file_bytes > max_bytes else "moved"


def _of_found(found: Found) -> tuple[Path, int]:
    return found.entry.path, found.entry.file_bytes


def _of_problem(problem: Problem) -> tuple[Path, int]:
    return problem.path, problem.file_bytes


def _lies_in(problem: Problem, namespace: str | None) -> bool:
    return namespace is None or problem.path.parent.name == namespace_folder(namespace)


def _temporary(fs: Filesystem, root: Path, identities: Iterable[Holdings]) -> list[tuple[Path, int]]:
    folders = [root / one.identity.id for one in identities]
    return [(path, item.size_bytes) for folder in folders for path, item in temporary_files(fs, folder)]


def _quarantined(fs: Filesystem, root: Path) -> list[tuple[Path, int]]:
    listed = listed_in(fs, root / QUARANTINE_NAME)
    return [(path, item.size_bytes) for path, item in listed if not item.is_folder]


def _swept(
    fs: Filesystem, seen: Survey, broom: Broom, gone: tuple[Tally, Tally, Tally, Tally], *, whole: bool
) -> Swept:
    broom.settle()
    for one in seen.identities:
        with contextlib.suppress(OSError):  # an empty folder more does no harm
            _tidy(fs, seen.root / one.identity.id, whole=whole)
    return Swept(*gone, _left(fs, seen.root), tuple(broom.failures))


def _left(fs: Filesystem, root: Path) -> Tally:
    items = [item for item in fs.list(root) if item.name != LOCK_NAME]
    loose = sum((Tally(1, item.size_bytes) for item in items if not item.is_folder), Tally())
    return sum((weigh(fs, root / item.name) for item in items if item.is_folder), loose)


def _tidy(fs: Filesystem, folder: Path, *, whole: bool) -> None:
    """Remove the empty folders of an identity, and with ``whole`` itself if it has none with a file."""
    for place in namespace_folders(fs, folder):
        if not fs.list(place):
            fs.remove_folder(place)
    if not whole or namespace_folders(fs, folder) or fs.list(folder / TEMP_NAME):
        return
    if {item.name for item in fs.list(folder)} <= {IDENTITY_FILE, TEMP_NAME}:
        for name in (item.name for item in fs.list(folder)):
            (fs.remove_folder if name == TEMP_NAME else fs.unlink)(folder / name)
        fs.remove_folder(folder)
        fs.sync_folder(folder.parent)
