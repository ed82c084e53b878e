"""What a model's cache layers hold, from shapes alone: layouts, signatures and bytes (REQUIREMENTS C3)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from ..errors import UnknownCache
from ..port import KvCost
from .layers import codec_of, leaves, structure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....storage.spec import LayerSpec
    from .layers import Structure
    from .layers.codec import LayerCodec
    from .scheme import KvScheme

SAMPLE_TOKENS: Final = 64
"""Tokens of the longest lazy call: convolution states and the like have their full width by then."""


class Layout(NamedTuple):
    """A row's cache layers after some tokens, nested lists flattened."""

    structure: Structure
    codecs: tuple[LayerCodec, ...]
    layers: tuple[LayerSpec, ...]


def layout_of(
    model: Any,
    tokens: int,
    scheme: KvScheme | None = None,
    make_caches: Callable[[Any], list[Any]] = make_prompt_cache,
) -> Layout:
    """Return what empty caches hold after ``tokens`` tokens, converted if a scheme is given.

    Nothing is computed: the model is called lazily and only shapes and types are looked at. On the calling
    thread's stream. Raises UnknownCache for a layer without a signature.
    """
    caches = make_caches(model)
    model(mx.zeros((1, tokens), mx.uint32), cache=caches)
    if scheme is not None:
        caches = scheme.converted(caches)
    flat = list(leaves(caches))
    codecs = tuple(codec_of(cache) for cache in flat)
    held = tuple(codec.hold(cache, tokens).spec for codec, cache in zip(codecs, flat, strict=True))
    return Layout(structure_of(caches), codecs, held)


def signatures_of(layout: Layout) -> dict[str, int]:
    """Return how many layers there are of each signature."""
    return dict(Counter(layer.signature for layer in layout.layers))


def kv_cost(model: Any, scheme: KvScheme) -> KvCost:
    """Return what a row of this model costs under the scheme, the part before its start included."""
    plain = _cost(layout_of(model, SAMPLE_TOKENS).layers)
    if not scheme.quantises:
        return plain
    own = _cost(layout_of(model, SAMPLE_TOKENS, scheme).layers)
    return KvCost(own.token_bytes, own.fixed_bytes, own.windows, scheme.start, plain)


def _cost(layers: Sequence[LayerSpec]) -> KvCost:
    token_bytes, fixed_bytes, windows = 0.0, 0, Counter[int]()
    for layer in layers:
        nbytes = sum(tensor.nbytes for tensor in layer.tensors)
        if layer.signature.startswith("state:"):
            fixed_bytes += nbytes
        elif window := layer.geometry.get("max_size") or layer.geometry.get("chunk_size"):
            windows[window] += nbytes // min(layer.offset, window)
        elif layer.signature.startswith("kv:"):
            token_bytes += nbytes / layer.offset
        else:
            raise UnknownCache(f"the cost of a {layer.signature!r} layer is not known")
    return KvCost(token_bytes, fixed_bytes, tuple((size, float(each)) for size, each in windows.items()))
