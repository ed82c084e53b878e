"""Reading a cache file through and checking every byte of it, in little memory.

What docs/kv-container.md says a reader checks, block by block into one buffer: a restore fills buffers of the
tensors' sizes, which an offline tool does not want to hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...storage.checksums import ALGORITHMS
from ...storage.container import read_header
from ...storage.container_errors import ContainerChanged, CorruptTensor, TruncatedContainer
from ...storage.header import labels_of
from ...storage.layout import FRAME_BYTES, ZEROS, parse_frame
from ...storage.tokens import ITEM_BYTES
from ...storage.transfer import BLOCK_BYTES, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ...storage.container import Section, StoredCheckpoint
    from ...storage.filesystem import Filesystem, OpenFile


def check_file(fs: Filesystem, path: Path, progress: Callable[[int], None]) -> StoredCheckpoint:
    """Verify header, tokens, every tensor and what lies between; tell the bytes read as they come.

    Raises ContainerError and OSError; FileNotFoundError when the file has gone meanwhile. Blocks.
    """
    stored = read_header(fs, path)
    file = fs.open(path)
    try:
        _check_unchanged(file, path, stored)
        _Check(file, path, stored, progress).run()
    finally:
        file.close()
    return stored


def _check_unchanged(file: OpenFile, path: Path, stored: StoredCheckpoint) -> None:
    head = bytearray(FRAME_BYTES)
    read_whole(file, [memoryview(head)], 0)
    if parse_frame(path, head, file.size()).digest != stored.header_digest:
        raise ContainerChanged(path, "another container took its place")


class _Check:
    """One pass over the sections of an open file."""

    def __init__(
        self, file: OpenFile, path: Path, stored: StoredCheckpoint, progress: Callable[[int], None]
    ) -> None:
        self._file = file
        self._path = path
        self._stored = stored
        self._progress = progress
        self._buffer = memoryview(bytearray(BLOCK_BYTES))

    def run(self) -> None:
        """Check the tensors one after the other."""
        stored = self._stored
        end = stored.data_start + len(stored.header.spec.tokens) * ITEM_BYTES
        self._progress(end)
        for label, section in zip(labels_of(stored.header.spec), stored.tensors, strict=True):
            start = stored.data_start + section.offset
            if any(block != ZEROS[: len(block)] for block in self._blocks(end, start, len(ZEROS))):
                raise CorruptTensor(self._path, label, "follows bytes that are not zero")
            end = start + section.nbytes
            if self._digest(section, start) != section.digest:
                raise CorruptTensor(self._path, label, "fails its hash")

    def _digest(self, section: Section, start: int) -> str:
        hasher = ALGORITHMS[self._stored.header.checksum]()
        for block in self._blocks(start, start + section.nbytes, BLOCK_BYTES):
            hasher.update(block)
        return hasher.digest()

    def _blocks(self, start: int, end: int, most_bytes: int) -> Iterator[memoryview]:
        while start < end:
            block = self._buffer[: min(most_bytes, end - start)]
            if read_whole(self._file, [block], start) < len(block):
                raise TruncatedContainer(self._path, f"ends before byte {start + len(block)}")
            start += len(block)
            self._progress(len(block))
            yield block
