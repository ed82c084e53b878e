"""When a disk that keeps failing is left alone, and when it is tried again (E9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]


class Breaker:
    """Opens after ``threshold`` failures in a row; then lets one probe through after each delay.

    ``delay_s(n)`` is the pause in seconds before the n-th probe. Any success closes it. Pure: the clock is an
    argument; chance, if any, is in ``delay_s``.
    """

    def __init__(self, threshold: int, delay_s: Callable[[int], float]) -> None:
        if threshold < 1:
            raise ValueError(f"a breaker needs at least one failure, not {threshold}")
        self._threshold = threshold
        self._delay_s = delay_s
        self._failures = 0
        self._openings = 0
        self._until_s = 0.0
        self._probing = False

    @property
    def degraded(self) -> bool:
        """Whether it is not closed."""
        return self._openings > 0

    @property
    def probe_at_s(self) -> float | None:
        """When the next probe is due; None when it is closed or a probe is under way."""
        return self._until_s if self._openings and not self._probing else None

    def state(self, now_s: float) -> BreakerState:
        """Return what it is at ``now_s``."""
        if not self._openings:
            return "closed"
        return "half_open" if self._probing or now_s >= self._until_s else "open"

    def allows(self, now_s: float) -> bool:
        """Whether an attempt may begin."""
        return not self._openings or (now_s >= self._until_s and not self._probing)

    def began(self) -> None:
        """Note that an allowed attempt began."""
        self._probing = self.degraded

    def succeeded(self) -> bool:
        """Note a success; True when that closed it."""
        recovered = self.degraded
        self._failures = self._openings = 0
        self._probing = False
        return recovered

    def failed(self, now_s: float) -> bool:
        """Note a failure; True when that opened it, having been closed."""
        self._failures += 1
        if self.degraded:
            if self._probing:
                self._open(now_s)
            return False
        if self._failures < self._threshold:
            return False
        self._open(now_s)
        return True

    def ended(self) -> None:
        """Note that an attempt ended which says nothing about the disk."""
        self._probing = False

    def _open(self, now_s: float) -> None:
        self._openings += 1
        self._probing = False
        self._until_s = now_s + self._delay_s(self._openings)
