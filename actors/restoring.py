"""Reading one entry's file into a checkpoint, on a reader's thread. Nothing is taken on trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage.container import read_header, read_tensors
from ..storage.container_errors import ContainerChanged, ContainerError, RestoreCancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime.engine.checkpoint import Checkpoint, Restorer
    from ..storage.container import StoredCheckpoint
    from ..storage.entry import StoredEntry
    from ..storage.filesystem import Filesystem


class EntryMismatch(ContainerError):
    """The file is whole, and is not what the index takes it for."""

    code = "entry_mismatch"


def read_entry(
    fs: Filesystem,
    identity: str,
    entry: StoredEntry,
    restorer: Restorer,
    cancelled: Callable[[], bool],
    *,
    verify: bool,
) -> tuple[Checkpoint, int]:
    """Return the checkpoint of an entry and how many bytes of tensors were read. Blocks.

    Header and tokens are always verified and compared with the entry, the tensors' hashes with ``verify``.
    ``cancelled`` is asked between blocks. Raises OSError, ContainerError (EntryMismatch and RestoreCancelled
    among them), and what the restorer raises.
    """
    try:
        return _read(fs, identity, entry, restorer, cancelled, verify=verify)
    except ContainerChanged:
        # A newer file of the same prefix took the name between header and tensors.
        return _read(fs, identity, entry, restorer, cancelled, verify=verify)


def _read(
    fs: Filesystem,
    identity: str,
    entry: StoredEntry,
    restorer: Restorer,
    cancelled: Callable[[], bool],
    *,
    verify: bool,
) -> tuple[Checkpoint, int]:
    if cancelled():
        raise RestoreCancelled(entry.path)
    stored = read_header(fs, entry.path)
    _compare(entry, stored, identity)
    target = restorer.allocate(stored.header.spec)
    segments = target.segments()
    read_bytes = read_tensors(fs, entry.path, stored, segments, verify=verify, cancelled=cancelled)
    return target.finish(), read_bytes


def _compare(entry: StoredEntry, stored: StoredCheckpoint, identity: str) -> None:
    """Raise EntryMismatch unless the file is of this identity and can serve what the entry promises."""
    header, spec = stored.header, stored.header.spec
    if header.identity != identity:
        raise EntryMismatch(entry.path, f"holds a state of {header.identity}, not of {identity}")
    if spec.namespace != entry.namespace:
        raise EntryMismatch(entry.path, "holds a state of another namespace")
    if spec.tokens != entry.tokens:
        raise EntryMismatch(entry.path, "holds a state of other tokens")
    if entry.trimmable and not spec.trimmable:
        raise EntryMismatch(entry.path, "holds a state that cannot be trimmed")
    if spec.reusable_from > entry.reusable_from:
        raise EntryMismatch(entry.path, f"serves no prefix below {spec.reusable_from} tokens")
