"""``samovar serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .options import load_config

if TYPE_CHECKING:
    from argparse import Namespace


def run(args: Namespace) -> int:
    """Serve until told to stop; return the exit code of the server."""
    loaded = load_config(args)
    from ..logs import configure_logging, get_logger  # noqa: PLC0415 - only needed once the config is good

    configure_logging(loaded.config.logging)
    for warning in loaded.warnings:
        get_logger("samovar.config").warning("setting_ignored", key=warning.key, reason=str(warning))
    from ..app import serve  # noqa: PLC0415 - loads MLX and aiohttp

    return serve(loaded.config)
