"""One row's cache layer to a batch's and back, for every class that rows can share a batch with.

The class must match exactly, as for checkpoints: what a subclass keeps is not known here. A row that is alone
keeps its buffers in both directions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from ...errors import StateMismatch, UnknownCache
from .batch_growing import BatchGrowingKVCache
from .batch_quantised import BatchQuantizedKVCache, BatchRotatingQuantizedKVCache
from .batch_ring import BatchRingKVCache
from .rotating_quantised import RotatingQuantizedKVCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class BatchCache(Protocol):
    """A layer of a running batch, as ``batch_of`` makes it."""

    @property
    def state(self) -> Any:
        """Every array, to be evaluated."""
        ...

    def filter(self, batch_indices: Any) -> None:
        """Keep these rows, in this order."""
        ...

    def extend(self, other: Any) -> None:
        """Append the rows of another batch of the same class."""
        ...


def can_share(cache: object) -> bool:
    """Whether rows with such a layer can decode in one batch. Any thread.

    False for a class that is not known here, and for a ring that keeps its first tokens (``keep``): no model
    of mlx-lm makes one, and rows of different ages would keep different places.
    """
    if type(cache) is CacheList:
        return all(can_share(each) for each in cast("Sequence[object]", cache.caches))
    return type(cache) in _TO_BATCH and not getattr(cache, "keep", 0)


def batch_of(caches: Sequence[Any]) -> Any:
    """Return one batch layer over the rows' layers, which are used up. On the batch's thread; lazy.

    A single row keeps its buffers: nothing is copied. Raises UnknownCache for a class that cannot share a
    batch, StateMismatch for rows of different classes or geometry.
    """
    kinds = {type(cast("object", cache)) for cache in caches}
    if len(kinds) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise StateMismatch(f"one batch layer needs rows of one class, not {names or 'none'}")
    (kind,) = kinds
    if kind is CacheList:
        return _list_of(caches)
    if not all(can_share(cache) for cache in caches):
        raise UnknownCache(f"rows of {kind.__module__}.{kind.__qualname__} cannot share a batch")
    _require_alike(caches)
    return _TO_BATCH[kind](caches)


def row_of(batch: Any, line: int, *, alone: bool) -> Any:
    """Return the layer of one row of a batch that goes on; lazy, and part of no later update.

    ``alone`` says that it is the batch's only row: its buffers are then shared, not copied, and the batch's
    next update copies them if the row is still held.
    """
    kind = type(cast("object", batch))
    if kind is CacheList:
        return CacheList(*(row_of(each, line, alone=alone) for each in batch.caches))
    if kind not in _TO_ROW:
        raise UnknownCache(f"{kind.__module__}.{kind.__qualname__} is no batch layer")
    return _TO_ROW[kind](batch, line, alone)


def _list_of(caches: Sequence[Any]) -> CacheList:
    sizes = {len(cache.caches) for cache in caches}
    if len(sizes) != 1:
        raise StateMismatch(f"nested layers of {sorted(sizes)} members")
    return CacheList(*(batch_of(list(members)) for members in zip(*(c.caches for c in caches), strict=True)))


_GEOMETRY: Final = ("bits", "group_size", "max_size")


def _require_alike(caches: Sequence[Any]) -> None:
    for name in _GEOMETRY:
        found: set[object] = {getattr(cache, name, None) for cache in caches}
        if len(found) != 1:
            raise StateMismatch(f"{type(caches[0]).__name__}: rows whose {name} are {found}")


def _own_row(batch: Any, line: int, alone: bool) -> Any:  # noqa: FBT001
    return batch.handed_over() if alone else batch.extract(line)


def _arrays_batch(caches: Sequence[Any]) -> Any:
    sizes = {len(cache.cache) for cache in caches}
    if len(sizes) != 1:
        raise StateMismatch(f"recurrent states of {sorted(sizes)} arrays")
    batch: Any = ArraysCache(sizes.pop())
    batch.cache = [_rows_joined(list(same)) for same in zip(*(each.cache for each in caches), strict=True)]
    if len(caches) > 1 and all(array is None for array in batch.cache):
        batch.left_padding = mx.array([0] * len(caches))  # what tells an empty state how many rows it has
    return batch


def _rows_joined(rows: list[mx.array | None]) -> mx.array | None:
    like = next((row for row in rows if row is not None), None)
    if like is None or len(rows) == 1:
        return like
    return mx.concatenate([mx.zeros_like(like) if row is None else row for row in rows])


def _arrays_row(batch: Any, line: int, alone: bool) -> Any:  # noqa: FBT001
    """Return one row's state. Its arrays are replaced, never updated: a row alone takes them as they are."""
    row: Any = ArraysCache(len(batch.cache))
    row.cache = [array if array is None or alone else array[line : line + 1] for array in batch.cache]
    return row


_TO_BATCH: Final[dict[type, Callable[[Sequence[Any]], Any]]] = {
    KVCache: BatchGrowingKVCache.merge,
    QuantizedKVCache: BatchQuantizedKVCache.merge,
    RotatingKVCache: BatchRingKVCache.merge,
    RotatingQuantizedKVCache: BatchRotatingQuantizedKVCache.merge,
    ArraysCache: _arrays_batch,
}

_TO_ROW: Final[dict[type, Callable[[Any, int, bool], Any]]] = {
    BatchGrowingKVCache: _own_row,
    BatchQuantizedKVCache: _own_row,
    BatchRingKVCache: _own_row,
    BatchRotatingQuantizedKVCache: _own_row,
    ArraysCache: _arrays_row,
}
