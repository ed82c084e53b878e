"""Which layers can be quantised, and turning a live one into its quantised twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from ...errors import StateMismatch, UnknownCache
from . import planes as of
from .rotating_quantised import RotatingQuantizedKVCache, without

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

GROUPS: Final = (128, 64, 32)
"""Widths of a group that MLX has kernels for, widest first."""

BITS: Final = (2, 3, 4, 5, 6, 8)


def quantisable(subject: Any, bits: int, group: int) -> int | None:
    """Return the widest usable group not above ``group``, or None where there is none. No computation.

    ``subject``: the widths of keys and values, or a live plain or rotating layer that holds at least a token.
    None also for any other class, and for a layer whose single head keeps keys and values of different
    widths: that is a latent state (MLA), of which its model computes with the numbers themselves.
    """
    if isinstance(subject, tuple | list):
        return _group_of(cast("Sequence[int]", subject), bits, group)
    if type(subject) not in (KVCache, RotatingKVCache) or subject.keys is None:
        return None
    return _group_of(_widths_of(subject.keys, subject.values), bits, group)


def quantised(cache: Any, bits: int, group: int) -> Any:
    """Return the quantised twin of a live plain or rotating layer: its tokens, in new buffers; lazy.

    A ring's tokens lie as they did. The source keeps its buffers until it is dropped, so convert, evaluate
    and drop one layer after the other. An empty layer gives an empty twin. Raises UnknownCache for a class
    that has no quantised twin, StateMismatch for widths that ``group`` does not divide.
    """
    kind = type(cast("object", cache))
    if kind is KVCache:
        twin = _plain_twin(cache, bits, group)
    elif kind is RotatingKVCache:
        twin = _ring_twin(cache, bits, group)
    else:
        raise UnknownCache(f"{kind.__module__}.{kind.__qualname__} has no quantised twin")
    twin.offset = cache.offset
    if floor := getattr(cache, "reusable_from", 0):
        twin.reusable_from = floor
    return twin


def _plain_twin(cache: Any, bits: int, group: int) -> Any:
    twin: Any = QuantizedKVCache(group_size=group, bits=bits)
    if cache.keys is not None:
        twin.keys, twin.values = of.halves(_converted([cache.keys, cache.values], bits, group))
    return twin


def _ring_twin(cache: Any, bits: int, group: int) -> Any:
    twin: Any = RotatingQuantizedKVCache(cache.max_size, cache.keep, group_size=group, bits=bits)
    if cache.keys is None:
        return twin
    # Tokens that the next update drops are not worth converting: after a long prompt they are most of them.
    surplus = cache.keys.shape[2] - cache.max_size
    planes = without([cache.keys, cache.values], cache.keep, surplus)
    twin.keys, twin.values = of.halves(_converted(planes, bits, group))
    twin._idx = cache._idx - max(0, surplus)  # noqa: SLF001 - mlx-lm's only name for the ring's phase
    return twin


def _converted(planes: of.Planes, bits: int, group: int) -> of.Planes:
    keys, values = planes
    if _group_of(_widths_of(keys, values), bits, group) != group:
        raise StateMismatch(
            f"keys {keys.shape} and values {values.shape} have no {bits}-bit groups of {group}"
        )
    return of.quantise(keys, values, bits=bits, group_size=group)


def _group_of(widths: Sequence[int] | None, bits: int, group: int) -> int | None:
    if widths is None or bits not in BITS:
        return None
    return next((each for each in GROUPS if each <= group and not any(w % each for w in widths)), None)


def _widths_of(keys: mx.array, values: mx.array) -> Sequence[int] | None:
    widths = (keys.shape[3], values.shape[3])
    latent = keys.shape[1] == 1 and widths[0] != widths[1]
    return None if latent or 0 in widths else widths
