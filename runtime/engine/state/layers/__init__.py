"""Signatures of cache layers, mlx-lm's and our own (DESIGN §5, seed §2): one codec per class, or an error.

The class must match exactly: a subclass may behave differently, so it is unknown until somebody registers
it. ``signature_of`` is the one place that says what a live cache is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from ...errors import UnknownCache
from ..caches.rotating_quantised import RotatingQuantizedKVCache
from .arrays import ArraysCodec
from .chunked import ChunkedCodec
from .plain import PlainCodec
from .quantised import QuantisedCodec
from .ring import QuantisedRingCodec, RingCodec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .codec import LayerCodec

LAYOUT: Final = 1
"""Changes when the same signature begins to mean other bytes; part of the identity."""

Structure: TypeAlias = "tuple[Structure | None, ...]"
"""How nested cache lists hold the layers: None is one layer."""

_CODECS: Final[dict[type, LayerCodec]] = {
    KVCache: PlainCodec(),
    QuantizedKVCache: QuantisedCodec(),
    RotatingKVCache: RingCodec(),
    RotatingQuantizedKVCache: QuantisedRingCodec(),
    ChunkedKVCache: ChunkedCodec(),
    ArraysCache: ArraysCodec(),
}


def codec_of(cache: object) -> LayerCodec:
    """Return the codec of a live cache layer. Raises UnknownCache naming the class."""
    kind = type(cache)
    codec = _CODECS.get(kind)
    if codec is None:
        known = ", ".join(each.__name__ for each in _CODECS)
        raise UnknownCache(f"{kind.__module__}.{kind.__qualname__} declares no signature; known: {known}")
    return codec


def signature_of(cache: object) -> str:
    """Return the signature of a live cache layer. Raises UnknownCache."""
    return codec_of(cache).signature(cache)


def leaves(caches: Iterable[Any]) -> Iterator[Any]:
    """Yield the cache layers in order, nested lists flattened."""
    for cache in caches:
        if type(cache) is CacheList:
            yield from leaves(cast("Iterable[Any]", cache.caches))
        else:
            yield cache


def structure_of(caches: Iterable[Any]) -> Structure:
    """Return how the layers are nested."""
    return tuple(
        structure_of(cast("Iterable[Any]", cache.caches)) if type(cache) is CacheList else None
        for cache in caches
    )


def nest(structure: Structure, layers: Iterator[Any]) -> list[Any]:
    """Put flat layers back into ``structure``; the inverse of ``leaves``."""
    return [next(layers) if part is None else CacheList(*nest(part, layers)) for part in structure]
