"""Removing files that may refuse to go: what cannot be unlinked is counted, left alone a while, tried again.

One file that is stuck (EPERM, EBUSY) must neither stop the others from going nor be tried at every turn. One
owner; every method blocks on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .filesystem import Filesystem


class Removals:
    """Unlinks files. ``stuck_bytes`` are those of files that are of no use and still there."""

    def __init__(self, fs: Filesystem, clock: Callable[[], float], retry_s: float) -> None:
        self._fs = fs
        self._clock = clock
        self._retry_s = retry_s
        self._not_before: dict[Path, float] = {}
        self._stuck: dict[Path, int] = {}
        self.stuck_bytes = 0
        self.failures = 0

    def unlink(self, path: Path) -> bool:
        """Remove a file that is to be kept if that fails; whether it is gone. Never raises OSError."""
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            pass
        except OSError:
            self.failures += 1
            self._not_before[path] = self._clock() + self._retry_s
            return False
        self._not_before.pop(path, None)
        return True

    def rests(self, path: Path) -> bool:
        """Whether removing it failed a short while ago, so that another one should go first."""
        due_s = self._not_before.get(path)
        return due_s is not None and self._clock() < due_s

    def any_rests(self) -> bool:
        """Whether ``rests`` is true of anything."""
        return any(map(self.rests, self._not_before))

    def discard(self, path: Path, file_bytes: int) -> bool:
        """Remove a file that is of no use any more, now or later; whether it is gone now."""
        if self.unlink(path):
            return True
        if path not in self._stuck:
            self._stuck[path] = file_bytes
            self.stuck_bytes += file_bytes
        return False

    def retry(self) -> int:
        """Try what is due once more; returns the bytes freed."""
        before = self.stuck_bytes
        for path in [path for path in self._stuck if not self.rests(path)]:
            if self.unlink(path):
                self.stuck_bytes -= self._stuck.pop(path)
        return before - self.stuck_bytes

    def holds(self, path: Path) -> bool:
        """Whether a file that is of no use still has this name."""
        return path in self._stuck
