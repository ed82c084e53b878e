"""Whole transfers over an OpenFile: short writes and reads go on, tensors are cut into blocks; no copies."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .filesystem import OpenFile

BLOCK_BYTES: Final = 1 << 20
"""Bytes moved at a time: large enough for the disk, small enough that the hash finds them in the cache."""

BLOCK_PIECES: Final = 1000
"""Views in one transfer: with the padding before them still one system call (IOV_MAX is 1024)."""


def blocks_of(segments: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Yield the segments' bytes in order, as lists of at most BLOCK_BYTES bytes and BLOCK_PIECES views."""
    block: list[memoryview] = []
    room = BLOCK_BYTES
    for segment in segments:
        start = 0
        while start < segment.nbytes:
            piece = segment[start : start + room]
            block.append(piece)
            start += piece.nbytes
            room -= piece.nbytes
            if not room or len(block) == BLOCK_PIECES:
                yield block
                block, room = [], BLOCK_BYTES
    if block:
        yield block


def bytes_in(pieces: Iterable[memoryview]) -> int:
    """Return how many bytes the views have together."""
    return sum([piece.nbytes for piece in pieces])


def write_whole(file: OpenFile, pieces: list[memoryview], offset: int) -> int:
    """Write all bytes of the pieces from ``offset`` on and return how many. OSError when none can be."""
    total = left = bytes_in(pieces)
    while left:
        written = file.write(pieces, offset + total - left)
        if written <= 0:
            raise OSError(errno.EIO, "a write stored nothing")
        left -= written
        if left:
            pieces = _without(pieces, written)
    return total


def read_whole(file: OpenFile, pieces: list[memoryview], offset: int) -> int:
    """Fill the pieces from ``offset`` on; returns the bytes read, less than asked only at the file's end."""
    total = left = bytes_in(pieces)
    while left:
        count = file.read(pieces, offset + total - left)
        if count <= 0:
            break
        left -= count
        if left:
            pieces = _without(pieces, count)
    return total - left


def _without(pieces: list[memoryview], count: int) -> list[memoryview]:
    """Return the pieces without their first ``count`` bytes."""
    for place, piece in enumerate(pieces):
        if count < piece.nbytes:
            return [piece[count:], *pieces[place + 1 :]]
        count -= piece.nbytes
    return []
