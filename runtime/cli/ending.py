"""How a process that ran a model ends."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End the process without finalising the interpreter; everything must be stopped and written by now.

    A thread that used MLX takes the GIL once more in a destructor after Python has joined it. If the
    interpreter is being finalised by then, that is an abort (seen as exit code 134).
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it may have left
            stream.flush()
    os._exit(code)
