"""What the SSD directory can refuse.

DirectoryError
├─ NoRoom              cap, free-space floor or full disk leave no room for a checkpoint
├─ DirectoryClosed     used before ``open`` or after ``close``
└─ ReservationVoid     a commit of what was cleared, abandoned or committed meanwhile

A second owner gets FileLocked (storage/fs.py). Errors of the disk leave as OSError.
"""

from __future__ import annotations

import errno
from typing import Final, Literal, TypeAlias

RoomReason: TypeAlias = Literal["cap", "floor", "disk_full"]
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DirectoryError(Exception):
    """The directory cannot do it. ``code`` is a word for figures."""

    code = "directory_error"
    retryable = False


class NoRoom(DirectoryError):
    """A checkpoint is not stored for want of room; ``reason`` says which limit. Serving goes on."""

    code = "no_room"
    retryable = True

    def __init__(self, reason: RoomReason, message: str) -> None:
        super().__init__(message)
        self.reason: RoomReason = reason


class DirectoryClosed(DirectoryError):
    """The directory is not open."""

    code = "directory_closed"


class ReservationVoid(DirectoryError):
    """The reservation is not, or no longer, one of this directory's; what it published is removed."""

    code = "reservation_void"


def is_disk_full(error: BaseException | None) -> bool:
    """Whether ``error``, or what it was raised from, says that the volume or the quota is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False
