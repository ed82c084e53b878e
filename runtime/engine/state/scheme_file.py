"""``kv_config.json`` in a model's folder: bits and group of each layer's KV state (REQUIREMENTS C1, seed §3).

A list with one object for each layer that is quantised, in any order::

    [{"layer_idx": 0, "bits": 8, "group_size": 64}, {"layer_idx": 1, "bits": 4}, ...]

``layer_idx`` counts the model's cache layers from 0 and comes once. ``bits`` is one of 2, 3, 4, 5, 6 and 8;
16 keeps the layer as it is, as leaving it out does. ``group_size`` is 32, 64 or 128, the widest group
wanted, and ``kv.group_size`` where it is left out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from ..errors import SchemeRefused
from .caches.quantising import BITS, GROUPS
from .scheme import LayerScheme

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

FILE_NAME: Final = "kv_config.json"
_KEPT: Final = 16
_KEYS: Final = frozenset(("layer_idx", "bits", "group_size"))


def read_layers(folder: Path, group_size: int) -> dict[int, LayerScheme]:
    """Return what the folder's file asks for, by layer. Raises SchemeRefused naming file and entry."""
    path = folder / FILE_NAME
    try:
        value = cast("object", json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise SchemeRefused(f'kv.scheme = "config" needs {path}, which is not there') from error
    except (OSError, ValueError) as error:
        raise SchemeRefused(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, list):
        raise SchemeRefused(f"{path}: expected a list of layers, found {type(value).__name__}")
    layers: dict[int, LayerScheme | None] = {}
    for place, entry in enumerate(cast("list[object]", value)):
        try:
            layer, how = _entry(entry, group_size, layers)
        except ValueError as error:
            raise SchemeRefused(f"{path}: entry {place}: {error}") from error
        layers[layer] = how
    return {layer: how for layer, how in layers.items() if how is not None}


def _entry(entry: object, group_size: int, seen: Container[int]) -> tuple[int, LayerScheme | None]:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {entry!r}")  # noqa: TRY004 - one kind for all of them
    fields = cast("dict[str, object]", entry)
    if unknown := sorted(fields.keys() - _KEYS):
        raise ValueError(f"unknown key {unknown[0]!r}")
    layer = fields.get("layer_idx")
    if type(layer) is not int or layer < 0:
        raise ValueError(f"layer_idx is {layer!r}, expected a number from 0")
    if layer in seen:
        raise ValueError(f"layer_idx {layer} comes twice")
    bits = _one_of(fields.get("bits"), (*BITS, _KEPT), "bits")
    group = _one_of(fields.get("group_size", group_size), GROUPS, "group_size")
    return layer, None if bits == _KEPT else LayerScheme(bits, group)


def _one_of(value: object, allowed: tuple[int, ...], name: str) -> int:
    if type(value) is not int or value not in allowed:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(str, allowed))}")
    return value
