"""Whether other threads of this process run: what a test waits for instead of a while."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_RUNS = b"RD"
"""Running or waiting for a core, or for a disk."""
CAN_TELL = sys.platform == "linux"


def threads_at_work() -> bool:
    """Return whether any thread but this one runs, libraries' own included; only where ``CAN_TELL``.

    One that waits for this thread's interpreter lock counts: reading a file gives it up, which wakes that one
    before the file is read. A thread that waits for an event or a queue does not count until it is woken.
    """
    own = str(threading.get_native_id())
    return any(_state(task) in _RUNS for task in _TASKS.iterdir() if task.name != own)


def _state(task: Path) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        return (task / "stat").read_bytes().rpartition(b") ")[2][:1]
    return b"X"
