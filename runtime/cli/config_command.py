"""``samovar config check|show|schema``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ..config.render import json_schema, to_json, to_toml
from .options import load_config

if TYPE_CHECKING:
    from argparse import Namespace


def check(args: Namespace) -> int:
    """Say "ok" or raise ConfigError; warnings go to stderr."""
    for warning in load_config(args).warnings:
        sys.stderr.write(f"samovar: warning: {warning}\n")
    sys.stdout.write("ok\n")
    return 0


def show(args: Namespace) -> int:
    """Print the effective values."""
    loaded = load_config(args)
    sys.stdout.write(_pretty(to_json(loaded)) if args.json else to_toml(loaded))
    return 0


def schema(_args: Namespace) -> int:
    """Print the JSON Schema."""
    sys.stdout.write(_pretty(json_schema()))
    return 0


def _pretty(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
