"""What an SSD cache folder holds, read without its lock: a server may run beside it, and files may vanish.

A folder counts as an identity's when it describes itself or holds a whole cache file that names it.
Everything else beneath the root is foreign: told, and never touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...storage.entry import LOCK_NAME, QUARANTINE_NAME, TEMP_NAME, TEMP_SUFFIX
from ...storage.identity import Identity, read_identity
from ...storage.scan import (
    UNKNOWN_FILE,
    VANISHED,
    Found,
    Problem,
    Tally,
    examine_all,
    listed_in,
    namespace_folders,
    weigh,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ...storage.filesystem import FileEntry, Filesystem


@dataclass(slots=True)
class Holdings:
    """What one identity's folder holds. ``problems`` are cache files that cannot be used."""

    identity: Identity
    described: bool
    found: list[Found] = field(default_factory=list[Found])
    problems: list[Problem] = field(default_factory=list[Problem])
    other: Tally = field(default_factory=Tally)
    temp: Tally = field(default_factory=Tally)

    @property
    def is_cache(self) -> bool:
        """Whether the folder is one of the cache's."""
        return self.described or bool(self.found)

    @property
    def unusable(self) -> Tally:
        """Return the files that cannot be used."""
        return Tally(len(self.problems), sum(problem.file_bytes for problem in self.problems))

    @property
    def entries(self) -> Tally:
        """Return the files that can be used."""
        return sum(self.namespaces().values(), Tally())

    @property
    def total(self) -> Tally:
        """Return everything in the folder."""
        return self.entries + self.unusable + self.other + self.temp

    def namespaces(self) -> dict[str, Tally]:
        """Return the entries of each namespace."""
        tallies: dict[str, Tally] = {}
        for found in self.found:
            name = found.entry.namespace
            tallies[name] = tallies.get(name, Tally()) + Tally(1, found.entry.file_bytes)
        return tallies


@dataclass(slots=True)
class Survey:
    """What lies beneath ``root``, by whose it is. ``failures``: folders that could not be looked into."""

    root: Path
    identities: list[Holdings] = field(default_factory=list[Holdings])
    foreign: Tally = field(default_factory=Tally)
    quarantine: Tally = field(default_factory=Tally)
    failures: list[str] = field(default_factory=list[str])

    @property
    def is_cache(self) -> bool:
        """Whether an identity has a folder here."""
        return bool(self.identities)

    @property
    def total(self) -> Tally:
        """Return everything that was counted."""
        own = (holdings.total for holdings in self.identities)
        return sum(own, self.foreign + self.quarantine)

    def found(self) -> list[Found]:
        """Return all usable files, most recently used first."""
        every = (found for holdings in self.identities for found in holdings.found)
        return sorted(every, key=lambda found: (-found.entry.last_used_s, found.entry.id))

    def problems(self) -> list[Problem]:
        """Return all cache files that cannot be used, by path."""
        every = (problem for holdings in self.identities for problem in holdings.problems)
        return sorted(every, key=lambda problem: problem.path)


def survey(fs: Filesystem, root: Path) -> Survey:
    """Read every header beneath ``root``; an absent root holds nothing. Blocks.

    OSError when the root itself cannot be listed.
    """
    seen = Survey(root)
    for item in sorted(fs.list(root), key=lambda item: item.name):
        if item.name == QUARANTINE_NAME and item.is_folder:
            seen.quarantine += weigh(fs, root / item.name)
        elif item.is_folder:
            _add_folder(fs, seen, item.name)
        elif item.name != LOCK_NAME:
            seen.foreign += Tally(1, item.size_bytes)
    return seen


def _add_folder(fs: Filesystem, seen: Survey, name: str) -> None:
    folder = seen.root / name
    try:
        holdings = _holdings(fs, folder)
    except OSError as error:
        seen.failures.append(str(error))
        return
    if holdings is None or not holdings.is_cache:
        seen.foreign += weigh(fs, folder)
    else:
        seen.identities.append(holdings)


def _holdings(fs: Filesystem, folder: Path) -> Holdings | None:
    """Return what an identity's folder holds; None for a folder whose name no identity can have."""
    try:
        named = Identity(folder.name)
    except ValueError:
        return None
    said = read_identity(fs, folder)
    described = said is not None and said.id == folder.name
    holdings = Holdings(said if said is not None and described else named, described)
    for finding in _findings(fs, folder):
        if isinstance(finding, Found):
            holdings.found.append(finding)
        elif finding.code == UNKNOWN_FILE:
            holdings.other += Tally(1, finding.file_bytes)
        elif finding.code != VANISHED:
            holdings.problems.append(finding)
    loose = [item for item in fs.list(folder) if not item.is_folder]
    holdings.other += Tally(len(loose), sum(item.size_bytes for item in loose))
    holdings.temp = _tally(item for _, item in temporary_files(fs, folder))
    return holdings


def _findings(fs: Filesystem, folder: Path) -> Iterator[Found | Problem]:
    for place in namespace_folders(fs, folder):
        files = [listed for listed in listed_in(fs, place) if not listed[1].is_folder]
        yield from examine_all(fs, folder.name, files)


def temporary_files(fs: Filesystem, folder: Path) -> list[tuple[Path, FileEntry]]:
    """Return what writers of an identity left half done, or are at. OSError."""
    listed = listed_in(fs, folder / TEMP_NAME)
    return [(path, item) for path, item in listed if not item.is_folder and item.name.endswith(TEMP_SUFFIX)]


def _tally(items: Iterable[FileEntry]) -> Tally:
    return sum((Tally(1, item.size_bytes) for item in items), Tally())
