"""Where things lie in a container file: the fixed fields, alignment, sections one after the other.

docs/kv-container.md is the specification; ``frame`` is its word for the first 64 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import xxhash

from .container_errors import (
    ContainerError,
    CorruptHeader,
    NotAContainer,
    SegmentMismatch,
    TruncatedContainer,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

MAGIC: Final = b"SAMOVAR\n"
VERSION: Final = 1
ALIGNMENT: Final = 16384
"""A multiple of every page size that MLX runs on, so that sections can be mapped or read directly."""

ZEROS: Final = memoryview(bytes(ALIGNMENT))
"""What lies between sections."""

FRAME_BYTES: Final = 64
MAX_HEADER_BYTES: Final = 4 << 20
MAX_TOKENS: Final = 1 << 24
MAX_LAYERS: Final = 4096
MAX_ATTACHMENTS: Final = 256
MAX_TENSORS: Final = 16384
MAX_DIMENSIONS: Final = 16
MAX_FEATURES: Final = 64

_FIELDS: Final = struct.Struct("<8sIIQQ16s16x")
_HASH_START: Final = 32
_HASH_END: Final = 48
_NO_HASH: Final = bytes(_HASH_END - _HASH_START)


@dataclass(frozen=True, slots=True)
class Frame:
    """The fixed fields. ``data_start`` is where the sections begin, and the end of the header area."""

    header_bytes: int
    data_start: int
    file_bytes: int
    digest: bytes = _NO_HASH

    @property
    def json_end(self) -> int:
        """Where the JSON header ends and the padding of the header area begins."""
        return FRAME_BYTES + self.header_bytes


def aligned(offset: int) -> int:
    """Return the first aligned offset from ``offset`` on."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def section_offsets(sizes: Iterable[int]) -> Iterator[int]:
    """Yield where each section begins, counted from the data start, then where the last one ends."""
    end = 0
    for size in sizes:
        offset = aligned(end)
        yield offset
        end = offset + size
    yield end


def frame_of(header_bytes: int, data_bytes: int) -> Frame:
    """Return the frame, still without a hash, of a JSON header and data of these sizes."""
    data_start = aligned(FRAME_BYTES + header_bytes)
    return Frame(header_bytes, data_start, data_start + data_bytes)


def header_area(frame: Frame, header: bytes) -> bytes:
    """Return the bytes from 0 to the data start: frame with its hash, JSON header, zeros."""
    area = bytearray(frame.data_start)
    area[FRAME_BYTES : frame.json_end] = header
    _FIELDS.pack_into(
        area, 0, MAGIC, VERSION, frame.header_bytes, frame.data_start, frame.file_bytes, _NO_HASH
    )
    area[_HASH_START:_HASH_END] = header_digest(memoryview(area))
    return bytes(area)


def digest_in(area: bytes) -> bytes:
    """Return the hash that a header area states."""
    return area[_HASH_START:_HASH_END]


def header_digest(area: memoryview) -> bytes:
    """Return XXH3-128 of the whole header area, its own 16 bytes counted as zeros."""
    state = xxhash.xxh3_128(area[:_HASH_START])
    state.update(_NO_HASH)
    state.update(area[_HASH_END:])
    return state.digest()


def parse_frame(path: Path, data: bytes | bytearray, file_bytes: int) -> Frame:
    """Return the frame in ``data``, the beginning of a file of ``file_bytes`` bytes.

    Every length in it is within the file and the limits. Raises NotAContainer, UnsupportedVersion,
    TruncatedContainer, CorruptHeader. The hash is not checked here.
    """
    if len(data) < FRAME_BYTES:
        raise _too_short(path, data)
    magic, version, header_bytes, data_start, stated_bytes, digest = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise NotAContainer(path, "does not begin with the magic bytes")
    if version != VERSION:
        raise UnsupportedVersion(path, f"format version {version}, this reader knows {VERSION}")
    if stated_bytes != file_bytes:
        raise TruncatedContainer(path, f"holds {file_bytes} bytes, its header says {stated_bytes}")
    frame = Frame(header_bytes, data_start, stated_bytes, digest)
    if header_bytes > MAX_HEADER_BYTES or data_start != aligned(frame.json_end) or data_start > file_bytes:
        raise CorruptHeader(path, f"lengths {header_bytes}, {data_start}, {file_bytes} do not fit together")
    return frame


def _too_short(path: Path, data: bytes | bytearray) -> ContainerError:
    if MAGIC.startswith(bytes(data[: len(MAGIC)])):
        return TruncatedContainer(path, f"holds only {len(data)} bytes")
    return NotAContainer(path, "does not begin with the magic bytes")


def check_segments(path: Path, segments: Sequence[Sequence[memoryview]], sizes: Sequence[int]) -> None:
    """Raise SegmentMismatch unless the segments of every tensor add up to its size."""
    if [sum(piece.nbytes for piece in pieces) for pieces in segments] != sizes:
        raise SegmentMismatch(path, "the segments have other sizes than the tensors")
