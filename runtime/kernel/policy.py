"""Restart decisions as pure functions of their inputs: no clock, no chance, no I/O of their own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import random

Strategy: TypeAlias = Literal["one_for_one", "rest_for_one", "one_for_all"]
Restart: TypeAlias = Literal["permanent", "transient", "temporary"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delay before a restart, in seconds, spread by ``jitter`` (a fraction, 0 to 1)."""

    initial_s: float = 0.05
    factor: float = 2.0
    max_s: float = 5.0
    jitter: float = 0.2

    def delay_s(self, attempt: int, chance: random.Random) -> float:
        """Return the delay before restart number ``attempt`` (from 1) within the current window."""
        # The exponent is capped: past 64 doublings every sensible max_s has long won.
        base = min(self.max_s, self.initial_s * self.factor ** min(attempt - 1, 64))
        return base * (1.0 + self.jitter * (2.0 * chance.random() - 1.0))


@dataclass(frozen=True, slots=True)
class RestartLimit:
    """At most ``restarts`` restarts in any ``window_s`` seconds; one more is a restart storm."""

    restarts: int = 5
    window_s: float = 30.0


@dataclass(slots=True)
class RestartWindow:
    """Counts restarts in a sliding window."""

    limit: RestartLimit
    _times_s: deque[float] = field(default_factory=deque[float])

    def admit(self, now_s: float) -> bool:
        """Record a restart at ``now_s``; False when it is one too many."""
        while self._times_s and self._times_s[0] <= now_s - self.limit.window_s:
            self._times_s.popleft()
        self._times_s.append(now_s)
        return len(self._times_s) <= self.limit.restarts

    @property
    def count(self) -> int:
        """Restarts in the window as of the last ``admit``."""
        return len(self._times_s)


def affected(strategy: Strategy, failed: int, count: int) -> range:
    """Return the indices of the children that restart when child ``failed`` of ``count`` fails."""
    match strategy:
        case "one_for_one":
            return range(failed, failed + 1)
        case "rest_for_one":
            return range(failed, count)
        case "one_for_all":
            return range(count)


def restarts(policy: Restart, *, crashed: bool) -> bool:
    """Whether a child under ``policy`` comes back after it ended."""
    return policy == "permanent" or (policy == "transient" and crashed)
