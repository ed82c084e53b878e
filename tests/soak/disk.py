"""The cache directory, looked at from outside the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samovar.runtime.cli.cache_survey import survey
from samovar.runtime.cli.cache_verify import verify
from samovar.storage.fs import OsFilesystem

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

Stored = frozenset[tuple[str, bytes]]
ID_BYTES = 4


def stored(root: Path) -> Stored:
    """Return namespace and token ids of every file that can be used."""
    if not root.exists():
        return frozenset()
    found = survey(OsFilesystem(), root).found()
    return frozenset((each.entry.namespace, each.entry.tokens.to_bytes()) for each in found)


def vanished(before: Stored, now: Stored) -> list[int]:
    """Return the lengths, in tokens, of what was there and is no longer, nor part of a longer one."""
    return [
        len(ids) // ID_BYTES
        for space, ids in before - now
        if not any(other == space and longer.startswith(ids) for other, longer in now)
    ]


def kept_bytes(root: Path) -> int:
    """Return the bytes of cache files and half-written ones; a file may vanish while they are counted."""
    total = 0
    for kind in ("kv", "tmp"):
        for path in root.rglob(f"*.{kind}"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
    return total


def left_over(root: Path) -> list[str]:
    """Return what no server at rest leaves: half-written files, and anything that is not known here."""
    known = {"LOCK", "identity.json"}
    files = (path for path in root.rglob("*") if path.is_file())
    return [str(path.relative_to(root)) for path in files if path.suffix != ".kv" and path.name not in known]


def check_whole(root: Path, tally: Tally) -> None:
    """Read every file to its last byte, as ``samovar cache verify`` does."""
    if not root.exists():
        return
    verdict = verify(OsFilesystem(), root, lambda _: None, None)
    if not verdict.passed or verdict.outdated:
        tally.wrong(f"samovar cache verify: {verdict}")
    tally.count(tally.notes, "files verified", verdict.good.files)
