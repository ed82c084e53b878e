"""Where Samovar keeps its files when the configuration does not say."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's cache folder of Samovar, whether or not it exists.

    ``$XDG_CACHE_HOME/samovar`` where that is an absolute path, else ``~/Library/Caches/samovar`` on
    macOS and ``~/.cache/samovar`` elsewhere. Raises RuntimeError where the user has no home.
    """
    chosen = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    if Path(chosen).is_absolute():
        return Path(chosen) / "samovar"
    base = Path("Library/Caches") if sys.platform == "darwin" else Path(".cache")
    return Path.home() / base / "samovar"


def kv_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that ``cache.ssd.dir = "auto"`` stands for."""
    return cache_folder(environ) / "kv"


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's folder for what Samovar remembers between runs, whether or not it exists.

    ``$XDG_STATE_HOME/samovar`` where that is an absolute path, else ``~/Library/Application Support/samovar``
    on macOS and ``~/.local/state/samovar`` elsewhere. Raises RuntimeError where the user has no home.
    """
    chosen = (os.environ if environ is None else environ).get("XDG_STATE_HOME", "")
    if Path(chosen).is_absolute():
        return Path(chosen) / "samovar"
    base = Path("Library/Application Support") if sys.platform == "darwin" else Path(".local/state")
    return Path.home() / base / "samovar"
