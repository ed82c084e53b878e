"""Decoding the JSON header of a container, taking nothing on trust.

Every value has its type and limit checked before it is used, and every section must lie exactly where the
layout puts it. The writer decodes what it is about to write with the same rules, so no file is made that
could not be read.
"""

from __future__ import annotations

import math
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar, cast

import orjson

from .checksums import ALGORITHMS, DIGEST_BYTES, Checksum
from .header import HeaderParts, Malformed, Section
from .layout import (
    MAX_ATTACHMENTS,
    MAX_DIMENSIONS,
    MAX_FEATURES,
    MAX_LAYERS,
    MAX_TENSORS,
    MAX_TOKENS,
    section_offsets,
)
from .spec import AttachmentSpec, LayerSpec, TensorSpec
from .tokens import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .spec import Scalar

T = TypeVar("T")

_TENSOR_FIELDS: Final = itemgetter("name", "dtype", "shape", "offset", "bytes", "hash")
_TENSOR_TYPES: Final = (str, str, list, int, int, str)


def parse_json(data: bytes | memoryview) -> dict[str, object]:
    """Return the JSON object in ``data``. Malformed when there is none; nesting is limited by the parser."""
    try:
        return _table(orjson.loads(data), "the header")
    except orjson.JSONDecodeError as error:
        raise Malformed(f"no JSON: {error}") from error


def features_of(table: Mapping[str, object]) -> tuple[str, ...]:
    """Return the features that a reader needs for this header, to be known before the rest is looked at."""
    return tuple(_text(feature) for feature in _rows(table, "features", MAX_FEATURES))


def decode_header(table: Mapping[str, object], data_bytes: int) -> HeaderParts:
    """Return what the header says; ``data_bytes`` is the length of the file from the data start on.

    The sections follow each other in order, each at the first aligned offset after the one before, and the
    last ends with the file: so they are disjoint, and every byte belongs to one or is padding.
    Malformed otherwise.
    """
    layer_rows = _rows(table, "layers", MAX_LAYERS)
    attachment_rows = _rows(table, "attachments", MAX_ATTACHMENTS)
    tensors: list[Section] = []
    tokens = _token_section(_table(table.get("tokens"), "tokens"))
    layers = tuple(_layer(row, f"layers.{place}", tensors) for place, row in enumerate(layer_rows))
    attachments = tuple(
        _attachment(row, f"attachments.{place}", tensors) for place, row in enumerate(attachment_rows)
    )
    _check_places((tokens, *tensors), data_bytes)
    return HeaderParts(
        identity=_value(table, "identity", str),
        namespace=_value(table, "namespace", str),
        checksum=_checksum(table.get("checksum")),
        created_s=_time(table.get("created_s")),
        features=features_of(table),
        layers=layers,
        attachments=attachments,
        tokens=tokens,
        tensors=tuple(tensors),
    )


def _value(table: Mapping[str, object], key: str, kind: type[T]) -> T:
    value = table.get(key)
    if not isinstance(value, kind) or type(value) is not kind:  # a bool is an int, but not here
        raise Malformed(f"{key} is no {kind.__name__}")
    return value


def _table(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Malformed(f"{name} is no object")
    return cast("dict[str, object]", value)


def _rows(table: Mapping[str, object], key: str, limit: int) -> list[object]:
    rows = cast("list[object]", _value(table, key, list))
    if len(rows) > limit:
        raise Malformed(f"{len(rows)} {key}, at most {limit}")
    return rows


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Malformed("a feature is no str")
    return value


def _checksum(value: object) -> Checksum:
    if not isinstance(value, str) or value not in ALGORITHMS:
        raise Malformed("unknown checksum")
    return value


def _time(value: object) -> float:
    if type(value) not in {float, int} or not 0 <= (seconds := float(cast("float", value))) < math.inf:
        raise Malformed("created_s is no time")
    return seconds


def _digest(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError as error:
        raise Malformed("a hash is not hexadecimal") from error
    if digest.hex() != text or len(digest) != DIGEST_BYTES:
        raise Malformed("a hash is not of 32 lower-case digits")
    return digest


def _token_section(table: Mapping[str, object]) -> Section:
    count = _value(table, "count", int)
    section = Section(
        "tokens",
        _value(table, "offset", int),
        _value(table, "bytes", int),
        _digest(_value(table, "hash", str)),
    )
    if not 0 <= count <= MAX_TOKENS or section.nbytes != count * ITEM_BYTES:
        raise Malformed(f"{count} tokens in {section.nbytes} bytes")
    return section


def _layer(row: object, label: str, sections: list[Section]) -> LayerSpec:
    table = _table(row, label)
    geometry = _table(table.get("geometry"), "geometry")
    if any(type(number) is not int for number in geometry.values()):
        raise Malformed(f"{label}: a number of the geometry is no int")
    return LayerSpec(
        signature=_value(table, "signature", str),
        offset=_value(table, "offset", int),
        trimmable=_value(table, "trimmable", bool),
        reusable_from=_value(table, "reusable_from", int),
        geometry=cast("dict[str, int]", geometry),
        tensors=_tensors(table, label, sections),
    )


def _attachment(row: object, label: str, sections: list[Section]) -> AttachmentSpec:
    table = _table(row, label)
    values = _table(table.get("values"), "values")
    if any(isinstance(value, dict | list) for value in values.values()):
        raise Malformed(f"{label}: a value is no scalar")
    return AttachmentSpec(
        schema=_value(table, "schema", str),
        values=cast("dict[str, Scalar]", values),
        tensors=_tensors(table, label, sections),
    )


def _tensors(table: Mapping[str, object], label: str, sections: list[Section]) -> tuple[TensorSpec, ...]:
    """Decode the tensors of one layer or attachment and append where they lie to ``sections``."""
    rows = _rows(table, "tensors", MAX_TENSORS - len(sections))
    tensors = tuple(_tensor(row, label, sections) for row in rows)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise Malformed(f"{label}: two tensors of one name")
    return tensors


def _tensor(row: object, label: str, sections: list[Section]) -> TensorSpec:
    # One call that gets and one that compares: a scan does this half a million times.
    try:
        fields = _TENSOR_FIELDS(_table(row, label))
    except KeyError as error:
        raise Malformed(f"{label}: a tensor without {error}") from error
    if tuple(map(type, fields)) != _TENSOR_TYPES:
        raise Malformed(f"{label}: a field of a tensor has a wrong type")
    name, dtype, shape, offset, nbytes, digest = cast("tuple[str, str, list[object], int, int, str]", fields)
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int for size in shape):
        raise Malformed(f"{label}.{name}: no shape")
    tensor = _tensor_spec(name, dtype, *cast("list[int]", shape))
    if nbytes != tensor.nbytes:
        raise Malformed(f"{label}.{name}: {nbytes} bytes for {tensor.nbytes}")
    sections.append(Section(f"{label}.{name}", offset, nbytes, _digest(digest)))
    return tensor


@lru_cache(maxsize=1024)
def _tensor_spec(name: str, dtype: str, *shape: int) -> TensorSpec:
    # The layers of a model share most of theirs.
    try:
        return TensorSpec(name, dtype, shape)
    except ValueError as error:
        raise Malformed(str(error)) from error


def _check_places(sections: Sequence[Section], data_bytes: int) -> None:
    *offsets, end = section_offsets(section.nbytes for section in sections)
    for section, offset in zip(sections, offsets, strict=True):
        if section.offset != offset:
            raise Malformed(f"{section.label} at {section.offset}, its place is {offset}")
    if end != data_bytes:
        raise Malformed(f"{end} bytes of data, the file has {data_bytes}")
