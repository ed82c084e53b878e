"""``samovar cache ls|show|du|verify|gc|clear``: an SSD cache folder, offline.

``ls``, ``show``, ``du`` and a plain ``verify`` only read, also beside a running server. The others hold the
folder's lock, and refuse while anybody else does. Neither MLX nor aiohttp is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable


def command(name: str) -> Callable[[Namespace], int]:
    """Return the function that runs one of them."""

    def run(args: Namespace) -> int:
        from .cache_actions import ACTIONS  # noqa: PLC0415 - loads numpy and the file format

        return ACTIONS[name](args)

    return run
