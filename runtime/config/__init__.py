"""Configuration: what can be set, where each value came from, and what is wrong with it.

Imports neither MLX nor aiohttp, so the command line starts fast.
"""

from .errors import ConfigError, Origin, Problem
from .folders import cache_folder, kv_folder, state_folder
from .load import Loaded, load
from .schema import (
    Cache,
    Checkpoint,
    Config,
    Kv,
    Lanes,
    Logging,
    Metrics,
    Model,
    Ram,
    Server,
    Ssd,
)
from .sources import FlagValue

__all__ = [
    "Cache",
    "Checkpoint",
    "Config",
    "ConfigError",
    "FlagValue",
    "Kv",
    "Lanes",
    "Loaded",
    "Logging",
    "Metrics",
    "Model",
    "Origin",
    "Problem",
    "Ram",
    "Server",
    "Ssd",
    "cache_folder",
    "kv_folder",
    "load",
    "state_folder",
]
