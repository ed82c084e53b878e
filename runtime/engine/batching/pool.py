"""When the buffers that MLX keeps for reuse are given back to the system."""

from __future__ import annotations

from typing import Final

import mlx.core as mx

KEPT_SHARE: Final = 16
"""A pool beyond the 16th part of the memory that the engine may use is emptied."""
LONG_PREFILL_TOKENS: Final = 4096


class BufferPool:
    """MLX's pool of freed buffers, emptied by three rules. Any thread; the pool is the process's.

    At rest; when it has grown beyond a KEPT_SHARE-th of ``limit_bytes`` (0: unknown, no such rule); and after
    every LONG_PREFILL_TOKENS of prefill, whose buffers have sizes that do not come again. In between it is
    left alone: steps of one batch need the same sizes over and over.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._most_bytes = limit_bytes // KEPT_SHARE
        self._prefilled = 0

    def stepped(self) -> None:
        """Look at the pool after a step; a few hundred nanoseconds."""
        if self._most_bytes and mx.get_cache_memory() > self._most_bytes:
            self.empty()

    def prefilled(self, tokens: int) -> None:
        """Note prompt tokens that were prefilled."""
        self._prefilled += tokens
        if self._prefilled >= LONG_PREFILL_TOKENS:
            self.empty()

    def empty(self) -> None:
        """Give the pool back."""
        self._prefilled = 0
        mx.clear_cache()
