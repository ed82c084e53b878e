"""Tiny checkpoints of known bytes, and a directory's whole write path in one call."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from samovar.storage.container import read_header, read_tensors, write_container
from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samovar.storage.container import StoredCheckpoint
    from samovar.storage.directory import CheckpointDirectory, Reservation
    from samovar.storage.entry import StoredEntry
    from samovar.storage.filesystem import Filesystem


def spec_of(
    ids: Iterable[int], namespace: str = "", *, trimmable: bool = True, reusable_from: int = 0, width: int = 4
) -> CheckpointSpec:
    """Return the spec of one plain layer: keys and values of ``width`` bytes a token."""
    tokens = TokenIds.of(ids)
    tensors = tuple(TensorSpec(name, "uint8", (len(tokens), width)) for name in ("keys", "values"))
    layer = LayerSpec("kv:plain", len(tokens), trimmable, reusable_from, {"heads": 1}, tensors)
    return CheckpointSpec(tokens, namespace, (layer,))


def content_of(spec: CheckpointSpec) -> list[bytes]:
    """Return the bytes of each tensor: they follow from key and place, so a mix-up shows."""
    key = spec.namespace.encode() + b"\0" + spec.tokens.to_bytes()
    return [
        hashlib.shake_128(key + str(place).encode()).digest(tensor.nbytes)
        for place, tensor in enumerate(spec.tensors())
    ]


def write_reserved(
    fs: Filesystem,
    directory: CheckpointDirectory,
    reservation: Reservation,
    spec: CheckpointSpec,
    created_s: float,
) -> list[StoredEntry]:
    """Write, publish and commit, or abandon and raise, as writer and archive do together."""
    try:
        stored = write_published(fs, directory, reservation, spec, created_s)
    except OSError as error:
        directory.abandon(reservation, error)
        raise
    return directory.commit(reservation, stored)


def write_published(
    fs: Filesystem,
    directory: CheckpointDirectory,
    reservation: Reservation,
    spec: CheckpointSpec,
    created_s: float,
) -> StoredCheckpoint:
    """Write and publish: what a writer does."""
    segments = [[memoryview(data)] for data in content_of(spec)]
    identity = directory.identity.id
    stored = write_container(fs, reservation.temp_path, identity, spec, segments, created_s=created_s)
    directory.publish(fs, reservation)
    return stored


def store(
    fs: Filesystem, directory: CheckpointDirectory, spec: CheckpointSpec, *, created_s: float = 1.0
) -> StoredEntry:
    """Store a checkpoint and return its entry."""
    reservation = directory.reserve(spec)
    write_reserved(fs, directory, reservation, spec, created_s)
    return next(entry for entry in directory.entries() if entry.id == reservation.id)


def read_back(fs: Filesystem, entry: StoredEntry) -> list[bytes]:
    """Restore an entry as a reader does: header against entry, then every tensor with its hash."""
    stored = read_header(fs, entry.path)
    spec = stored.header.spec
    assert spec.tokens == entry.tokens, "the file is another entry's"
    assert spec.namespace == entry.namespace, "the file is another namespace's"
    buffers = [bytearray(tensor.nbytes) for tensor in spec.tensors()]
    read_tensors(fs, entry.path, stored, [[memoryview(buffer)] for buffer in buffers])
    return [bytes(buffer) for buffer in buffers]
