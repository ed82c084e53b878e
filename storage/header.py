"""The JSON header of a container: what it says, as plain data, and its encoding.

``header_decoder.py`` is the other direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from .checksums import DIGEST_DIGITS
from .layout import section_offsets
from .spec import CheckpointSpec
from .tokens import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .checksums import Checksum
    from .spec import AttachmentSpec, LayerSpec, TensorSpec
    from .tokens import TokenIds

NO_DIGEST: Final = "0" * DIGEST_DIGITS


class Malformed(ValueError):
    """A header's JSON breaks a rule of the format."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a container says about its checkpoint. ``created_s`` is Unix time."""

    identity: str
    spec: CheckpointSpec
    checksum: Checksum
    created_s: float
    features: tuple[str, ...] = ()


class Section(NamedTuple):
    """A stretch of the data: ``offset`` counts from the data start, ``digest`` is 32 hexadecimal digits."""

    offset: int
    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A container as its header describes it. ``tensors`` are in the order of ``header.spec.tensors()``."""

    header: Header
    tensors: tuple[Section, ...]
    file_bytes: int
    data_start: int
    header_digest: bytes


class HeaderParts(NamedTuple):
    """A decoded header whose tokens are still in their section."""

    identity: str
    namespace: str
    checksum: Checksum
    created_s: float
    features: tuple[str, ...]
    layers: tuple[LayerSpec, ...]
    attachments: tuple[AttachmentSpec, ...]
    tokens: Section
    tensors: tuple[Section, ...]

    def header(self, tokens: TokenIds) -> Header:
        """Return the header with its tokens. Malformed when the layers do not fit them."""
        try:
            spec = CheckpointSpec(tokens, self.namespace, self.layers, self.attachments)
        except ValueError as error:
            raise Malformed(str(error)) from error
        return Header(self.identity, spec, self.checksum, self.created_s, self.features)


def section_sizes(spec: CheckpointSpec) -> list[int]:
    """Return the bytes of each section in file order: tokens, then every tensor."""
    return [len(spec.tokens) * ITEM_BYTES, *(tensor.nbytes for tensor in spec.tensors())]


def labels_of(spec: CheckpointSpec) -> Iterator[str]:
    """Yield a name for each tensor that is unique in the file, as errors use it: ``layers.3.keys``."""
    return chain(_labels("layers", spec.layers), _labels("attachments", spec.attachments))


def _labels(kind: str, parts: Sequence[LayerSpec] | Sequence[AttachmentSpec]) -> Iterator[str]:
    for place, part in enumerate(parts):
        for tensor in part.tensors:
            yield f"{kind}.{place}.{tensor.name}"


def encode_header(header: Header, digests: Sequence[str] | None = None) -> bytes:
    """Return the JSON for ``header``; ``digests`` are those of the tokens and every tensor, in file order.

    Its length does not depend on the digests (None: zeros), so it can be sized before they are known.
    Same input, same bytes. Malformed when JSON cannot hold a value.
    """
    spec = header.spec
    sizes = section_sizes(spec)
    digests = digests or [NO_DIGEST] * len(sizes)
    sections = zip(section_offsets(sizes), sizes, digests, strict=False)  # the offsets end with the data's
    table = {
        "identity": header.identity,
        "namespace": spec.namespace,
        "created_s": header.created_s,
        "checksum": header.checksum,
        "features": header.features,
        "tokens": {"count": len(spec.tokens), **_place(sections)},
        "layers": [_layer_table(layer, sections) for layer in spec.layers],
        "attachments": [
            {
                "schema": part.schema,
                "values": dict(part.values),
                "tensors": _tensor_tables(part.tensors, sections),
            }
            for part in spec.attachments
        ],
    }
    try:
        return orjson.dumps(table, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:  # orjson.JSONEncodeError is one
        raise Malformed(str(error)) from error


def _place(sections: Iterator[tuple[int, int, str]]) -> dict[str, object]:
    return dict(zip(("offset", "bytes", "hash"), next(sections), strict=True))


def _layer_table(layer: LayerSpec, sections: Iterator[tuple[int, int, str]]) -> dict[str, object]:
    return {
        "signature": layer.signature,
        "offset": layer.offset,
        "trimmable": layer.trimmable,
        "reusable_from": layer.reusable_from,
        "geometry": dict(layer.geometry),
        "tensors": _tensor_tables(layer.tensors, sections),
    }


def _tensor_tables(
    tensors: Sequence[TensorSpec], sections: Iterator[tuple[int, int, str]]
) -> list[dict[str, object]]:
    return [
        {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, **_place(sections)}
        for tensor in tensors
    ]
