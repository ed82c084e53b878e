"""What trace replay puts in the place of bytes: states, files, writers and readers that have sizes only.

Everything that decides is real (``retention_tree.py``). Here are the ends of it: a state that is its tokens
and a number of bytes for each, a disk of names and lengths, writers that take time by the clock, and readers.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from samovar.actors.reader import Restored
from samovar.runtime.kernel import BlockingPool, Rejected
from samovar.storage.container import StoredCheckpoint, file_bytes_of
from samovar.storage.filesystem import FileEntry, Space
from samovar.storage.header import Header
from samovar.storage.reservation import publish
from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from samovar.actors.reader import RestoreJob
    from samovar.actors.writer import WriteJob
    from samovar.runtime.engine.checkpoint import Segments
    from samovar.storage.tokens import TokenIds

HEADS: Final = 8
HEAD_DIM: Final = 64
LAYERS: Final = 16
TOKEN_BYTES: Final = 2 * 2 * HEADS * HEAD_DIM * LAYERS
"""Keys and values of a 1.2 B llama in bfloat16. Only the pace of writes depends on it."""


@dataclass(frozen=True, slots=True)
class SizedState:
    """A checkpoint whose layers are told as one, since only their bytes matter."""

    spec: CheckpointSpec
    held_bytes: int

    @classmethod
    def of(cls, tokens: TokenIds) -> SizedState:
        """Return the state of ``tokens``."""
        shape = (LAYERS, HEADS, len(tokens), HEAD_DIM)
        tensors = (TensorSpec("keys", "bfloat16", shape), TensorSpec("values", "bfloat16", shape))
        spec = CheckpointSpec(
            tokens, "", (LayerSpec("kv:plain", len(tokens), trimmable=True, tensors=tensors),)
        )
        return cls(spec, len(tokens) * TOKEN_BYTES)

    def segments(self) -> Segments:
        """There is nothing to read."""
        raise NotImplementedError("a sized state has no bytes")


@dataclass(slots=True)
class SizedFile:
    """An open file: counts what is written."""

    disk: SizedDisk
    path: Path

    def write(self, segments: Sequence[memoryview], offset: int) -> int:
        """Count."""
        size = sum(each.nbytes for each in segments)
        self.disk.files[self.path] = max(self.disk.files[self.path], offset + size)
        return size

    def read(self, segments: Sequence[memoryview], offset: int) -> int:  # noqa: ARG002
        """Nothing of it was kept."""
        return 0

    def size(self) -> int:
        """Return the length."""
        return self.disk.files[self.path]

    def sync(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class SizedDisk:
    """A file system of names and lengths. ``peak_bytes``: the most that lay there at a time."""

    files: dict[Path, int] = field(default_factory=dict)
    bytes: int = 0
    peak_bytes: int = 0

    def hold(self, path: Path, size_bytes: int) -> None:
        """Let there be a file."""
        self.bytes += size_bytes - self.files.get(path, 0)
        self.files[path] = size_bytes
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def create(self, path: Path) -> SizedFile:
        """Make an empty file."""
        self.hold(path, 0)
        return SizedFile(self, path)

    def open(self, path: Path) -> SizedFile:
        """Open a file."""
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return SizedFile(self, path)

    def prefetch(self, path: Path, size_bytes: int) -> None:
        """There is nothing to read."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        size_bytes = self.files[source]
        self.unlink(source)
        self.hold(target, size_bytes)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self.bytes -= self.files.pop(path)

    def remove_folder(self, path: Path) -> None:
        """Folders are not kept."""

    def make_folder(self, path: Path) -> None:
        """Folders are not kept."""

    def list(self, path: Path) -> list[FileEntry]:  # noqa: ARG002
        """A replay starts with an empty disk, and looks at it then only."""
        return []

    def sync_folder(self, path: Path) -> None:
        """Nothing to do."""

    def touch(self, path: Path, mtime_s: float) -> None:  # noqa: ARG002
        """Times are the directory's own."""
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    def space(self, path: Path) -> Space:  # noqa: ARG002
        """There is plenty: the cap decides."""
        return Space(1 << 60, 1 << 60)

    def lock(self, path: Path) -> SizedLock:  # noqa: ARG002
        """Nobody else is here."""
        return SizedLock()


class SizedLock:
    """A lock that nobody else wants."""

    def release(self) -> None:
        """Nothing to do."""


class SizedWriters:
    """The writers' pool: each writes ``bytes_per_s``. Its face is that of ``Writers``."""

    def __init__(self, disk: SizedDisk, identity: str, count: int, bytes_per_s: float) -> None:
        self._disk = disk
        self._identity = identity
        self._count = count
        self._bytes_per_s = bytes_per_s

    def __len__(self) -> int:
        return self._count

    async def write(self, job: WriteJob, timeout_s: float) -> StoredCheckpoint:  # noqa: ARG002
        """Let the time pass that the write takes, and have the file."""
        spec, reservation = job.checkpoint.spec, job.reservation
        size_bytes = file_bytes_of(spec, self._identity)
        await asyncio.sleep(size_bytes / self._bytes_per_s)
        self._disk.hold(reservation.temp_path, size_bytes)
        publish(self._disk, reservation)
        return StoredCheckpoint(Header(self._identity, spec, "xxh3-128", 0.0), (), size_bytes, 0, b"")


class SizedReaders:
    """The readers' pool. Reads take no time: requests are served in the trace's order, whatever they cost."""

    def __init__(self, disk: SizedDisk) -> None:
        self._disk = disk

    async def restore(self, job: RestoreJob, timeout_s: float) -> Restored:  # noqa: ARG002
        """Bring a state back if its file is still there."""
        if job.entry.path not in self._disk.files:
            missing = FileNotFoundError(errno.ENOENT, "no such file", str(job.entry.path))
            raise Rejected("readers", "Restore", "the file has gone") from missing
        return Restored(SizedState.of(job.entry.tokens), 0.0, job.entry.file_bytes)


class InlinePool(BlockingPool):
    """The archive's pool without its thread: nothing here blocks, and order is what it is for."""

    def __init__(self) -> None:
        super().__init__("archive", 1, limit=16)

    async def run(self, job: Callable[..., Any], *args: object) -> Any:
        """Run a job at once."""
        return job(*args)
