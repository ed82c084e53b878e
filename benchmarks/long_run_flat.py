"""Whether a figure stays flat after a warm-up: its slope, its maximum, what it grew by."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WARM_UP_SHARE = 1 / 3
"""The first third fills what is meant to be filled: both tiers up to their caps, buffers, books."""


@dataclass(frozen=True)
class Flatness:
    """A figure after the warm-up. ``slope``: growth per request, the median of all pairs of samples.

    ``grown``: that slope over all requests after the warm-up. ``flat``: it is at most ``bound``.
    """

    first: float
    last: float
    most: float
    slope: float
    grown: float
    bound: float

    @property
    def flat(self) -> bool:
        """Whether it grew no more than is allowed."""
        return self.grown <= self.bound


def flatness(requests: Sequence[int], values: Sequence[float], bound: float) -> Flatness:
    """Judge one series, ``values[i]`` after ``requests[i]`` requests; at least three after the warm-up."""
    warm = [
        (at, value) for at, value in zip(requests, values, strict=True) if at >= requests[-1] * WARM_UP_SHARE
    ]
    assert len(warm) >= 3, "too few samples after the warm-up"
    slopes = [(b - a) / (j - i) for n, (i, a) in enumerate(warm) for j, b in warm[n + 1 :]]
    slope = statistics.median(slopes)
    held = [value for _, value in warm]
    return Flatness(held[0], held[-1], max(held), slope, slope * (warm[-1][0] - warm[0][0]), bound)


def judge(
    requests: Sequence[int], series: Mapping[str, Sequence[float]], bounds: Mapping[str, float]
) -> dict[str, Flatness]:
    """Judge every series that has a bound."""
    return {name: flatness(requests, series[name], bound) for name, bound in bounds.items()}
