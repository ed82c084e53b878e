"""``state:arrays``: mlx-lm's ArraysCache, the state of recurrent and convolution layers.

It encodes all tokens at once: no trim, and nothing in it says how many tokens those are. The checkpoint's
other layers and its maker answer for that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlx_lm.models.cache import ArraysCache

from ...errors import StateMismatch
from .tensors import HeldTensor, LayerState, alias, reusable_from, settled

if TYPE_CHECKING:
    import mlx.core as mx

    from .....storage.spec import LayerSpec


class ArraysCodec:
    """Geometry: ``size``, the number of places, and ``present``, a bit for each that holds an array."""

    def signature(self, cache: Any) -> str:
        """Return ``state:arrays``."""
        del cache
        return "state:arrays"

    def hold(self, cache: Any, offset: int) -> LayerState:
        """Hold every array that is there. StateMismatch while the cache is prepared for padded rows."""
        if cache.left_padding is not None or cache.lengths is not None:
            raise StateMismatch("the state of a padded batch is no checkpoint: extract the row first")
        places: list[mx.array | None] = cache.cache
        present = {place: array for place, array in enumerate(places) if array is not None}
        if not present:
            raise StateMismatch(f"an empty recurrent state after {offset} tokens")
        for place, array in present.items():
            if array.ndim == 0 or array.shape[0] != 1:
                raise StateMismatch(f"place {place}: shape {array.shape} is not that of one sequence")
        return LayerState(
            signature="state:arrays",
            offset=offset,
            trimmable=False,
            reusable_from=reusable_from(cache),
            tensors=tuple(HeldTensor(str(place), settled(array)) for place, array in present.items()),
            geometry={"size": len(places), "present": sum(1 << place for place in present)},
        )

    def lend(self, state: LayerState, length: int) -> Any:
        """Return an ArraysCache; ``length`` is always the state's."""
        assert length == state.offset, "a recurrent state does not trim"
        cache: Any = ArraysCache(state.geometry["size"])
        for tensor in state.tensors:
            cache[int(tensor.name)] = alias(tensor.array)
        return cache

    def expect(self, sample: LayerSpec, stored: LayerSpec) -> LayerSpec:
        """The same arrays whatever the number of tokens."""
        return replace(sample, offset=stored.offset, reusable_from=stored.reusable_from)

    def capacity(self, stored: LayerSpec) -> int | None:
        """None: the arrays are replaced, not extended."""
        del stored
        return None
