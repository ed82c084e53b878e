"""An open file of a FaultDisk."""

from __future__ import annotations

import errno as errnos
from typing import TYPE_CHECKING

from .faults import system_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .disk import FaultDisk
    from .medium import FileNode


class DiskFile:
    """Implements ``samovar.storage.filesystem.OpenFile``. As with descriptors, the file outlives its name."""

    def __init__(self, disk: FaultDisk, path: Path, node: FileNode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._writable = writable
        self._closed = False
        node.handles += 1

    def write(self, segments: Sequence[memoryview], offset: int) -> int:
        data = b"".join(segment.cast("B") for segment in segments)
        self._disk.begin("write", self._path, size_bytes=len(data))
        with self._disk.mutex:
            self._check(writing=True)
            count = self._disk.grow(self._node, offset, len(data))
            self._node.write(offset, data[:count])
            self._node.mtime_s = self._disk.now_s()
            return count

    def read(self, segments: Sequence[memoryview], offset: int) -> int:
        views = [segment.cast("B") for segment in segments]
        wanted = sum(map(len, views))
        self._disk.begin("read", self._path, size_bytes=wanted)
        with self._disk.mutex:
            self._check(writing=False)
            if self._disk.short_read_bytes is not None:
                wanted = min(wanted, self._disk.short_read_bytes)
            data = bytes(self._node.data[offset : offset + wanted])
        start = 0
        for view in views:
            part = data[start : start + len(view)]
            view[: len(part)] = part
            start += len(part)
        return len(data)

    def size(self) -> int:
        with self._disk.mutex:
            self._check(writing=self._writable)
            return len(self._node.data)

    def sync(self) -> None:
        try:
            self._disk.begin("sync", self._path)
        except OSError:
            with self._disk.mutex:
                self._node.lose_pending()
            raise
        with self._disk.mutex:
            self._check(writing=self._writable)
            self._node.sync()

    def close(self) -> None:
        with self._disk.mutex:
            if not self._closed:
                self._closed = True
                self._node.handles -= 1
                self._disk.release(self._node)

    def _check(self, *, writing: bool) -> None:
        if self._closed or writing != self._writable:
            raise system_error(errnos.EBADF, self._path)
