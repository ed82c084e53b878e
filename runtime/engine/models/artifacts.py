"""Content hashes of large files, remembered by file revision (seed §5.7, ArtifactIdentityStore).

A revision is path behind links, device, inode, size and both time stamps in nanoseconds: a file of the same
size put in its place, or a link that points elsewhere, is another revision. The memo only saves time: where
it cannot be read or written, files are hashed again.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final, cast

from blake3 import blake3

from ....storage.fs import make_private_folder, write_atomically
from ..errors import ModelUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

HASH_HEX: Final = 64
MEMO_ENTRIES: Final = 4096
_ATTEMPTS: Final = 3
_CHUNK_BYTES: Final = 16 << 20
_VERSION: Final = 1


def hash_files(paths: Iterable[Path], memo: Path | None) -> dict[Path, str]:
    """Return the BLAKE3 hash of each file in hexadecimal; ``memo`` is a JSON file, created when needed.

    Raises ModelUnreadable when a file cannot be read, or changes each time while it is being read.
    """
    known = _read_memo(memo)
    fresh: dict[str, str] = {}
    hashes: dict[Path, str] = {}
    for path in paths:
        revision = _revision(path)
        if revision not in known:
            revision, known[revision] = _hash_settled(path, revision)
            fresh[revision] = known[revision]
        hashes[path] = known[revision]
    if memo is not None and fresh:
        _write_memo(memo, fresh)
    return hashes


def _hash_settled(path: Path, revision: str) -> tuple[str, str]:
    """Hash a file whose revision is the same before and after; return revision and hash."""
    for _ in range(_ATTEMPTS):
        digest = _hash(path)
        after = _revision(path)
        if after == revision:
            return revision, digest
        revision = after
    raise ModelUnreadable(f"{path} keeps changing while it is being read")


def _hash(path: Path) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    chunk = memoryview(bytearray(_CHUNK_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(chunk):
                hasher.update(chunk[:count])
    except OSError as error:
        raise ModelUnreadable(f"{path}: cannot be read: {error}") from error
    return hasher.hexdigest()


def _revision(path: Path) -> str:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except OSError as error:
        raise ModelUnreadable(f"{path}: cannot be read: {error}") from error
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join((*map(str, numbers), str(real)))


def _read_memo(memo: Path | None) -> dict[str, str]:
    """Return what the memo holds; nothing when it is missing, unreadable or not a memo."""
    if memo is None:
        return {}
    try:
        content = cast("object", json.loads(memo.read_bytes()))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    values = cast("dict[str, object]", content)
    hashes = values.get("hashes")
    if values.get("version") != _VERSION or not isinstance(hashes, dict):
        return {}
    found = cast("dict[str, object]", hashes)
    return {key: each for key, each in found.items() if isinstance(each, str) and len(each) == HASH_HEX}


def _write_memo(memo: Path, fresh: dict[str, str]) -> None:
    """Add to what is there now, since another process may have written meanwhile; oldest entries go first."""
    hashes = {**_read_memo(memo), **fresh}
    kept = dict(list(hashes.items())[-MEMO_ENTRIES:])
    with contextlib.suppress(OSError):
        make_private_folder(memo.parent)
        write_atomically(memo, json.dumps({"version": _VERSION, "hashes": kept}).encode())
