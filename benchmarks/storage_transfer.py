"""Restore and durable write of one large checkpoint, against the raw transfer of as many bytes.

The checkpoint is that of 32 attention layers with 8 heads of 128 bfloat16 values, as the engine holds it:
a tensor's rows lie in a buffer of whole steps of capacity, so its bytes are one view per head. All buffers
are written to before anything is timed: no side pays for page faults that the other one does not.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from samovar.storage.container import Checksum, StoredCheckpoint, read_tensors, write_container
from samovar.storage.fs import OsFilesystem
from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from .storage_figures import Figure, Timed, Turns, clocked, in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LAYERS, HEADS, HEAD_DIM, ITEM_BYTES = 32, 8, 128, 2
STEP = 256
TOKEN_BYTES = 2 * LAYERS * HEADS * HEAD_DIM * ITEM_BYTES
RAW_CALL_BYTES = 16 << 20
CHECKSUMS: tuple[Checksum, ...] = ("xxh3-128", "blake3-128")
FS = OsFilesystem()


@dataclass(frozen=True)
class State:
    """A checkpoint's description and its bytes: ``segments`` has a list of views for each tensor."""

    spec: CheckpointSpec
    segments: Sequence[Sequence[memoryview]]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.spec.nbytes


def make_state(size_bytes: int) -> State:
    """Return a checkpoint of about ``size_bytes`` random bytes."""
    tokens = max(1, size_bytes // TOKEN_BYTES)
    shape = (1, HEADS, tokens, HEAD_DIM)
    tensors = tuple(TensorSpec(name, "bfloat16", shape) for name in ("keys", "values"))
    layer = LayerSpec("attention", tokens, trimmable=True, tensors=tensors)
    spec = CheckpointSpec(TokenIds.of(range(tokens)), "", (layer,) * LAYERS)
    chance = np.random.default_rng(3)
    random = partial(chance.integers, 0, 256)
    return State(spec, [strided(tokens, random) for _ in spec.tensors()])


def strided(tokens: int, make: Callable[[tuple[int, ...], type[np.uint8]], np.ndarray]) -> list[memoryview]:
    """Return a tensor as the engine holds it: a view per head of a buffer with room for more tokens."""
    capacity = (tokens // STEP + 1) * STEP
    buffer = make((HEADS, capacity, HEAD_DIM * ITEM_BYTES), np.uint8)
    return [memoryview(buffer[head, :tokens].reshape(-1)) for head in range(HEADS)]


# -- the raw side -------------------------------------------------------------------------------------------


def raw_read(path: Path, buffer: memoryview) -> None:
    """Fill ``buffer`` from the beginning of the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        done = 0
        while done < len(buffer):
            done += os.preadv(descriptor, [buffer[done : done + RAW_CALL_BYTES]], done)
    finally:
        os.close(descriptor)


def raw_write(path: Path, buffer: memoryview) -> None:
    """Write ``buffer`` to a new file and force it to the medium."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        done = 0
        while done < len(buffer):
            done += os.pwritev(descriptor, [buffer[done : done + RAW_CALL_BYTES]], done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leave_cache(path: Path) -> None:
    """Drop the file's pages from the page cache; they must be on the medium. Does nothing on macOS."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


# -- measures -----------------------------------------------------------------------------------------------


def measure_restore(folder: Path, source: State, target: State, rounds: int) -> list[Figure]:
    """Return restore rates against a raw read, and what verification costs, cold and warm.

    The views of ``target`` are writable; in the end they hold what ``source`` holds.
    """
    written = {checksum: store(folder / f"{checksum}.kv", source, checksum) for checksum in CHECKSUMS}
    raw, fast = memoryview(bytearray(source.nbytes)), folder / f"{CHECKSUMS[0]}.kv"
    contenders: dict[str, Callable[[], object]] = {
        "raw": partial(raw_read, fast, raw),
        "unverified": partial(_read, fast, written[CHECKSUMS[0]], target, verify=False),
    }
    for checksum, stored in written.items():
        contenders[checksum] = partial(_read, folder / f"{checksum}.kv", stored, target, verify=True)
    figures: list[Figure] = []
    for temperature in ("cold", "warm"):
        turns = in_turns(
            {name: partial(_timed, work, folder, temperature) for name, work in contenders.items()}, rounds
        )
        figures += _restore_figures(temperature, turns, source.nbytes)
    for checksum in CHECKSUMS:
        (folder / f"{checksum}.kv").unlink()
    return figures


def store(path: Path, state: State, checksum: Checksum) -> StoredCheckpoint:
    """Write a container, synced, under no other name than ``path``."""
    return write_container(
        FS, path, "bench", state.spec, state.segments, checksum=checksum, created_s=time.time()
    )


def _read(path: Path, stored: StoredCheckpoint, state: State, *, verify: bool) -> None:
    assert read_tensors(FS, path, stored, state.segments, verify=verify) == state.nbytes


def _timed(work: Callable[[], object], folder: Path, temperature: str) -> float:
    if temperature == "cold":
        for path in folder.iterdir():
            leave_cache(path)
    return clocked(work)


def _restore_figures(temperature: str, turns: Turns, size_bytes: int) -> list[Figure]:
    figures: list[Figure] = []
    for name, goal in (("unverified", 0.8), (CHECKSUMS[0], 0.8), (CHECKSUMS[1], None)):
        label = f"restore / raw read, {temperature}, {name}"
        facts = turns.facts("raw", name) | _rates(turns, name, size_bytes)
        figures.append(Figure(label, turns.ratio("raw", name), "x", goal, "more", facts))
    for name, goal in ((CHECKSUMS[0], 1.1), (CHECKSUMS[1], None)):
        label = f"verified / unverified, {temperature}, {name}"
        facts = turns.facts(name, "unverified")
        figures.append(Figure(label, turns.ratio(name, "unverified"), "x", goal, "less", facts))
    return figures


def _rates(turns: Turns, name: str, size_bytes: int) -> dict[str, object]:
    return {
        f"{label}GB/s": round(size_bytes / statistics.median(turns.seconds(each)) / 1e9, 2)
        for label, each in (("", name), ("raw ", "raw"))
    }


def measure_write(folder: Path, state: State, rounds: int) -> list[Figure]:
    """Return durable writes (data synced, renamed, folder synced) against a raw write and fsync."""
    raw = memoryview(bytearray(b"".join(itertools.chain(*state.segments))))
    contenders: dict[str, Timed] = {
        "raw": partial(_timed_write, folder, partial(raw_write, folder / "raw", raw))
    }
    for checksum in CHECKSUMS:
        contenders[checksum] = partial(_timed_write, folder, partial(_durable_write, folder, state, checksum))
    turns = in_turns(contenders, rounds)
    figures: list[Figure] = []
    for name, goal in ((CHECKSUMS[0], 0.8), (CHECKSUMS[1], None)):
        facts = turns.facts("raw", name) | _rates(turns, name, state.nbytes)
        label = f"durable write / raw + fsync, {name}"
        figures.append(Figure(label, turns.ratio("raw", name), "x", goal, "more", facts))
    return figures


def _durable_write(folder: Path, state: State, checksum: Checksum) -> None:
    store(folder / "new.tmp", state, checksum)
    FS.rename(folder / "new.tmp", folder / "new.kv")
    FS.sync_folder(folder)


def _timed_write(folder: Path, work: Callable[[], object]) -> float:
    """Time one write into a folder without leftovers and a disk without work."""
    for path in folder.iterdir():
        path.unlink()
    os.sync()
    return clocked(work)
