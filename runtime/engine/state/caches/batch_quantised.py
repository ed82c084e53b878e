"""Quantised rows in one batch, growing ones and rings. By ``bits`` mlx-lm's attention knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_lm.models.cache import QuantizedKVCache

from . import planes as of
from .batch_growing import BatchGrowingKVCache
from .batch_ring import BatchRingKVCache
from .rotating_quantised import RotatingQuantizedKVCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

    from .planes import Planes


class BatchQuantizedKVCache(BatchGrowingKVCache):
    """Rows of QuantizedKVCache."""

    def __init__(self, left_padding: Sequence[int], group_size: int = 64, bits: int = 8) -> None:
        super().__init__(left_padding)
        self.group_size = group_size
        self.bits = bits

    @classmethod
    def _padded_like(cls, row: Any, pads: Sequence[int]) -> BatchGrowingKVCache:
        return cls(pads, row.group_size, row.bits)

    def _encoded(self, keys: mx.array, values: mx.array) -> Planes:
        return of.quantise(keys, values, bits=self.bits, group_size=self.group_size)

    def _empty_row(self) -> Any:
        return QuantizedKVCache(self.group_size, self.bits)


class BatchRotatingQuantizedKVCache(BatchRingKVCache):
    """Rows of RotatingQuantizedKVCache."""

    def __init__(self, max_size: int, lengths: Sequence[int], group_size: int = 64, bits: int = 8) -> None:
        super().__init__(max_size, lengths)
        self.group_size = group_size
        self.bits = bits

    @classmethod
    def _empty_like(cls, row: Any) -> BatchRingKVCache:
        return cls(row.max_size, [row.offset], row.group_size, row.bits)

    def _encoded(self, keys: mx.array, values: mx.array) -> Planes:
        return of.quantise(keys, values, bits=self.bits, group_size=self.group_size)

    def _empty_row(self) -> Any:
        return RotatingQuantizedKVCache(self.max_size, group_size=self.group_size, bits=self.bits)
