"""Containers for tests: plain files in memory that can be damaged, sample checkpoints, forged headers."""

from __future__ import annotations

import errno
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson
from samovar.storage.container import read_header, read_tensors, write_container
from samovar.storage.layout import FRAME_BYTES, Frame, header_area, parse_frame
from samovar.storage.spec import AttachmentSpec, CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from samovar.storage.container import StoredCheckpoint

CREATED_S = 1_760_000_000.25
IDENTITY = "0123456789abcdef"


@dataclass
class MemoryFiles:
    """Files as byte arrays. ``limit_bytes``: most that one call moves. ``fail_at``: the call that raises."""

    files: dict[Path, bytearray] = field(default_factory=dict)
    limit_bytes: int = 1 << 62
    fail_at: int = -1
    calls: list[str] = field(default_factory=list)

    def called(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) == self.fail_at:
            raise OSError(errno.EIO, f"{name} fails")

    def create(self, path: Path) -> MemoryFile:
        self.called("create")
        if path in self.files:
            raise FileExistsError(errno.EEXIST, "there is one", str(path))
        self.files[path] = bytearray()
        return MemoryFile(self, self.files[path])

    def open(self, path: Path) -> MemoryFile:
        self.called("open")
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "there is none", str(path))
        return MemoryFile(self, self.files[path])

    def unlink(self, path: Path) -> None:
        self.called("unlink")
        del self.files[path]


@dataclass
class MemoryFile:
    owner: MemoryFiles
    data: bytearray

    def write(self, segments: Sequence[memoryview], offset: int) -> int:
        self.owner.called("write")
        data = b"".join(segments)[: self.owner.limit_bytes]
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        return len(data)

    def read(self, segments: Sequence[memoryview], offset: int) -> int:
        self.owner.called("read")
        end = min(len(self.data), offset + self.owner.limit_bytes)
        start = offset
        for segment in segments:
            part = self.data[offset : min(end, offset + segment.nbytes)]
            segment[: len(part)] = part
            offset += len(part)
        return offset - start

    def size(self) -> int:
        self.owner.called("size")
        return len(self.data)

    def sync(self) -> None:
        self.owner.called("sync")

    def close(self) -> None:
        self.owner.calls.append("close")


def layer(
    signature: str, length: int, *tensors: TensorSpec, trimmable: bool = True, **geometry: int
) -> LayerSpec:
    return LayerSpec(signature, length, trimmable, 0 if trimmable else length, geometry, tensors)


def plain(length: int = 5, layers: int = 2, namespace: str = "") -> CheckpointSpec:
    tensors = [TensorSpec(name, "float16", (1, 2, length, 4)) for name in ("keys", "values")]
    return CheckpointSpec(
        TokenIds.of(range(100, 100 + length)),
        namespace,
        tuple(layer("kv:plain", length, *tensors, step=256) for _ in range(layers)),
    )


def attached(length: int = 5) -> CheckpointSpec:
    values = {"depth": 3, "rate": 0.25, "policy": "greedy", "on": True, "limit": None}
    attachment = AttachmentSpec("draft:1", values, (TensorSpec("hidden", "float32", (1, 7)),))
    return CheckpointSpec(TokenIds.of(range(length)), "", plain(length).layers, (attachment,))


def contents(spec: CheckpointSpec, seed: int = 1) -> list[bytes]:
    return [
        hashlib.shake_128(f"{seed} {place}".encode()).digest(tensor.nbytes)
        for place, tensor in enumerate(spec.tensors())
    ]


def views(parts: Sequence[bytes | bytearray]) -> list[list[memoryview]]:
    return [[memoryview(part)] for part in parts]


def write(fs: MemoryFiles, path: Path, spec: CheckpointSpec, parts: Sequence[bytes]) -> StoredCheckpoint:
    return write_container(fs, path, IDENTITY, spec, views(parts), created_s=CREATED_S)


def read(fs: MemoryFiles, path: Path) -> tuple[StoredCheckpoint, list[bytes]]:
    """Read everything, verified."""
    stored = read_header(fs, path)
    targets = [bytearray(tensor.nbytes) for tensor in stored.header.spec.tensors()]
    read_tensors(fs, path, stored, views(targets))
    return stored, [bytes(target) for target in targets]


def forged(data: bytes | bytearray, path: Path, change: Callable[[dict], None]) -> bytes:
    """Return the container with ``change`` made to its JSON, under a right hash and lengths."""
    frame = parse_frame(path, data, len(data))
    table = orjson.loads(data[FRAME_BYTES : frame.json_end])
    change(table)
    return reheaded(data, frame, orjson.dumps(table))


def reheaded(data: bytes | bytearray, frame: Frame, header: bytes) -> bytes:
    assert FRAME_BYTES + len(header) <= frame.data_start
    return (
        header_area(Frame(len(header), frame.data_start, frame.file_bytes), header) + data[frame.data_start :]
    )
