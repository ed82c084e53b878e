"""``kv:chunked``: mlx-lm's ChunkedKVCache (llama4), which attends within fixed chunks of the text.

Before each call of the model the layer drops all but its last ``chunk_size`` tokens, so a checkpoint holds no
more than those, and what goes on from it is what would have gone on. Until the chunk is full every token is
there and a shorter prefix is the same rows; after that older rows are gone: no trim. (mlx-lm's own
``is_trimmable`` says yes always, and its ``trim`` then leaves less than a chunk behind the last token.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlx_lm.models.cache import ChunkedKVCache

from ...errors import StateMismatch
from .plain import growing_capacity
from .tensors import LayerState, alias, held_rows, require_offset, reusable_from, with_rows

if TYPE_CHECKING:
    from .....storage.spec import LayerSpec


class ChunkedCodec:
    """Geometry: ``chunk_size``. Rows: the last of as many tokens."""

    def signature(self, cache: Any) -> str:
        """Return ``kv:chunked``."""
        del cache
        return "kv:chunked"

    def hold(self, cache: Any, offset: int) -> LayerState:
        """Hold the last chunk of tokens."""
        require_offset(cache, offset)
        last = offset - cache.start_position
        rows = min(offset, cache.chunk_size)
        if not 0 < rows <= last:
            raise StateMismatch(f"{last} rows after {offset} tokens, {rows} should be there")
        tensors = tuple(
            held_rows(name, array, ((last - rows, last),))
            for name, array in (("keys", cache.keys), ("values", cache.values))
        )
        return LayerState(
            signature="kv:chunked",
            offset=offset,
            trimmable=offset <= cache.chunk_size,
            reusable_from=reusable_from(cache),
            tensors=tensors,
            geometry={"chunk_size": cache.chunk_size},
        )

    def lend(self, state: LayerState, length: int) -> Any:
        """Return a ChunkedKVCache of the first ``length`` tokens."""
        cache: Any = ChunkedKVCache(state.geometry["chunk_size"])
        cache.keys, cache.values = (alias(tensor.array) for tensor in state.tensors)
        cache.offset = length
        runs = state.tensors[0].runs
        assert runs is not None, "attention layers hold rows"
        cache.start_position = state.offset - runs[-1][1]
        return cache

    def expect(self, sample: LayerSpec, stored: LayerSpec) -> LayerSpec:
        """One row a token up to the chunk."""
        chunk_size = sample.geometry["chunk_size"]
        rows = min(stored.offset, chunk_size)
        return replace(
            sample,
            offset=stored.offset,
            trimmable=stored.offset <= chunk_size,
            reusable_from=stored.reusable_from,
            tensors=tuple(with_rows(tensor, rows) for tensor in sample.tensors),
        )

    def capacity(self, stored: LayerSpec) -> int | None:
        """Whole steps, and room for the next token."""
        return growing_capacity(min(stored.offset, stored.geometry["chunk_size"]))
