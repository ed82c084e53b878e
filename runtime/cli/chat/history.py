"""What was typed before: a private file, one JSON string a line, oldest first."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Final, cast

from ....storage.fs import PRIVATE_FILE_MODE, make_private_folder, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

KEPT: Final = 1000
_SLACK: Final = 2


class History:
    """The file at ``path`` (0600, its folder 0700). Several processes may add to it at a time.

    It serves convenience only: where it cannot be read or written, nothing is remembered, and ``failed`` is
    true.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.failed = False

    def load(self) -> list[str]:
        """Return the last KEPT entries, and cut the file when it has grown far past that."""
        try:
            lines = self._path.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError:
            self.failed = True
            return []
        entries = [entry for line in lines if (entry := _entry(line)) is not None]
        if len(lines) > _SLACK * KEPT:
            data = "".join(map(_line, entries[-KEPT:])).encode()
            with contextlib.suppress(OSError):
                write_atomically(self._path, data)
        return entries[-KEPT:]

    def add(self, entry: str) -> None:
        """Append an entry."""
        try:
            make_private_folder(self._path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, PRIVATE_FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), PRIVATE_FILE_MODE)
                file.write(_line(entry).encode())
        except OSError:
            self.failed = True


def _line(entry: str) -> str:
    return json.dumps(entry) + "\n"  # ASCII, so that no separator of lines is left in it


def _entry(line: str) -> str | None:
    try:
        found = cast("object", json.loads(line))
    except ValueError:
        return None
    return found if isinstance(found, str) else None
