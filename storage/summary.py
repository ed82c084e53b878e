"""What a start needs to know of a container, without its tensors: a scan reads ten thousand of these.

Frame, lengths, the hash of the whole header area and the token section's are verified, so the file says what
its writer wrote. The table of tensors is not looked at: that is most of the decoding, and a reader does
it before it restores.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

from .checksums import ALGORITHMS, digest_of
from .container import FEATURES
from .container_errors import CorruptHeader, TruncatedContainer, UnsupportedFeature
from .header import Malformed
from .header_decoder import features_of, parse_json
from .layout import FRAME_BYTES, Frame, header_digest, parse_frame
from .spec import AttachmentSpec, CheckpointSpec, LayerSpec
from .tokens import ITEM_BYTES, TokenIds
from .transfer import read_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .filesystem import Filesystem, OpenFile

FIRST_READ_BYTES: Final = 32768
"""What every file is asked for first: frame, header and tokens of a common one."""

_LAYER: Final = itemgetter("signature", "offset", "trimmable", "reusable_from")
_LAYER_TYPES: Final = (str, int, bool, int)


@dataclass(frozen=True, slots=True)
class Summary:
    """Whose the file is and what it can serve. ``created_s``: Unix time.

    ``spec`` has no tensors, and of layers that differ in these only one.
    """

    identity: str
    spec: CheckpointSpec
    created_s: float
    file_bytes: int


def read_summary(fs: Filesystem, path: Path, file_bytes: int) -> Summary:
    """Read a file of ``file_bytes`` bytes, as listed; one read does when it has at most 4,096 tokens.

    Raises the errors of ``read_header``: NotAContainer, UnsupportedVersion, UnsupportedFeature,
    TruncatedContainer, CorruptHeader, and OSErrors. Blocks.
    """
    file = fs.open(path)
    try:
        head = _load(file, path, 0, min(file_bytes, FIRST_READ_BYTES))
        frame = parse_frame(path, head, file_bytes)
        head += _load(file, path, len(head), frame.data_start)
        area = memoryview(head)[: frame.data_start]
        if header_digest(area) != frame.digest:
            raise CorruptHeader(path, "the header fails its hash")
        table = parse_json(area[FRAME_BYTES : frame.json_end])
        unknown = tuple(feature for feature in features_of(table) if feature not in FEATURES)
        if unknown:
            raise UnsupportedFeature(path, unknown)
        return _summary(table, _tokens(file, path, head, frame, table), file_bytes)
    except (Malformed, KeyError, TypeError, ValueError) as error:
        raise CorruptHeader(path, f"the header breaks a rule: {error}") from error
    finally:
        file.close()


def _load(file: OpenFile, path: Path, start: int, end: int) -> bytearray:
    data = bytearray(max(0, end - start))
    if read_whole(file, [memoryview(data)], start) < len(data):
        raise TruncatedContainer(path, f"ends before byte {end}")
    return data


def _tokens(
    file: OpenFile, path: Path, head: bytearray, frame: Frame, table: Mapping[str, object]
) -> TokenIds:
    section = cast("dict[str, Any]", table["tokens"])
    checksum, count = cast("Any", table["checksum"]), section["count"]
    if checksum not in ALGORITHMS or type(count) is not int or section["offset"] != 0:
        raise Malformed("no token section")
    end = frame.data_start + count * ITEM_BYTES
    if not frame.data_start <= end <= frame.file_bytes:
        raise Malformed(f"{count} tokens in a file of {frame.file_bytes} bytes")
    data = bytes(head[frame.data_start : end])
    data += _load(file, path, frame.data_start + len(data), end)
    if digest_of(checksum, [memoryview(data)]) != section["hash"]:
        raise Malformed("the token section fails its hash")
    return TokenIds.from_bytes(data)


def _summary(table: Mapping[str, object], tokens: TokenIds, file_bytes: int) -> Summary:
    identity, namespace, created_s = table["identity"], table["namespace"], table["created_s"]
    if not isinstance(identity, str) or not isinstance(namespace, str):
        raise Malformed("no identity or namespace")
    if not isinstance(created_s, int | float):
        raise Malformed("no time")
    layers = tuple(map(_layer, sorted(set(map(_LAYER, _rows(table, "layers"))))))
    attachments = tuple(AttachmentSpec(str(part["schema"])) for part in _rows(table, "attachments"))
    spec = CheckpointSpec(tokens, namespace, layers, attachments)
    return Summary(identity, spec, float(created_s), file_bytes)


def _rows(table: Mapping[str, object], key: str) -> list[dict[str, object]]:
    rows = table[key]
    if not isinstance(rows, list):
        raise Malformed(f"{key} is no list")
    return cast("list[dict[str, object]]", rows)


def _layer(values: tuple[object, ...]) -> LayerSpec:
    if tuple(map(type, values)) != _LAYER_TYPES:
        raise Malformed("a field of a layer has a wrong type")
    return LayerSpec(*cast("tuple[str, int, bool, int]", values))
