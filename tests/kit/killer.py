"""A real file system on which the process kills itself at a chosen operation: SIGKILL, no clean-up."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from samovar.storage.fs import OsFilesystem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from samovar.storage.filesystem import FileEntry, Filesystem, Lock, OpenFile, Space

When = Literal["before", "torn", "after"]
KINDS = ("create", "write", "sync", "rename", "sync_folder", "unlink", "list", "open", "read", "touch")


@dataclass
class KillPoint:
    """Die at the ``number``-th operation of ``kind``: before it, half-way through (writes), or after it."""

    kind: str
    number: int
    when: When = "before"

    def __post_init__(self) -> None:
        self._seen = 0
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str) -> KillPoint:
        """Read ``kind:number:when``."""
        kind, number, when = text.split(":")
        assert kind in KINDS
        assert when in {"before", "torn", "after"}
        return cls(kind, int(number), when)  # type: ignore[arg-type]

    def reached(self, kind: str) -> bool:
        """Count an operation; whether it is the one."""
        if kind != self.kind:
            return False
        with self._lock:
            self._seen += 1
            return self._seen == self.number

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


class KillingFile:
    def __init__(self, file: OpenFile, point: KillPoint) -> None:
        self._file = file
        self._point = point

    def write(self, segments: Sequence[memoryview], offset: int) -> int:
        here = self._point.reached("write")
        if here and self._point.when == "torn":
            self._file.write([segment[: len(segment) // 2] for segment in segments[:1]], offset)
        if here and self._point.when != "after":
            self._point.die()
        written = self._file.write(segments, offset)
        if here:
            self._point.die()
        return written

    def read(self, segments: Sequence[memoryview], offset: int) -> int:
        if self._point.reached("read"):
            self._point.die()
        return self._file.read(segments, offset)

    def size(self) -> int:
        return self._file.size()

    def sync(self) -> None:
        here = self._point.reached("sync")
        if here and self._point.when != "after":
            self._point.die()
        self._file.sync()
        if here:
            self._point.die()

    def close(self) -> None:
        self._file.close()


class KillingFilesystem:
    """``storage.filesystem.Filesystem`` over the real one."""

    def __init__(self, point: KillPoint, inner: Filesystem | None = None) -> None:
        self._inner = inner or OsFilesystem()
        self._point = point

    def create(self, path: Path) -> OpenFile:
        here = self._begins("create")
        file = KillingFile(self._inner.create(path), self._point)
        self._ends(here)
        return file

    def open(self, path: Path) -> OpenFile:
        here = self._begins("open")
        file = KillingFile(self._inner.open(path), self._point)
        self._ends(here)
        return file

    def prefetch(self, path: Path, size_bytes: int) -> None:
        self._inner.prefetch(path, size_bytes)

    def rename(self, source: Path, target: Path) -> None:
        here = self._begins("rename")
        self._inner.rename(source, target)
        self._ends(here)

    def unlink(self, path: Path) -> None:
        here = self._begins("unlink")
        self._inner.unlink(path)
        self._ends(here)

    def remove_folder(self, path: Path) -> None:
        self._inner.remove_folder(path)

    def make_folder(self, path: Path) -> None:
        self._inner.make_folder(path)

    def list(self, path: Path) -> list[FileEntry]:
        here = self._begins("list")
        entries = self._inner.list(path)
        self._ends(here)
        return entries

    def sync_folder(self, path: Path) -> None:
        here = self._begins("sync_folder")
        self._inner.sync_folder(path)
        self._ends(here)

    def touch(self, path: Path, mtime_s: float) -> None:
        here = self._begins("touch")
        self._inner.touch(path, mtime_s)
        self._ends(here)

    def space(self, path: Path) -> Space:
        return self._inner.space(path)

    def lock(self, path: Path) -> Lock:
        return self._inner.lock(path)

    def _begins(self, kind: str) -> bool:
        here = self._point.reached(kind)
        if here and self._point.when != "after":
            self._point.die()
        return here

    def _ends(self, here: bool) -> None:
        if here:
            self._point.die()
