"""``samovar version``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..version import foundations, version

if TYPE_CHECKING:
    from argparse import Namespace


def run(_args: Namespace) -> int:
    """Print one "name version" line each, Samovar first."""
    for name, found in {"samovar": version(), **foundations()}.items():
        sys.stdout.write(f"{name} {found}\n")
    return 0
