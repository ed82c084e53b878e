"""The folder where files that fail their checks go, with the reason in their name; bounded, oldest out first.

``<root>/quarantine/<reason>~<identity>~<file name>``: a rename within the volume, which works on a full disk
and needs no further file. One owner, which holds the root's lock; every method blocks on the disk.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from .filesystem import Filesystem

MAX_FILES: Final = 256


class Quarantine:
    """Holds at most ``max_bytes`` in MAX_FILES files; a larger file is removed instead of moved."""

    def __init__(self, fs: Filesystem, folder: Path, max_bytes: int) -> None:
        self._fs = fs
        self._folder = folder
        self._max_bytes = max_bytes
        self._files: dict[str, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def load(self) -> None:
        """Take stock of what earlier runs left, and drop the oldest beyond the bound. OSError."""
        listed = sorted(self._fs.list(self._folder), key=lambda item: (item.mtime_s, item.name))
        self._files = {item.name: item.size_bytes for item in listed if not item.is_folder}
        self.bytes = sum(self._files.values())
        self.shrink(self.bytes - self._max_bytes)

    def admit(self, path: Path, file_bytes: int, identity: str, reason: str) -> None:
        """Move a file here, or remove it if it is too large to keep. OSError when neither can be done."""
        if file_bytes > self._max_bytes:
            self._fs.unlink(path)
            return
        self.shrink(self.bytes + file_bytes - self._max_bytes)
        while len(self._files) >= MAX_FILES and self._drop_oldest():
            pass
        self._fs.make_folder(self._folder)
        name = self._free_name(f"{reason}~{identity}~{path.name}")
        self._fs.rename(path, self._folder / name)
        self._files[name] = file_bytes
        self.bytes += file_bytes

    def shrink(self, wanted_bytes: int) -> int:
        """Remove the oldest until ``wanted_bytes`` are freed or none is left; returns the bytes freed.

        What cannot be removed stays, and is tried again the next time.
        """
        before = self.bytes
        while before - self.bytes < wanted_bytes and self._drop_oldest():
            pass
        return before - self.bytes

    def _drop_oldest(self) -> bool:
        """Remove the oldest file that can be removed; False when there is none."""
        name = next((name for name in self._files if self._remove(name)), None)
        if name is None:
            return False
        self.bytes -= self._files.pop(name)
        return True

    def _remove(self, name: str) -> bool:
        try:
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(self._folder / name)
        except OSError:
            return False
        return True

    def _free_name(self, name: str) -> str:
        names = itertools.chain((name,), (f"{name}~{count}" for count in itertools.count(2)))
        return next(free for free in names if free not in self._files)
