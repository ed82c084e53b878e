"""How fast a lane runs: pure arithmetic, no clock of its own."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_WINDOW: Final = 256
_SMOOTHING: Final = 0.3
_AT_LEAST: Final = 0.1
"""The share of its gaps that a pass has for certain, however noisy they are."""


class RateWindow:
    """Amounts and their durations over the last 256 records."""

    def __init__(self) -> None:
        self._amounts: deque[int] = deque(maxlen=_WINDOW)
        self._seconds: deque[float] = deque(maxlen=_WINDOW)

    def record(self, amount: int, seconds: float) -> None:
        """Add one record, forgetting the oldest."""
        self._amounts.append(amount)
        self._seconds.append(seconds)

    @property
    def per_second(self) -> float:
        """The amount per second over the window; 0 before the first record."""
        seconds = sum(self._seconds)
        return sum(self._amounts) / seconds if seconds > 0 else 0.0

    def percentiles_ms(self) -> tuple[float, float]:
        """Return the median and the 99th percentile of the durations, in milliseconds."""
        ordered = sorted(self._seconds)
        return _rank(ordered, 0.5) * 1e3, _rank(ordered, 0.99) * 1e3


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


class StepMeter:
    """Times decode steps by when their tokens became known.

    A step's time is the gap that its rows saw: from the previous step's tokens (or from the first
    launch after a pause) to its own, a prefill pass in between included.

    A pass runs between two reads: the step before it is read while it runs, the step behind it when it is
    done. Where its time falls depends on the device: into the second gap where launching returns at once,
    into the first where the launch computes. So it is what both gaps have beyond two
    steps, and the shorter of them tells what a step takes. ``plain_s`` is a running mean of that and of the
    steps that no pass was near.
    """

    def __init__(self) -> None:
        self.window = RateWindow()
        self.plain_s = 0.0
        self._since_s: float | None = None
        self._beside_s: float | None = None
        self._within_s = 0.0

    def started(self, now_s: float) -> None:
        """A first step was launched after a pause."""
        self._since_s = now_s

    def paused(self) -> None:
        """Nothing decodes any more: the next gap is not a step's."""
        self._since_s = self._beside_s = None
        self._within_s = 0.0

    def interrupted(self, seconds: float) -> None:
        """A pass was seen through between two steps: what it took is no part of the next step."""
        self._within_s += seconds

    def read(self, rows: int, now_s: float, *, running: bool = False, passed: bool = False) -> float:
        """Record that a step's tokens for ``rows`` rows are known; return the seconds of a pass that is done.

        ``running``: a pass was launched before this read, and may not be done; ``passed``: it is done.
        """
        gap = 0.0 if self._since_s is None else now_s - self._since_s
        self._since_s = now_s
        self.window.record(rows, gap)
        within_s, self._within_s = self._within_s, 0.0
        if within_s:
            self._learn(max(gap - within_s, 0.0))
            return 0.0
        if running and not passed:
            self._beside_s = gap
            return 0.0
        beside_s, self._beside_s = self._beside_s, None
        if not passed:
            self._learn(gap)
            return 0.0
        if beside_s is None:
            return max(gap - self.plain_s, gap * _AT_LEAST)
        self._learn(min(gap, beside_s))
        both = gap + beside_s
        return max(both - 2 * self.plain_s, both * _AT_LEAST)

    def _learn(self, gap: float) -> None:
        self.plain_s = gap if self.plain_s == 0 else self.plain_s + _SMOOTHING * (gap - self.plain_s)
