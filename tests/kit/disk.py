"""A file system in memory that fails, fills up, dawdles and loses power on purpose.

``stop_at(n)`` pulls the plug at the n-th operation: from then on every operation raises PowerLoss.
``crash(seed)`` returns the disk that a start after a power loss now would find (tests/kit/medium.py says what
it holds), ``kill()`` the one after only the process died; both leave this one as it is. Pulling the plug
before an operation covers all there is: what an unfinished operation might leave is among what the next plug
point may leave, since nothing is durable before a sync has returned.
"""

from __future__ import annotations

import copy
import errno as errnos
import itertools
import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from samovar.storage.filesystem import FileEntry, Space
from samovar.storage.fs import FileLocked

from .disk_file import DiskFile
from .faults import FaultGate, system_error
from .medium import Change, FileNode, FolderNode, Medium

if TYPE_CHECKING:
    from collections.abc import Callable

UNLIMITED_BYTES = 1 << 50


class FaultDisk(FaultGate):
    """Implements ``samovar.storage.filesystem.Filesystem``. Any thread.

    ``short_write_bytes`` and ``short_read_bytes`` bound what one call moves. ``capacity_bytes`` is the sum of
    all files' lengths that fits; deleted files count while they are open. ``holder`` is whom a lock names.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        clock: Callable[[], float] | None = None,
        holder: str = "4711",
    ) -> None:
        super().__init__()
        ticks = itertools.count(1)
        self.capacity_bytes = capacity_bytes
        self.short_write_bytes: int | None = None
        self.short_read_bytes: int | None = None
        self.holder = holder
        self.used_bytes = 0
        self._clock = clock or (lambda: next(ticks) / 1000)
        self._medium = Medium()
        self._locks: dict[Path, _DiskLock] = {}

    # -- what a test sets up and looks at

    def crash(self, seed: int) -> FaultDisk:
        """Return the disk as a start finds it after a power loss now; locks are free."""
        with self.mutex:
            medium = copy.deepcopy(self._medium).after_power_loss(Random(seed))
            return self._successor(medium)

    def kill(self) -> FaultDisk:
        """Return the disk as it is when only the process dies: all written is there, synced or not."""
        with self.mutex:
            return self._successor(copy.deepcopy(self._medium))

    def _successor(self, medium: Medium) -> FaultDisk:
        after = FaultDisk(capacity_bytes=self.capacity_bytes, clock=self._clock, holder=self.holder)
        after._medium = medium
        files = {id(node): node for _, node in walk(medium.root, Path("/"))}
        for node in files.values():
            node.handles = 0
        after.used_bytes = sum(len(node.data) for node in files.values())
        return after

    def files(self) -> dict[Path, bytes]:
        """Return every file with its bytes; no operation."""
        with self.mutex:
            return {path: bytes(node.data) for path, node in walk(self._medium.root, Path("/"))}

    def put(self, path: Path, data: bytes, *, mtime_s: float | None = None) -> None:
        """Make a file with its folders, all durable; no operation, no fault."""
        with self.mutex:
            folder = self._made_folder(path.parent)
            old = folder.entries.get(path.name)
            if isinstance(old, FileNode):
                self._unlink(old)
            node = FileNode(self._clock() if mtime_s is None else mtime_s)
            node.write(0, data)
            node.sync()
            self.used_bytes += len(data)
            self._medium.change(Change(folder, path.name, node))
            self._medium.sync_folder(folder)

    # -- the port

    def create(self, path: Path) -> DiskFile:
        self.begin("create", path)
        with self.mutex:
            folder = self._folder(path.parent)
            if path.name in folder.entries:
                raise system_error(errnos.EEXIST, path)
            node = FileNode(self._clock())
            self._medium.change(Change(folder, path.name, node))
            return DiskFile(self, path, node, writable=True)

    def open(self, path: Path) -> DiskFile:
        self.begin("open", path)
        with self.mutex:
            return DiskFile(self, path, self._file(path), writable=False)

    def prefetch(self, path: Path, size_bytes: int) -> None:
        """Everything is in memory."""

    def rename(self, source: Path, target: Path) -> None:
        self.begin("rename", source, target=target)
        with self.mutex:
            node = self._node(source)
            origin, folder = self._folder(source.parent), self._folder(target.parent)
            replaced = folder.entries.get(target.name)
            if isinstance(replaced, FolderNode):
                raise system_error(errnos.EISDIR, target)
            if replaced is node:
                return
            self._medium.change(Change(folder, target.name, node), Change(origin, source.name, None))
            if replaced is not None:
                self._unlink(replaced)

    def unlink(self, path: Path) -> None:
        self.begin("unlink", path)
        with self.mutex:
            node = self._file(path)
            self._medium.change(Change(self._folder(path.parent), path.name, None))
            self._unlink(node)

    def remove_folder(self, path: Path) -> None:
        self.begin("remove_folder", path)
        with self.mutex:
            if self._folder(path).entries:
                raise system_error(errnos.ENOTEMPTY, path)
            self._medium.change(Change(self._folder(path.parent), path.name, None))

    def make_folder(self, path: Path) -> None:
        for folder in (*reversed(path.parents), path):
            with self.mutex:
                present = self._lookup(folder)
            if present is None or folder == path:
                self.begin("make_folder", folder)
                with self.mutex:
                    self._made_folder(folder)

    def list(self, path: Path) -> list[FileEntry]:
        self.begin("list", path)
        with self.mutex:
            node = self._lookup(path)
            if node is None:
                return []
            return [_entry(name, child) for name, child in self._folder(path).entries.items()]

    def sync_folder(self, path: Path) -> None:
        self.begin("sync_folder", path)
        with self.mutex:
            self._medium.sync_folder(self._folder(path))

    def touch(self, path: Path, mtime_s: float) -> None:
        self.begin("touch", path)
        with self.mutex:
            self._node(path).mtime_s = mtime_s

    def space(self, path: Path) -> Space:
        self.begin("space", path)
        with self.mutex:
            self._folder(path)
            total = self.capacity_bytes if self.capacity_bytes is not None else UNLIMITED_BYTES
            return Space(max(0, total - self.used_bytes), total)

    def lock(self, path: Path) -> _DiskLock:
        self.begin("lock", path)
        with self.mutex:
            if path in self._locks:
                raise FileLocked(f"{path} is locked by process {self.holder}")
            folder = self._folder(path.parent)
            if path.name not in folder.entries:
                self._medium.change(Change(folder, path.name, FileNode(self._clock())))
            self._locks[path] = _DiskLock(self._locks, path)
            return self._locks[path]

    # -- what the open files use

    def grow(self, node: FileNode, offset: int, wanted_bytes: int) -> int:
        """Return how many of the bytes fit and account for them; ENOSPC when none does. Locked."""
        if self.short_write_bytes is not None:
            wanted_bytes = min(wanted_bytes, self.short_write_bytes)
        if self.capacity_bytes is not None:
            end = len(node.data) + max(0, self.capacity_bytes - self.used_bytes)
            fits = max(0, end - offset)
            if not fits and wanted_bytes:
                raise OSError(errnos.ENOSPC, os.strerror(errnos.ENOSPC))
            wanted_bytes = min(wanted_bytes, fits)
        self.used_bytes += max(0, offset + wanted_bytes - len(node.data))
        return wanted_bytes

    def release(self, node: FileNode) -> None:
        """Give back the room of a file that nothing refers to any more. Locked."""
        if not node.links and not node.handles:
            self.used_bytes -= len(node.data)

    def now_s(self) -> float:
        return self._clock()

    # -- nodes; called locked

    def _lookup(self, path: Path) -> FileNode | FolderNode | None:
        node: FileNode | FolderNode = self._medium.root
        for name in path.parts[1:]:
            child = node.entries.get(name) if isinstance(node, FolderNode) else None
            if child is None:
                return None
            node = child
        return node

    def _node(self, path: Path) -> FileNode | FolderNode:
        node = self._lookup(path)
        if node is None:
            raise system_error(errnos.ENOENT, path)
        return node

    def _file(self, path: Path) -> FileNode:
        node = self._node(path)
        if isinstance(node, FolderNode):
            raise system_error(errnos.EISDIR, path)
        return node

    def _folder(self, path: Path) -> FolderNode:
        node = self._node(path)
        if isinstance(node, FileNode):
            raise system_error(errnos.ENOTDIR, path)
        return node

    def _made_folder(self, path: Path) -> FolderNode:
        if path.parent == path:
            return self._medium.root
        parent = self._made_folder(path.parent)
        if path.name not in parent.entries:
            self._medium.change(Change(parent, path.name, FolderNode(self._clock())))
            self._medium.sync_folder(parent)
        return self._folder(path)

    def _unlink(self, node: FileNode | FolderNode) -> None:
        if isinstance(node, FileNode):
            node.links -= 1
            self.release(node)


def walk(folder: FolderNode, at: Path) -> list[tuple[Path, FileNode]]:
    """Return every file beneath ``folder``, which is at ``at``."""
    found: list[tuple[Path, FileNode]] = []
    for name, node in sorted(folder.entries.items()):
        if isinstance(node, FolderNode):
            found += walk(node, at / name)
        else:
            found.append((at / name, node))
    return found


class _DiskLock:
    def __init__(self, locks: dict[Path, _DiskLock], path: Path) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        if self._locks.get(self._path) is self:
            del self._locks[self._path]


def _entry(name: str, node: FileNode | FolderNode) -> FileEntry:
    is_folder = isinstance(node, FolderNode)
    return FileEntry(name, is_folder, 0 if is_folder else len(node.data), node.mtime_s)
