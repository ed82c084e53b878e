"""``samovar serve``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from .complaints import report
from .options import load_config

if TYPE_CHECKING:
    from argparse import Namespace


def run(args: Namespace) -> int:
    """Serve until told to stop, then end the process with the server's exit code."""
    loaded = load_config(args)
    from ..logs import configure_logging, get_logger  # noqa: PLC0415 - only needed once the config is good

    configure_logging(loaded.config.logging)
    for warning in loaded.warnings:
        get_logger("samovar.config").warning("setting_ignored", key=warning.key, reason=str(warning))
    from ..serve import serve  # noqa: PLC0415 - loads MLX and aiohttp

    try:
        code = serve(loaded.config)
    except Exception as error:  # noqa: BLE001 - raised again unless it is of a kind users can mend
        code = report(error)
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process without finalising the interpreter; everything is stopped and written by now.

    A thread that used MLX takes the GIL once more in a destructor after Python has joined it. If the
    interpreter is being finalised by then, that is an abort (seen as exit code 134).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
