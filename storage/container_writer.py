"""Writing a container: sections first, the header last, then the sync."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .checksums import ALGORITHMS, THREADED_BYTES, Checksum, Hasher, HashLane, update_all
from .container_errors import UnstorableCheckpoint
from .header import (
    Header,
    Malformed,
    Section,
    StoredCheckpoint,
    encode_header,
    section_sizes,
)
from .header_decoder import decode_header, parse_json
from .layout import (
    MAX_HEADER_BYTES,
    ZEROS,
    Frame,
    aligned,
    check_segments,
    digest_in,
    frame_of,
    header_area,
    section_offsets,
)
from .transfer import blocks_of, write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .filesystem import Filesystem, OpenFile
    from .spec import CheckpointSpec

_LONGEST_TIME: Final = 1.2345678901234567e-300
_LONGEST_CHECKSUM: Final = "blake3-128"


def file_bytes_of(spec: CheckpointSpec, identity: str) -> int:
    """Return how long a container of ``spec`` gets: exactly, or one alignment more.

    UnstorableCheckpoint, naming the identity, when JSON cannot hold a value of it.
    """
    try:
        header = encode_header(Header(identity, spec, _LONGEST_CHECKSUM, _LONGEST_TIME))
    except Malformed as error:
        raise UnstorableCheckpoint(Path(identity), str(error)) from error
    *_, data_bytes = section_offsets(section_sizes(spec))
    return frame_of(len(header), data_bytes).file_bytes


def write_container(
    fs: Filesystem,
    path: Path,
    identity: str,
    spec: CheckpointSpec,
    segments: Sequence[Sequence[memoryview]],
    *,
    checksum: Checksum = "xxh3-128",
    created_s: float,
) -> StoredCheckpoint:
    """Write a checkpoint to the new file ``path``, synced and closed; the rename is the caller's.

    The header is written last: a file torn by a crash begins with zeros. On any error the file is unlinked,
    if the disk lets it, and the error leaves. Raises UnstorableCheckpoint before anything is made,
    FileExistsError, and other OSErrors. Same input, same bytes.
    """
    header = Header(identity, spec, checksum, created_s)
    frame = _checked_frame(path, header, segments)
    file = fs.create(path)
    try:
        stored = _write(file, header, frame, segments)
        file.sync()
        file.close()
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            fs.unlink(path)
        raise
    return stored


def _checked_frame(path: Path, header: Header, segments: Sequence[Sequence[memoryview]]) -> Frame:
    """Return the frame; UnstorableCheckpoint for what could not be read back as it is."""
    sizes = section_sizes(header.spec)
    check_segments(path, segments, sizes[1:])
    *_, data_bytes = section_offsets(sizes)
    try:
        encoded = encode_header(header)
        decoded = decode_header(parse_json(encoded), data_bytes).header(header.spec.tokens)
    except Malformed as error:
        raise UnstorableCheckpoint(path, str(error)) from error
    if decoded != header or len(encoded) > MAX_HEADER_BYTES:
        raise UnstorableCheckpoint(path, f"its header of {len(encoded)} bytes would not come back as it is")
    return frame_of(len(encoded), data_bytes)


def _write(
    file: OpenFile, header: Header, frame: Frame, segments: Sequence[Sequence[memoryview]]
) -> StoredCheckpoint:
    spec = header.spec
    sections = ([memoryview(spec.tokens.to_bytes())], *segments)
    hashers = [ALGORITHMS[header.checksum]() for _ in sections]
    end = frame.data_start
    with HashLane(threaded=spec.nbytes >= THREADED_BYTES) as lane:
        for hasher, pieces in zip(hashers, sections, strict=True):
            end = _write_section(file, lane, hasher, pieces, end)
        lane.finish()
    digests = [hasher.digest() for hasher in hashers]
    area = header_area(frame, encode_header(header, digests))
    write_whole(file, [memoryview(area)], 0)
    return _stored(header, digests, frame, area)


def _write_section(
    file: OpenFile, lane: HashLane, hasher: Hasher, pieces: Sequence[memoryview], end: int
) -> int:
    """Write zeros from ``end`` up to the alignment, then the pieces; returns where they end."""
    gap = [ZEROS[: aligned(end) - end]]
    for block in blocks_of(pieces):
        lane.run(partial(update_all, hasher, block))
        end += write_whole(file, [*gap, *block], end)
        gap = []
    return end + write_whole(file, gap, end)


def _stored(header: Header, digests: Sequence[str], frame: Frame, area: bytes) -> StoredCheckpoint:
    sizes = section_sizes(header.spec)
    places = zip(section_offsets(sizes), sizes, digests, strict=False)
    _, *tensors = (Section(*place) for place in places)
    return StoredCheckpoint(header, tuple(tensors), frame.file_bytes, frame.data_start, digest_in(area))
