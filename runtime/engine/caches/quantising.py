"""Which layers can be quantised, and turning a live one into its quantised twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from mlx_lm.models.cache import KVCache, QuantizedKVCache

from ..errors import StateMismatch, UnknownCache
from . import planes as of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

GROUPS: Final = (128, 64, 32)
"""Widths of a group that MLX has kernels for, widest first."""

BITS: Final = (2, 3, 4, 5, 6, 8)


def quantisable(subject: Any, bits: int, group: int) -> int | None:
    """Return the widest usable group not above ``group``, or None where there is none. No computation.

    ``subject``: the widths of keys and values, or a live plain or rotating layer that holds at least a token.
    None also for one whose single head keeps keys and values of different widths: that is a latent state
    (MLA), of which its model computes with the numbers themselves.
    """
    if bits not in BITS:
        return None
    widths = _widths(subject)
    if widths is None:
        return None
    return next((each for each in GROUPS if each <= group and not any(w % each for w in widths)), None)


def quantised(cache: Any, bits: int, group: int) -> Any:
    """Return the quantised twin of a live plain layer: the same tokens, in new buffers; lazy.

    The source keeps its buffers until it is dropped, so convert, evaluate and drop one layer after the other.
    An empty layer gives an empty twin. Raises UnknownCache for a class that has no quantised twin,
    StateMismatch for widths that ``group`` does not divide.
    """
    kind = type(cast("object", cache))
    if kind is not KVCache:
        raise UnknownCache(f"{kind.__module__}.{kind.__qualname__} has no quantised twin")
    twin: Any = QuantizedKVCache(group_size=group, bits=bits)
    twin.offset = cache.offset
    if cache.keys is not None:
        twin.keys, twin.values = of.halves(_converted(cache, bits, group))
    if floor := getattr(cache, "reusable_from", 0):
        twin.reusable_from = floor
    return twin


def _converted(cache: Any, bits: int, group: int) -> of.Planes:
    if quantisable(cache, bits, group) != group:
        shapes = f"{cache.keys.shape} and {cache.values.shape}"
        raise StateMismatch(f"keys and values {shapes} have no {bits}-bit groups of {group}")
    return of.quantise(cache.keys, cache.values, bits=bits, group_size=group)


def _widths(subject: Any) -> Sequence[int] | None:
    keys: mx.array | None = getattr(subject, "keys", None)
    if keys is None:
        return cast("Sequence[int]", subject) if isinstance(subject, tuple | list) else None
    widths = (keys.shape[3], subject.values.shape[3])
    latent = keys.shape[1] == 1 and widths[0] != widths[1]
    return None if latent or 0 in widths else widths
