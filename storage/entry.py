"""A checkpoint file as the directory knows it, how it is named, and where it lies.

``<root>/LOCK``, ``<root>/quarantine/``, and for each identity ``<root>/<identity>/identity.json``, ``…/tmp/``
and ``…/<namespace folder>/<id>.kv`` (INTERFACE §6). Names only find candidates: what a file holds is what its
header says, compared as namespace and token ids. Nothing here touches a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from blake3 import blake3

if TYPE_CHECKING:
    from pathlib import Path

    from .spec import CheckpointSpec
    from .tokens import TokenIds

LOCK_NAME: Final = "LOCK"
QUARANTINE_NAME: Final = "quarantine"
TEMP_NAME: Final = "tmp"
TEMP_SUFFIX: Final = ".tmp"
FILE_SUFFIX: Final = ".kv"
BASE_FOLDER: Final = "base"
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One durable checkpoint file. ``last_used_s`` is its mtime, Unix seconds: the order of use."""

    id: str
    path: Path
    namespace: str
    tokens: TokenIds
    file_bytes: int
    trimmable: bool
    reusable_from: int
    last_used_s: float

    def serves(self, length: int) -> bool:
        """Whether the first ``length`` tokens can be served from it."""
        longest = len(self.tokens)
        return length == longest or (self.trimmable and self.reusable_from <= length < longest)


def entry_of(path: Path, spec: CheckpointSpec, file_bytes: int, last_used_s: float) -> StoredEntry:
    """Return the entry for the container of ``spec`` at ``path``, whose stem is the id."""
    return StoredEntry(
        id=path.name.removesuffix(FILE_SUFFIX),
        path=path,
        namespace=spec.namespace,
        tokens=spec.tokens,
        file_bytes=file_bytes,
        trimmable=spec.trimmable,
        reusable_from=spec.reusable_from,
        last_used_s=last_used_s,
    )


def digest(data: bytes) -> str:
    """Return 128 bits of BLAKE3 in hexadecimal: the same in every process, on every machine."""
    return blake3(data).hexdigest(length=_DIGEST_BYTES)


def key_digest(namespace: str, tokens: TokenIds) -> str:
    """Return the digest of a checkpoint's key: length of the namespace, namespace, token ids."""
    name = namespace.encode("utf-8", "surrogatepass")
    return digest(len(name).to_bytes(8, "little") + name + tokens.to_bytes())


def namespace_folder(namespace: str) -> str:
    """Return the folder's name for a namespace: ``base`` for the model itself, else a digest."""
    return digest(namespace.encode("utf-8", "surrogatepass")) if namespace else BASE_FOLDER
