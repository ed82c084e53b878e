"""What a start needs to know of a container, without its tensors: a scan reads ten thousand of these.

Frame, lengths, the hash of the whole header area and the token section's are verified, so the file says what
its writer wrote. The table of tensors is skipped: that is most of the header, and a reader decodes it before
it restores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from .checksums import Checksum, digest_of
from .container import FEATURES
from .container_errors import CorruptHeader, UnsupportedFeature
from .front import Front, read_front
from .header import Malformed
from .layout import MAX_FEATURES
from .spec import AttachmentSpec, CheckpointSpec, LayerSpec
from .tokens import ITEM_BYTES, TokenIds

if TYPE_CHECKING:
    from pathlib import Path

    from .filesystem import Filesystem, OpenFile


class _Features(msgspec.Struct):
    features: Annotated[list[str], msgspec.Meta(max_length=MAX_FEATURES)]


class _TokenSection(msgspec.Struct):
    count: int
    offset: int
    hash: str


class _Layer(msgspec.Struct, frozen=True, order=True):
    signature: str
    offset: int
    trimmable: bool
    reusable_from: int


class _Attachment(msgspec.Struct):
    schema: str


class _Header(_Features):
    identity: str
    namespace: str
    created_s: float
    checksum: Checksum
    tokens: _TokenSection
    layers: list[_Layer]
    attachments: list[_Attachment]


_FEATURES: Final = msgspec.json.Decoder(_Features)
_HEADER: Final = msgspec.json.Decoder(_Header)


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
        front = read_front(file, path, file_bytes)
        header = _decode(path, front.header)
        return _summary(header, _tokens(file, path, front, header), file_bytes)
    except (RecursionError, ValueError) as error:
        raise CorruptHeader(path, f"the header breaks a rule: {error}") from error
    finally:
        file.close()


def _decode(path: Path, data: memoryview) -> _Header:
    """Return the header. Features that are not known come before anything else that may be wrong."""
    try:
        header = _HEADER.decode(data)
    except msgspec.ValidationError:
        _refuse_unknown(path, _FEATURES.decode(data).features)
        raise
    _refuse_unknown(path, header.features)
    return header


def _refuse_unknown(path: Path, features: list[str]) -> None:
    unknown = tuple(feature for feature in features if feature not in FEATURES)
    if unknown:
        raise UnsupportedFeature(path, unknown)


def _tokens(file: OpenFile, path: Path, front: Front, header: _Header) -> TokenIds:
    section, frame = header.tokens, front.frame
    end = frame.data_start + section.count * ITEM_BYTES
    if section.offset != 0 or not frame.data_start <= end <= frame.file_bytes:
        raise Malformed(f"{section.count} tokens at {section.offset} in a file of {frame.file_bytes} bytes")
    data = front.section(file, path, 0, section.count * ITEM_BYTES)
    if digest_of(header.checksum, [memoryview(data)]) != section.hash:
        raise Malformed("the token section fails its hash")
    return TokenIds.from_bytes(data)


def _summary(header: _Header, tokens: TokenIds, file_bytes: int) -> Summary:
    layers = tuple(
        LayerSpec(layer.signature, layer.offset, layer.trimmable, layer.reusable_from)
        for layer in sorted(set(header.layers))
    )
    attachments = tuple(AttachmentSpec(part.schema) for part in header.attachments)
    spec = CheckpointSpec(tokens, header.namespace, layers, attachments)
    return Summary(header.identity, spec, header.created_s, file_bytes)
