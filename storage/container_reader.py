"""Reading a container's header, with everything that it claims of the tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .checksums import digest_of
from .container_errors import CorruptHeader, TruncatedContainer, UnsupportedFeature
from .header import HeaderParts, Malformed, StoredCheckpoint
from .header_decoder import decode_header, features_of, parse_json
from .layout import FRAME_BYTES, Frame, header_digest, parse_frame
from .tokens import TokenIds
from .transfer import read_whole

if TYPE_CHECKING:
    from pathlib import Path

    from .filesystem import Filesystem, OpenFile

FEATURES: Final[frozenset[str]] = frozenset()
"""What this reader knows beyond version 1 itself."""

_FIRST_READ_BYTES: Final = 32768


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
