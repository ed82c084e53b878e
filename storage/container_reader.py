"""Reading a container: the header with everything it claims, then the tensors into the caller's buffers."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from .checksums import ALGORITHMS, THREADED_BYTES, Hasher, HashLane, digest_of, update_all
from .container_errors import (
    ContainerChanged,
    CorruptHeader,
    CorruptTensor,
    RestoreCancelled,
    TruncatedContainer,
    UnsupportedFeature,
)
from .header import HeaderParts, Malformed, StoredCheckpoint, labels_of
from .header_decoder import decode_header, features_of, parse_json
from .layout import FRAME_BYTES, ZEROS, Frame, check_segments, header_digest, parse_frame
from .tokens import ITEM_BYTES, TokenIds
from .transfer import blocks_of, bytes_in, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .filesystem import Filesystem, OpenFile

FEATURES: Final[frozenset[str]] = frozenset()
"""What this reader knows beyond version 1 itself."""

_FIRST_READ_BYTES: Final = 32768


def never() -> bool:
    """Return False: nothing cancels."""
    return False


def read_header(fs: Filesystem, path: Path, *, file_bytes: int | None = None) -> StoredCheckpoint:
    """Read and verify everything but the tensors' bytes: frame, header, token section, every place.

    ``file_bytes``: the file's length where the caller knows it from a listing. Raises NotAContainer,
    UnsupportedVersion, UnsupportedFeature, TruncatedContainer, CorruptHeader, and OSErrors.
    """
    file = fs.open(path)
    try:
        return _read_header(file, path, file.size() if file_bytes is None else file_bytes)
    finally:
        file.close()


def _read_header(file: OpenFile, path: Path, file_bytes: int) -> StoredCheckpoint:
    head = _load(file, path, 0, min(file_bytes, _FIRST_READ_BYTES))
    frame = parse_frame(path, head, file_bytes)
    head += _load(file, path, len(head), frame.data_start)
    area = memoryview(head)[: frame.data_start]
    if header_digest(area) != frame.digest:
        raise CorruptHeader(path, "the header fails its hash")
    try:
        parts = _decode(path, area[FRAME_BYTES : frame.json_end], frame)
        tokens = _read_tokens(file, path, head, frame, parts)
        header = parts.header(tokens)
    except Malformed as error:
        raise CorruptHeader(path, str(error)) from error
    return StoredCheckpoint(header, parts.tensors, file_bytes, frame.data_start, frame.digest)


def _load(file: OpenFile, path: Path, start: int, end: int) -> bytearray:
    """Return the bytes from ``start`` to ``end``, none when that is before it."""
    data = bytearray(max(0, end - start))
    if read_whole(file, [memoryview(data)], start) < len(data):
        raise TruncatedContainer(path, f"ends before byte {end}")
    return data


def _decode(path: Path, data: memoryview, frame: Frame) -> HeaderParts:
    table = parse_json(data)
    unknown = tuple(feature for feature in features_of(table) if feature not in FEATURES)
    if unknown:
        raise UnsupportedFeature(path, unknown)
    return decode_header(table, frame.file_bytes - frame.data_start)


def _read_tokens(file: OpenFile, path: Path, head: bytearray, frame: Frame, parts: HeaderParts) -> TokenIds:
    start = frame.data_start + parts.tokens.offset
    end = start + parts.tokens.nbytes
    data = bytes(head[start:end])
    data += _load(file, path, start + len(data), end)
    if digest_of(parts.checksum, [memoryview(data)]) != parts.tokens.digest:
        raise CorruptHeader(path, "the token section fails its hash")
    return TokenIds.from_bytes(data)


def read_tensors(
    fs: Filesystem,
    path: Path,
    stored: StoredCheckpoint,
    targets: Sequence[Sequence[memoryview]],
    *,
    verify: bool = True,
    cancelled: Callable[[], bool] = never,
) -> int:
    """Fill writable views with the tensors of ``stored`` and return how many bytes those are.

    With ``verify`` each tensor's hash, and the zeros before it, are checked while the next is read.
    ``cancelled`` is asked between blocks of 1 MiB. Raises CorruptTensor, TruncatedContainer,
    ContainerChanged, RestoreCancelled, SegmentMismatch, and OSErrors; the targets are rubbish after any.
    """
    sizes = [section.nbytes for section in stored.tensors]
    check_segments(path, targets, sizes)
    file = fs.open(path)
    try:
        _check_unchanged(file, path, stored)
        with HashLane(threaded=verify and sum(sizes) >= THREADED_BYTES) as lane:
            reading = _Reading(file, path, stored, lane if verify else None, cancelled)
            for place, pieces in enumerate(targets):
                reading.fill(place, pieces)
            lane.finish()
    finally:
        file.close()
    return sum(sizes)


def _check_unchanged(file: OpenFile, path: Path, stored: StoredCheckpoint) -> None:
    file_bytes = file.size()
    head = _load(file, path, 0, min(file_bytes, FRAME_BYTES))
    if parse_frame(path, head, file_bytes).digest != stored.header_digest:
        raise ContainerChanged(path, "another container took its place")


class _Reading:
    """Fills one target after the other from an open file."""

    __slots__ = ("_cancelled", "_end", "_file", "_lane", "_path", "_stored")

    def __init__(
        self,
        file: OpenFile,
        path: Path,
        stored: StoredCheckpoint,
        lane: HashLane | None,
        cancelled: Callable[[], bool],
    ) -> None:
        self._file = file
        self._path = path
        self._stored = stored
        self._lane = lane
        self._cancelled = cancelled
        self._end = stored.data_start + len(stored.header.spec.tokens) * ITEM_BYTES

    def fill(self, place: int, pieces: Sequence[memoryview]) -> None:
        """Read one tensor; its check may still be under way on the lane afterwards."""
        section = self._stored.tensors[place]
        start = self._stored.data_start + section.offset
        gap = memoryview(bytearray(start - self._end if self._lane else 0))
        hasher = ALGORITHMS[self._stored.header.checksum]()
        offset = start - gap.nbytes
        before = [gap]
        for block in blocks_of(pieces):
            offset = self._read([*before, *block], offset)
            before = []
            if self._lane:
                self._lane.run(partial(update_all, hasher, block))
        self._end = self._read(before, offset)
        if self._lane:
            self._lane.run(partial(self._check, place, hasher, gap))

    def _read(self, pieces: list[memoryview], offset: int) -> int:
        if self._cancelled():
            raise RestoreCancelled(self._path)
        size = bytes_in(pieces)
        if size and read_whole(self._file, pieces, offset) < size:
            raise TruncatedContainer(self._path, f"ends before byte {offset + size}")
        return offset + size

    def _check(self, place: int, hasher: Hasher, gap: memoryview) -> None:
        if gap != ZEROS[: gap.nbytes]:
            raise self._corrupt(place, "follows bytes that are not zero")
        if hasher.digest() != self._stored.tensors[place].digest:
            raise self._corrupt(place, "fails its hash")

    def _corrupt(self, place: int, problem: str) -> CorruptTensor:
        labels = labels_of(self._stored.header.spec)
        return CorruptTensor(self._path, next(islice(labels, place, None)), problem)
