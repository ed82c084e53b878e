"""The front of a container file, as every reader of one begins: frame, header area, token section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .container_errors import CorruptHeader, TruncatedContainer
from .layout import FRAME_BYTES, Frame, header_digest, parse_frame
from .transfer import bytes_in, read_whole

if TYPE_CHECKING:
    from pathlib import Path

    from .filesystem import OpenFile

FIRST_READ_BYTES: Final = 32768
"""What every file is asked for first: frame, header and tokens of a common one."""


@dataclass(frozen=True, slots=True)
class Front:
    """What was read of a file's beginning: the header area, verified, and what came along behind it."""

    frame: Frame
    data: bytearray

    @property
    def header(self) -> memoryview:
        """The JSON header."""
        return memoryview(self.data)[FRAME_BYTES : self.frame.json_end]

    def section(self, file: OpenFile, path: Path, offset: int, nbytes: int) -> bytes:
        """Return bytes of the data area; only what did not come along is read. Raises TruncatedContainer."""
        start = self.frame.data_start + offset
        known = bytes(memoryview(self.data)[start : start + nbytes])
        rest = bytearray(nbytes - len(known))
        fill(file, path, [memoryview(rest)], start + len(known))
        return known + rest


def read_front(file: OpenFile, path: Path, file_bytes: int) -> Front:
    """Read and verify the header area of a file of ``file_bytes`` bytes. Blocks.

    Raises NotAContainer, UnsupportedVersion, TruncatedContainer, CorruptHeader, and OSErrors.
    """
    data = bytearray(min(file_bytes, FIRST_READ_BYTES))
    fill(file, path, [memoryview(data)], 0)
    frame = parse_frame(path, data, file_bytes)
    rest = bytearray(max(0, frame.data_start - len(data)))
    fill(file, path, [memoryview(rest)], len(data))
    data += rest
    if header_digest(memoryview(data)[: frame.data_start]) != frame.digest:
        raise CorruptHeader(path, "the header fails its hash")
    return Front(frame, data)


def fill(file: OpenFile, path: Path, pieces: list[memoryview], offset: int) -> int:
    """Fill the pieces from ``offset`` on; return where they end. Raises TruncatedContainer. Blocks."""
    size = bytes_in(pieces)
    if size and read_whole(file, pieces, offset) < size:
        raise TruncatedContainer(path, f"ends before byte {offset + size}")
    return offset + size
