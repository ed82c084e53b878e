"""How long those who are turned away should wait: estimated from how long requests really take."""

from __future__ import annotations

from collections import deque
from typing import Final

LEAST_S: Final = 1.0
MOST_S: Final = 60.0
UNKNOWN_S: Final = 5.0
"""Told while no request has ended yet."""
REMEMBERED: Final = 32


class Turnover:
    """Remembers how long the last requests ran, in seconds. Pure bookkeeping."""

    def __init__(self) -> None:
        self._ran_s: deque[float] = deque(maxlen=REMEMBERED)

    def ended(self, ran_s: float) -> None:
        """Note that a request ended that had its row for ``ran_s``."""
        self._ran_s.append(ran_s)

    def rate(self, rows: int) -> float | None:
        """Return how many requests end in a second while ``rows`` run; None when that is not known."""
        total_s = sum(self._ran_s)
        return rows * len(self._ran_s) / total_s if total_s > 0 else None

    def retry_after_s(self, ahead: int, rows: int) -> float:
        """Return when ``ahead`` requests will have ended, between LEAST_S and MOST_S."""
        rate = self.rate(rows)
        return UNKNOWN_S if rate is None else min(max(ahead / rate, LEAST_S), MOST_S)
