"""``samovar serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .complaints import report
from .ending import end_process
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
        code = serve(loaded.config, lambda: load_config(args))
    except Exception as error:  # noqa: BLE001 - raised again unless it is of a kind users can mend
        code = report(error)
    end_process(code)
