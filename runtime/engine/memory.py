"""How much memory the engine holds, and how much it may (REQUIREMENTS D10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx

from .checkpoint import MemoryReading
from .device import computes_on_cpu, device_report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WORKING_SET_KEY: Final = "max_recommended_working_set_size"


class MlxMemoryGauge:
    """``checkpoint.MemoryGauge`` on MLX's own counters.

    MLX counts every evaluated array, loaded weights with them, and not the buffers it keeps for reuse, which
    it gives back under pressure. ``uncounted_bytes`` is for weights that it does not count, such as mapped
    files; they are added.
    """

    def __init__(self, uncounted_bytes: int = 0) -> None:
        self._uncounted_bytes = uncounted_bytes
        self._device_bytes = _device_bytes()

    def __call__(self) -> MemoryReading:
        """Return the present reading: microseconds, no evaluation. The allocator's limit may change."""
        active = mx.get_active_memory() + self._uncounted_bytes
        limits = [limit for limit in (self._device_bytes, mx.get_memory_limit()) if limit > 0]
        return MemoryReading(active, min(limits, default=0))


def _device_bytes() -> int:
    """Return the recommended working set of a GPU, else the device's memory; 0 when unknown."""
    if not computes_on_cpu():
        facts = cast("Callable[[], Mapping[str, str | int]]", mx.device_info)()
        if isinstance(size := facts.get(_WORKING_SET_KEY), int):
            return size
    return device_report().total_memory_bytes or 0
