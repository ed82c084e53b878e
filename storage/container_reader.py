"""Reading a container's header, with everything that it claims of the tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .checksums import digest_of
from .container_errors import CorruptHeader, UnsupportedFeature
from .front import Front, read_front
from .header import HeaderParts, Malformed, StoredCheckpoint
from .header_decoder import decode_header, features_of, parse_json
from .tokens import TokenIds

if TYPE_CHECKING:
    from pathlib import Path

    from .filesystem import Filesystem, OpenFile

FEATURES: Final[frozenset[str]] = frozenset()
"""What this reader knows beyond version 1 itself."""


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
    front = read_front(file, path, file_bytes)
    frame = front.frame
    try:
        parts = _decode(path, front)
        header = parts.header(_read_tokens(file, path, front, parts))
    except Malformed as error:
        raise CorruptHeader(path, str(error)) from error
    return StoredCheckpoint(header, parts.tensors, file_bytes, frame.data_start, frame.digest)


def _decode(path: Path, front: Front) -> HeaderParts:
    table = parse_json(front.header)
    unknown = tuple(feature for feature in features_of(table) if feature not in FEATURES)
    if unknown:
        raise UnsupportedFeature(path, unknown)
    return decode_header(table, front.frame.file_bytes - front.frame.data_start)


def _read_tokens(file: OpenFile, path: Path, front: Front, parts: HeaderParts) -> TokenIds:
    data = front.section(file, path, parts.tokens.offset, parts.tokens.nbytes)
    if digest_of(parts.checksum, [memoryview(data)]) != parts.tokens.digest:
        raise CorruptHeader(path, "the token section fails its hash")
    return TokenIds.from_bytes(data)
