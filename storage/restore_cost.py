"""How long a restore will take, learned from those that were done. Pure: the caller brings the clock."""

from __future__ import annotations

from typing import Final

PRIOR_BYTES_PER_S: Final = 1e9
"""What a plain NVMe disk with checksums gives at least; believed until restores say otherwise."""
PRIOR_OVERHEAD_S: Final = 0.002
_SMALL_BYTES: Final = 1 << 20
_NEWEST: Final = 0.3
_HALF_LIFE_S: Final = 120.0


class RestoreCost:
    """Estimates seconds = overhead + bytes / bandwidth, each a moving average.

    Old measurements fade back into the prior with a half-life of two minutes: one slow restore would
    otherwise forbid all further ones, and nothing would ever be measured again.
    """

    def __init__(self) -> None:
        self._overhead_s = PRIOR_OVERHEAD_S
        self._seconds_per_byte = 1.0 / PRIOR_BYTES_PER_S
        self._measured_s = 0.0

    def estimate_s(self, size_bytes: int, now_s: float) -> float:
        """Return the expected seconds for restoring ``size_bytes``."""
        overhead_s, seconds_per_byte = self._faded(now_s)
        return overhead_s + size_bytes * seconds_per_byte

    def bytes_per_s(self, now_s: float) -> float:
        """Return the bandwidth that estimates reckon with."""
        return 1.0 / self._faded(now_s)[1]

    def observe(self, read_bytes: int, elapsed_s: float, now_s: float) -> None:
        """Learn from a restore. One below 1 MiB tells about the overhead, a larger one about bandwidth."""
        overhead_s, seconds_per_byte = self._faded(now_s)
        if read_bytes < _SMALL_BYTES:
            overhead_s += _NEWEST * (elapsed_s - overhead_s)
        else:
            transfer_s = max(elapsed_s - overhead_s, 0.1 * elapsed_s)
            seconds_per_byte += _NEWEST * (transfer_s / read_bytes - seconds_per_byte)
        self._overhead_s, self._seconds_per_byte = overhead_s, max(seconds_per_byte, 1e-15)
        self._measured_s = now_s

    def _faded(self, now_s: float) -> tuple[float, float]:
        belief = 0.5 ** (max(0.0, now_s - self._measured_s) / _HALF_LIFE_S)
        prior_s = 1.0 / PRIOR_BYTES_PER_S
        return (
            PRIOR_OVERHEAD_S + belief * (self._overhead_s - PRIOR_OVERHEAD_S),
            prior_s + belief * (self._seconds_per_byte - prior_s),
        )
