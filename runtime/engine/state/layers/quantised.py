"""``kv:quant:<bits>:<group>``: mlx-lm's QuantizedKVCache, affine triples per keys and values.

Groups run along the head's width, never along tokens, so any range of rows is whole on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mlx_lm.models.cache import QuantizedKVCache

from ...errors import StateMismatch
from .plain import expect_rows, growing_capacity
from .tensors import LayerState, alias, held_rows, require_offset, reusable_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

    from .....storage.spec import LayerSpec

_PARTS: Final = ("packed", "scales", "biases")


class QuantisedCodec:
    """Trims to any length from ``reusable_from`` on."""

    def signature(self, cache: Any) -> str:
        """Return ``kv:quant:`` with bits and group."""
        return f"kv:quant:{cache.bits}:{cache.group_size}"

    def hold(self, cache: Any, offset: int) -> LayerState:
        """Hold both triples up to the offset."""
        require_offset(cache, offset)
        tensors = tuple(held_rows(name, array, ((0, offset),)) for name, array in triples_of(cache))
        return LayerState(
            signature=self.signature(cache),
            offset=offset,
            trimmable=True,
            reusable_from=reusable_from(cache),
            tensors=tensors,
            geometry={"bits": cache.bits, "group_size": cache.group_size},
        )

    def lend(self, state: LayerState, length: int) -> Any:
        """Return a QuantizedKVCache of the first ``length`` tokens."""
        cache: Any = QuantizedKVCache(group_size=state.geometry["group_size"], bits=state.geometry["bits"])
        cache.keys, cache.values = halves_of([alias(tensor.array) for tensor in state.tensors])
        cache.offset = length
        return cache

    def expect(self, sample: LayerSpec, stored: LayerSpec) -> LayerSpec:
        """One row a token; bits and group are the sample's."""
        return expect_rows(sample, stored)

    def capacity(self, stored: LayerSpec) -> int | None:
        """Whole steps, and room for the next token."""
        return growing_capacity(stored.offset)


def triples_of(cache: Any) -> list[tuple[str, mx.array]]:
    """Return the six arrays of a quantised layer with their names. StateMismatch unless there are six."""
    halves = (("keys", cache.keys), ("values", cache.values))
    for name, triple in halves:
        if triple is None or len(triple) != len(_PARTS):
            raise StateMismatch(f"{name}: no triple of {', '.join(_PARTS)}")
    return [
        (f"{name}.{part}", array)
        for name, triple in halves
        for part, array in zip(_PARTS, triple, strict=True)
    ]


def halves_of(arrays: Sequence[mx.array]) -> tuple[tuple[mx.array, ...], tuple[mx.array, ...]]:
    """Return the triples of keys and values."""
    return tuple(arrays[: len(_PARTS)]), tuple(arrays[len(_PARTS) :])
