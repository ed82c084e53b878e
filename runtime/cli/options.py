"""Options that several commands share, and from parsed arguments to a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import FlagValue, load

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ..config import Loaded

# How a flag is written, the key that it sets, its placeholder and its help.
SERVE_FLAGS = (
    ("--host", "server.host", "HOST", "address to listen on"),
    ("--port", "server.port", "PORT", "port to listen on; 0 takes a free one"),
    ("--ssd", "cache.ssd.dir", "DIR|off", "folder of the disk cache, or off"),
    ("--ram", "cache.ram.max", "SIZE", 'size of the memory cache, like 8GiB; "0" switches it off'),
    ("--kv", "kv.scheme", "SCHEME", "bf16, kv8, kv4, config or turbo:k8v3"),
    ("--batch", "lanes.batch", "N", "rows decoded together"),
)
MODEL = ("MODEL", "model.path")


def add_config_options(parser: ArgumentParser) -> None:
    """Let a command take ``--config`` and ``--set``."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="TOML file; may be repeated, later ones win",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="KEY=VALUE",
        help="one setting, like lanes.queue=8; may be repeated, wins over files and variables",
    )


def load_config(args: Namespace) -> Loaded:
    """Load what the arguments of any command ask for, over the environment. Raises ConfigError."""
    given = [
        (name, key, getattr(args, name.lstrip("-").lower(), None)) for name, key, *_ in (MODEL, *SERVE_FLAGS)
    ]
    flags = [FlagValue(name, key, text) for name, key, text in given if text is not None]
    return load(args.config, os.environ, args.assignments, flags)
