"""``kv:plain``: mlx-lm's KVCache, keys and values of every token. MLA's latents are kept in it as well."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mlx_lm.models.cache import KVCache

from .tensors import LayerState, alias, held_rows, require_offset, reusable_from, with_rows

if TYPE_CHECKING:
    from .....storage.spec import LayerSpec

STEP: Final = 256
"""Rows by which mlx-lm grows a cache."""


def growing_capacity(offset: int) -> int:
    """Return ``offset`` rounded up to whole steps with room for one token more, so decode starts in place."""
    return (offset // STEP + 1) * STEP


def expect_rows(sample: LayerSpec, stored: LayerSpec) -> LayerSpec:
    """Return ``sample`` after ``stored.offset`` tokens, one row each."""
    return replace(
        sample,
        offset=stored.offset,
        reusable_from=stored.reusable_from,
        tensors=tuple(with_rows(tensor, stored.offset) for tensor in sample.tensors),
    )


class PlainCodec:
    """Trims to any length: rows behind the offset are never read."""

    def signature(self, cache: Any) -> str:
        """Return ``kv:plain``."""
        del cache
        return "kv:plain"

    def hold(self, cache: Any, offset: int) -> LayerState:
        """Hold keys and values up to the offset."""
        require_offset(cache, offset)
        tensors = tuple(
            held_rows(name, array, ((0, offset),))
            for name, array in (("keys", cache.keys), ("values", cache.values))
        )
        return LayerState(
            signature="kv:plain",
            offset=offset,
            trimmable=True,
            reusable_from=reusable_from(cache),
            tensors=tensors,
        )

    def lend(self, state: LayerState, length: int) -> Any:
        """Return a KVCache of the first ``length`` tokens."""
        cache: Any = KVCache()
        cache.keys, cache.values = (alias(tensor.array) for tensor in state.tensors)
        cache.offset = length
        return cache

    def expect(self, sample: LayerSpec, stored: LayerSpec) -> LayerSpec:
        """One row a token."""
        return expect_rows(sample, stored)

    def capacity(self, stored: LayerSpec) -> int | None:
        """Whole steps, and room for the next token."""
        return growing_capacity(stored.offset)
