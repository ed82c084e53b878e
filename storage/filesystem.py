"""The file operations that the cache's files need, as a port: the real one, and one that fails on purpose.

Every method blocks on the disk, is called from worker threads, and raises OSError with its ``errno`` as the
system would. ``storage/fs.py`` implements it; the test kit has one in memory with faults and crashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One name in a folder. ``mtime_s`` is the last-use time of a cache file."""

    name: str
    is_folder: bool
    size_bytes: int
    mtime_s: float


@dataclass(frozen=True, slots=True)
class Space:
    """Room on the volume that holds a folder."""

    free_bytes: int
    total_bytes: int


class OpenFile(Protocol):
    """An open file. One thread at a time. ``close`` is idempotent and never syncs."""

    def write(self, segments: Sequence[memoryview], offset: int) -> int:
        """Write the segments one after the other from ``offset`` on; returns bytes written, maybe fewer.

        A short write is for the caller to go on from.
        """
        ...

    def read(self, segments: Sequence[memoryview], offset: int) -> int:
        """Fill the writable segments from ``offset`` on; returns bytes read, fewer at the file's end."""
        ...

    def size(self) -> int:
        """Return the file's length in bytes."""
        ...

    def sync(self) -> None:
        """Force data and length to the medium (F_FULLFSYNC on macOS)."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Lock(Protocol):
    """An exclusive lock that dies with its process."""

    def release(self) -> None:
        """Give the lock up. Idempotent."""
        ...


class Filesystem(Protocol):
    """Folders are made 0700, files 0600."""

    def create(self, path: Path) -> OpenFile:
        """Create a new file for writing; FileExistsError when there is one."""
        ...

    def open(self, path: Path) -> OpenFile:
        """Open a file for reading; FileNotFoundError when there is none."""
        ...

    def prefetch(self, path: Path, size_bytes: int) -> None:
        """Have the system begin to read a file's first bytes. A hint: no wait for data, no OSError."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one volume, replacing ``target`` atomically. Durable once the folder is synced."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        ...

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        ...

    def make_folder(self, path: Path) -> None:
        """Create a folder with its parents, each durably; nothing happens when it is there."""
        ...

    def list(self, path: Path) -> list[FileEntry]:
        """Return what is in a folder, in no order; empty when the folder does not exist."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Force a folder's entries to the medium."""
        ...

    def touch(self, path: Path, mtime_s: float) -> None:
        """Set a file's time of last use."""
        ...

    def space(self, path: Path) -> Space:
        """Return the room on the volume."""
        ...

    def lock(self, path: Path) -> Lock:
        """Take an exclusive lock on a file; FileLocked (storage/fs.py) names path and holder."""
        ...
