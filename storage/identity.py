"""Whose state a cache folder holds: an id that names the folder, and the fields that explain it.

The id is the digest of model, weights, tokenizer, KV scheme and numerical environment (DESIGN §5). Two
identities never share a file. The fields are written beside the files, so that a start that finds only
another identity's folder can say which field changed.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import orjson

from .transfer import read_whole, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .filesystem import Filesystem

IDENTITY_FILE: Final = "identity.json"
RESERVED_NAMES: Final = frozenset({"LOCK", "quarantine"})
MAX_IDENTITY_FILE_BYTES: Final = 1 << 20
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Identity:
    """An id that is a folder's name, and named values that it stands for. ValueError for an impossible id."""

    id: str
    fields: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id) or self.id in RESERVED_NAMES:
            raise ValueError(f"{self.id!r} cannot be the name of an identity's folder")

    def differences(self, other: Identity) -> tuple[str, ...]:
        """Return the names of the fields that differ, in order of name; one that either lacks differs."""
        names = sorted({*self.fields, *other.fields})
        return tuple(name for name in names if self.fields.get(name) != other.fields.get(name))


def read_identity(fs: Filesystem, folder: Path) -> Identity | None:
    """Return what the folder says of itself; None when it says nothing, or nothing sensible. Blocks."""
    try:
        file = fs.open(folder / IDENTITY_FILE)
    except OSError:
        return None
    try:
        buffer = bytearray(min(file.size(), MAX_IDENTITY_FILE_BYTES))
        size_bytes = read_whole(file, [memoryview(buffer)], 0)
    except OSError:
        return None
    finally:
        file.close()
    return _parse(bytes(buffer[:size_bytes]))


def _parse(data: bytes) -> Identity | None:
    try:
        table: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(table, dict):
        return None
    known = cast("dict[str, object]", table)
    name, fields = known.get("id"), known.get("fields")
    if not isinstance(name, str) or not isinstance(fields, dict):
        return None
    pairs = cast("dict[str, object]", fields)
    try:
        return Identity(name, {key: str(value) for key, value in pairs.items()})
    except ValueError:
        return None


def write_identity(fs: Filesystem, folder: Path, temp_folder: Path, identity: Identity) -> None:
    """Describe the folder durably and atomically; nothing happens when it says the same already.

    Both folders must exist. Raises OSError. Blocks.
    """
    if read_identity(fs, folder) == identity:
        return
    table = {"id": identity.id, "fields": dict(identity.fields)}
    data = orjson.dumps(table, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
    temp = temp_folder / f"{IDENTITY_FILE}.tmp"
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(temp)
    file = fs.create(temp)
    try:
        write_whole(file, [memoryview(data)], 0)
        file.sync()
    finally:
        file.close()
    fs.rename(temp, folder / IDENTITY_FILE)
    fs.sync_folder(folder)
