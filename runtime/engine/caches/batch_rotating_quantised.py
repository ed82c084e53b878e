"""Quantised rings in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import planes as of
from .batch_ring import BatchRingKVCache
from .rotating_quantised import RotatingQuantizedKVCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

    from .planes import Planes


class BatchRotatingQuantizedKVCache(BatchRingKVCache):
    """Rows of RotatingQuantizedKVCache; ``bits`` makes mlx-lm's attention take the quantised road."""

    def __init__(self, max_size: int, lengths: Sequence[int], group_size: int = 64, bits: int = 8) -> None:
        super().__init__(max_size, lengths)
        self.group_size = group_size
        self.bits = bits

    @classmethod
    def _alone(cls, cache: Any) -> BatchRingKVCache:
        batch = cls(cache.max_size, [cache.offset], cache.group_size, cache.bits)
        batch._take(cache, cache.planes)
        return batch

    def _encoded(self, keys: mx.array, values: mx.array) -> Planes:
        return of.quantise(keys, values, bits=self.bits, group_size=self.group_size)

    def _empty_row(self) -> Any:
        return RotatingQuantizedKVCache(self.max_size, group_size=self.group_size, bits=self.bits)
