"""Opening a directory of thousands of files: lock, sweep, every header read and verified, index, cap.

The files have the headers, token sections and lengths of real ones, those of a model of 32 attention
layers; their tensors are zeros that were never written (holes), since a start reads none. "cold" has every
file's pages dropped from the page cache; with ``drop_caches``, which needs root and falls upon the whole
machine, folders and inodes too.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from samovar.storage.container import write_container
from samovar.storage.directory import CheckpointDirectory, publish
from samovar.storage.fs import OsFile, OsFilesystem
from samovar.storage.identity import Identity
from samovar.storage.layout import ZEROS as PADDING
from samovar.storage.room import Limits
from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from .storage_figures import Figure, Timed, Turns, clocked, in_turns
from .storage_transfer import leave_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samovar.storage.directory_figures import OpenReport
    from samovar.storage.filesystem import Filesystem

IDENTITY = Identity("bench")
LIMITS = Limits(max_bytes=0, free_floor=0.0)
LAYERS, GOAL_S = 32, 3.0
TENSOR_BYTES = 64
LENGTHS = (4_000, 32_000)
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


class _HollowFile(OsFile):
    """Leaves holes for whole tensors, so that ten thousand files fit anywhere."""

    __slots__ = ()

    def write(self, segments: Sequence[memoryview], offset: int) -> int:
        """Write, or only make the file longer by what are zeros of ours or of the format's padding."""
        total = sum(piece.nbytes for piece in segments)
        if all(piece.obj is _ZEROS or piece.obj is PADDING.obj for piece in segments):
            os.ftruncate(self._open(), offset + total)
            return total
        return super().write(segments, offset)

    def sync(self) -> None:
        """Do nothing: one sync of everything follows the last file."""


class _HollowFilesystem(OsFilesystem):
    def create(self, path: Path) -> _HollowFile:
        return _HollowFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def sync_folder(self, path: Path) -> None:
        """Do nothing, as above."""


_ZEROS = bytes(TENSOR_BYTES)


@dataclass(frozen=True)
class Contents:
    """How many files of how many tokens."""

    files: int
    tokens: int


def fill(root: Path, contents: Contents) -> None:
    """Make a root with that many files, each of its own conversation."""
    fs = _HollowFilesystem()
    directory = CheckpointDirectory(fs, root, IDENTITY, LIMITS)
    directory.open()
    chance = np.random.default_rng(17)
    system = chance.integers(0, 150_000, min(500, contents.tokens // 2), np.uint32)
    for _ in range(contents.files):
        own = chance.integers(0, 150_000, contents.tokens - len(system), np.uint32)
        _store(directory, fs, TokenIds(np.concatenate((system, own))))
    directory.close()
    os.sync()


def _store(directory: CheckpointDirectory, fs: Filesystem, tokens: TokenIds) -> None:
    tensors = tuple(TensorSpec(name, "uint8", (TENSOR_BYTES,)) for name in ("keys", "values"))
    layer = LayerSpec("attention", len(tokens), True, 0, {"step": 256}, tensors)
    spec = CheckpointSpec(tokens, "", (layer,) * LAYERS)
    reservation = directory.reserve(spec)
    segments = [[memoryview(_ZEROS)] for _ in spec.tensors()]
    write_container(fs, reservation.temp_path, IDENTITY.id, spec, segments, created_s=time.time())
    publish(fs, reservation)


def opened(root: Path) -> OpenReport:
    """Open and close a directory as a start does."""
    directory = CheckpointDirectory(OsFilesystem(), root, IDENTITY, LIMITS)
    report = directory.open()
    directory.close()
    return report


def measure_scan(folder: Path, files: int, rounds: int, *, drop_caches: bool) -> list[Figure]:
    """Return the seconds that a start takes, cold and warm, for usual and long prefixes."""
    figures: list[Figure] = []
    for tokens in LENGTHS:
        contents, root = Contents(files, tokens), folder / str(tokens)
        fill(root, contents)
        cold = partial(forget, root, drop_caches=drop_caches)
        contenders: dict[str, Timed] = {
            "cold": partial(_timed, partial(_checked, root, contents), cold),
            "warm": partial(_timed, partial(_checked, root, contents), lambda: None),
        }
        turns = in_turns(contenders, rounds)
        figures += [_figure(f"open {files} x {tokens} tokens, {name}", turns, name) for name in contenders]
        shutil.rmtree(root)
    return figures


def _figure(label: str, turns: Turns, name: str) -> Figure:
    seconds = turns.seconds(name)
    facts: dict[str, object] = {
        "best": round(min(seconds), 2),
        "slowest": round(max(seconds), 2),
        "others": f"{max(each.others for each in turns.rounds):.0%}",
    }
    return Figure(label, statistics.median(seconds), "s", GOAL_S, "less", facts)


def _checked(root: Path, contents: Contents) -> None:
    report = opened(root)
    assert report.entries == contents.files, report


def _timed(work: Callable[[], object], prepare: Callable[[], object]) -> float:
    prepare()
    return clocked(work)


def forget(root: Path, *, drop_caches: bool) -> None:
    """Drop what the system remembers of the files beneath ``root``."""
    if drop_caches:
        DROP_CACHES.write_text("3")
    for path in root.rglob("*.kv"):
        leave_cache(path)
