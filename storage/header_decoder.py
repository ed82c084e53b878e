"""Decoding the JSON header of a container, taking nothing on trust.

Every value has its type and limit checked before it is used, and every section must lie exactly where the
layout puts it. The writer decodes what it is about to write with the same rules, so no file is made that
could not be read.

A start-up scan decodes a million tensors, so rows are turned into columns: a column is checked by one call.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from .checksums import ALGORITHMS, DIGEST_DIGITS, Checksum
from .header import HeaderParts, Malformed, Section
from .layout import (
    MAX_ATTACHMENTS,
    MAX_DIMENSIONS,
    MAX_FEATURES,
    MAX_LAYERS,
    MAX_TENSORS,
    MAX_TOKENS,
    aligned,
)
from .spec import AttachmentSpec, LayerSpec, TensorSpec
from .tokens import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_NUMBER: Final = (int, float)
_SCALAR: Final = (int, float, str, bool, type(None))

# Fields of each kind of object and the exact types they may have: a bool is no int here.
_HEADER: Final = {
    "identity": (str,),
    "namespace": (str,),
    "checksum": (str,),
    "created_s": _NUMBER,
    "tokens": (dict,),
    "layers": (list,),
    "attachments": (list,),
}
_TOKENS: Final = {"count": (int,), "offset": (int,), "bytes": (int,), "hash": (str,)}
_LAYER: Final = {
    "signature": (str,),
    "offset": (int,),
    "trimmable": (bool,),
    "reusable_from": (int,),
    "geometry": (dict,),
    "tensors": (list,),
}
_ATTACHMENT: Final = {"schema": (str,), "values": (dict,), "tensors": (list,)}
_TENSOR: Final = {
    "name": (str,),
    "dtype": (str,),
    "shape": (list,),
    "offset": (int,),
    "bytes": (int,),
    "hash": (str,),
}


def parse_json(data: bytes | memoryview) -> dict[str, object]:
    """Return the JSON object in ``data``. Malformed when there is none; the parser limits nesting."""
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise Malformed("the header is no object")
    return cast("dict[str, object]", value)


def features_of(table: Mapping[str, object]) -> tuple[str, ...]:
    """Return the features that a reader needs for this header, to be known before the rest is looked at."""
    ((features,),) = _columns("the header", [table], {"features": (list,)})
    _check_count("features", features, MAX_FEATURES)
    _check_types("features", features, (str,))
    return tuple(features)


def decode_header(table: Mapping[str, object], data_bytes: int) -> HeaderParts:
    """Return what the header says; ``data_bytes`` is the length of the file from the data start on.

    The sections follow each other in order, each at the first aligned offset after the one before, and the
    last ends with the file: so they are disjoint, and every byte belongs to one or is padding.
    Malformed otherwise.
    """
    columns = _columns("the header", [table], _HEADER)
    identity, namespace, checksum, created_s, tokens, layers, attachments = (value for (value,) in columns)
    _check_count("layers", layers, MAX_LAYERS)
    _check_count("attachments", attachments, MAX_ATTACHMENTS)
    layer_columns = _columns("layers", layers, _LAYER)
    attachment_columns = _columns("attachments", attachments, _ATTACHMENT)
    groups = [*layer_columns[-1], *attachment_columns[-1]]
    specs, sections = _tensors(list(chain.from_iterable(groups)))
    token_section = _token_section(tokens)
    _check_places((token_section, *sections), data_bytes)
    parts = _grouped(specs, groups)
    return HeaderParts(
        identity=identity,
        namespace=namespace,
        checksum=_checksum(checksum),
        created_s=_time(created_s),
        features=features_of(table),
        layers=_layers(layer_columns, parts),
        attachments=_attachments(attachment_columns, parts),
        tokens=token_section,
        tensors=tuple(sections),
    )


def _columns(
    name: str, rows: Sequence[object], fields: Mapping[str, tuple[type, ...]]
) -> Sequence[Sequence[Any]]:
    """Return the values of each field over all rows, each of a type that the field may have."""
    # With one field itemgetter gives no tuple, so the first is asked for twice.
    get = itemgetter(next(iter(fields)), *fields)
    try:
        values = list(map(get, cast("Sequence[dict[str, object]]", rows)))
    except KeyError as error:
        raise Malformed(f"{name}: no {error}") from error
    except TypeError as error:
        raise Malformed(f"{name}: no object") from error
    _, *columns = zip(*values, strict=True) if values else [()] * (1 + len(fields))
    for (field, kinds), column in zip(fields.items(), columns, strict=True):
        _check_types(f"{name}: {field}", column, kinds)
    return columns


def _check_types(name: str, values: Iterable[object], kinds: tuple[type, ...]) -> None:
    wrong = set(map(type, values)).difference(kinds)
    if wrong:
        raise Malformed(f"{name} of type {wrong.pop().__name__}")


def _check_count(name: str, values: Sequence[object], limit: int) -> None:
    if len(values) > limit:
        raise Malformed(f"{len(values)} {name}, at most {limit}")


def _token_section(table: Mapping[str, object]) -> Section:
    (count,), (offset,), (nbytes,), (digest,) = _columns("tokens", [table], _TOKENS)
    if not 0 <= count <= MAX_TOKENS or nbytes != count * ITEM_BYTES:
        raise Malformed(f"{count} tokens in {nbytes} bytes")
    return Section(offset, nbytes, digest)


def _inner(tables: Sequence[dict[str, object]]) -> Iterator[object]:
    return chain.from_iterable([table.values() for table in tables])


def _layers(
    columns: Sequence[Sequence[Any]], tensors: Iterator[tuple[TensorSpec, ...]]
) -> tuple[LayerSpec, ...]:
    *values, geometries, _ = columns
    _check_types("geometry: a number", _inner(geometries), (int,))
    return tuple(map(LayerSpec, *values, geometries, islice(tensors, len(geometries))))


def _attachments(
    columns: Sequence[Sequence[Any]], tensors: Iterator[tuple[TensorSpec, ...]]
) -> tuple[AttachmentSpec, ...]:
    schemas, values, _ = columns
    _check_types("values: one", _inner(values), _SCALAR)
    return tuple(map(AttachmentSpec, schemas, values, islice(tensors, len(schemas))))


def _tensors(rows: Sequence[object]) -> tuple[Sequence[TensorSpec], Sequence[Section]]:
    """Decode the rows of all tensors: what they are and where they lie."""
    _check_count("tensors", rows, MAX_TENSORS)
    names, dtypes, shapes, *places = _columns("tensors", rows, _TENSOR)
    _check_types("shape: a size", chain.from_iterable(shapes), (int,))
    specs = list(map(_tensor_spec, names, dtypes, cast("map[tuple[int, ...]]", map(tuple, shapes))))
    sections = list(map(Section, *places))
    for (spec, expected_bytes), section in zip(specs, sections, strict=True):
        if section.nbytes != expected_bytes:
            raise Malformed(f"tensor {spec.name!r}: {section.nbytes} bytes for {expected_bytes}")
    return [spec for spec, _ in specs], sections


@lru_cache(maxsize=1024)
def _tensor_spec(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[TensorSpec, int]:
    """Return the spec and its bytes. The layers of a model share most of theirs."""
    if len(shape) > MAX_DIMENSIONS:
        raise Malformed(f"tensor {name!r}: {len(shape)} dimensions, at most {MAX_DIMENSIONS}")
    try:
        tensor = TensorSpec(name, dtype, shape)
    except ValueError as error:
        raise Malformed(str(error)) from error
    return tensor, tensor.nbytes


def _grouped(
    specs: Sequence[TensorSpec], groups: Iterable[Sequence[object]]
) -> Iterator[tuple[TensorSpec, ...]]:
    """Yield the tensors of each layer, then of each attachment."""
    rest = iter(specs)
    for group in groups:
        tensors = tuple(islice(rest, len(group)))
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise Malformed(f"two tensors of one name among {[tensor.name for tensor in tensors][:8]}")
        yield tensors


def _check_places(sections: Iterable[Section], data_bytes: int) -> None:
    end = 0
    for place, (offset, nbytes, digest) in enumerate(sections):
        if offset != aligned(end):
            raise Malformed(f"section {place} at {offset}, its place is {aligned(end)}")
        if len(digest) != DIGEST_DIGITS:
            raise Malformed(f"section {place}: no hash")
        end = offset + nbytes
    if end != data_bytes:
        raise Malformed(f"{end} bytes of data, the file has {data_bytes}")


def _checksum(value: str) -> Checksum:
    if value not in ALGORITHMS:
        raise Malformed(f"unknown checksum {value!r}")
    return value


def _time(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise Malformed(f"created_s is {seconds}")
    return float(seconds)
