"""How a key of the configuration is declared: a dataclass field that knows its kind, default and meaning."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from .kinds import Kind

T = TypeVar("T")
GIB = 2**30
MIB = 2**20

# What shells and browsers would expand must not become the name of a folder in the working directory.
PATH_PATTERN = r"(?!file:)[^$\x00-\x1f\x7f]+"


def key(kind: Kind[Any], default: T, doc: str, *, secret: bool = False) -> T:
    """Declare a key. ``secret`` values are never printed."""
    metadata = {"kind": kind, "doc": doc, "secret": secret, "default": default}
    if isinstance(default, Hashable):
        return cast("T", field(default=default, metadata=metadata))
    return cast("T", field(default_factory=lambda: default, metadata=metadata))
