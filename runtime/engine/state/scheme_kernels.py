"""One small quantised attention of each kind on the device, compared with the same over decoded numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import mlx.core as mx
from mlx_lm.models.base import quantized_scaled_dot_product_attention
from mlx_lm.models.cache import make_prompt_cache

from ..errors import SchemeRefused
from .layers import leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from .scheme import KvScheme

TOLERANCE: Final = 0.05
"""Largest difference of outputs that are averages of values around one; half precision differs by 0.01."""

_TOKENS: Final = 5
_attend = cast("Callable[..., mx.array]", quantized_scaled_dot_product_attention)


class _Kind(NamedTuple):
    bits: int
    group_size: int
    heads: int
    key_width: int
    value_width: int
    dtype: mx.Dtype


def check_kernels(model: Any, scheme: KvScheme) -> None:
    """Raise SchemeRefused, with what MLX says, when the device cannot compute what the scheme needs."""
    caches = make_prompt_cache(model)
    model(mx.zeros((1, 2), mx.uint32), cache=caches)
    kinds: set[_Kind] = set()
    for cache, how in zip(leaves(caches), scheme.layers, strict=True):
        if how is not None:
            heads, width = cache.keys.shape[1], cache.keys.shape[-1]
            values = cache.values.shape[-1]
            kinds.add(_Kind(how.bits, how.group_size, heads, width, values, cache.keys.dtype))
    for kind in kinds:
        _check(kind)


def _check(kind: _Kind) -> None:
    what = f"{kind.bits}-bit attention in groups of {kind.group_size} over {kind.dtype}"
    try:
        apart = max(_difference(kind, queries) for queries in (1, 3))
    except (RuntimeError, ValueError) as error:
        raise SchemeRefused(f"{mx.default_device()} cannot compute {what}: {error}") from error
    if not apart <= TOLERANCE:  # NaN as well
        raise SchemeRefused(f"{mx.default_device()} computes {what} wrongly: off by {apart:.3g}")


def _difference(kind: _Kind, queries: int) -> float:
    keys = _drawn(1, (1, kind.heads, _TOKENS, kind.key_width), kind.dtype)
    values = _drawn(2, (1, kind.heads, _TOKENS, kind.value_width), kind.dtype)
    query = _drawn(3, (2, 2 * kind.heads, queries, kind.key_width), kind.dtype)
    packed = [_twice(mx.quantize(half, kind.group_size, kind.bits)) for half in (keys, values)]
    scale = kind.key_width**-0.5
    mask = mx.ones((queries, _TOKENS), mx.bool_)
    decoded = [
        mx.dequantize(*half, group_size=kind.group_size, bits=kind.bits).astype(mx.float32) for half in packed
    ]
    wanted = mx.fast.scaled_dot_product_attention(query.astype(mx.float32), *decoded, scale=scale)
    # Behind ``wanted``: it scales the queries in place.
    got = _attend(query, *packed, scale=scale, mask=mask, group_size=kind.group_size, bits=kind.bits)
    return cast("float", mx.max(mx.abs(got.astype(mx.float32) - wanted)).item())


def _drawn(key: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(key)).astype(dtype)


def _twice(parts: Any) -> tuple[mx.array, ...]:
    """Two rows of a batch, as decoding has them."""
    return tuple(mx.concatenate([part, part]) for part in cast("tuple[mx.array, ...]", parts))
