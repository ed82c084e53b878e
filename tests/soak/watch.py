"""Figures of a living process: counters that never go backwards, memory and descriptors that stay flat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil
from samovar.runtime.metrics_stats import LANE, PARTS

from benchmarks.long_run_flat import judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .tally import Tally

SUMMED = {
    "prompt_cache": ("hits", "misses", "evictions", "demotions", "lost"),
    "ssd_cache": ("restores", "spills", "evictions", "failed_spills", "dropped_spills", "restore_failures"),
    "scheduler": ("admitted", "cancelled", "failed", "resumed"),
    "actors": ("restarts", "dead_letters"),
}
BAD = ("corrupt", "quarantined", "unlink_failures", "problems")
LEAST_SAMPLES = 8


class Counters:
    """What ``/stats`` said last in one life of a process."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._seen: dict[str, float] = {}
        self.stats: dict[str, Any] = {}

    def look(self, stats: dict[str, Any]) -> None:
        """Compare every counter with what it was, and the tiers with their limits."""
        for name, value in _counters(stats):
            if value < self._seen.get(name, 0):
                self._tally.wrong(f"the counter {name} went from {self._seen[name]} to {value}")
            self._seen[name] = value
        disk = stats.get("ssd_cache") or {}
        if bad := {name: disk[name] for name in BAD if disk.get(name)}:
            self._tally.wrong(f"bad files: {bad}")
        if disk.get("bytes", 0) > disk.get("max_bytes", 0):
            self._tally.wrong(f"the disk tier says {disk['bytes']} of {disk['max_bytes']} bytes")
        self.stats = stats

    def add_up(self) -> None:
        """Add the life's last figures to the run's."""
        for part, keys in SUMMED.items():
            for key in keys:
                value = int((self.stats.get(part) or {}).get(key) or 0)
                self._tally.count(self._tally.figures, f"{part}.{key}", value)


def _counters(stats: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, part in PARTS.items():
        for key in part.counters:
            if isinstance(value := (stats.get(name) or {}).get(key), int | float):
                yield f"{name}.{key}", value
    for lane in stats.get("lanes") or ():
        for key in LANE.counters:
            if isinstance(value := lane.get(key), int | float):
                yield f"lanes.{lane['id']}.{key}", value


class Vitals:
    """Memory, descriptors and threads of a process, each time it rests."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._requests: list[int] = []
        self.series: dict[str, list[float]] = {"rss_bytes": [], "descriptors": [], "threads": []}

    def sample(self, requests: int) -> None:
        with self._process.oneshot():
            rss = self._process.memory_info().rss
            threads = self._process.num_threads()
        self._requests.append(requests)
        for name, value in (
            ("rss_bytes", rss),
            ("descriptors", self._process.num_fds()),
            ("threads", threads),
        ):
            self.series[name].append(float(value))

    def judge(self, bounds: Mapping[str, float], tally: Tally) -> None:
        """Fit a line to each after the first third of the life; shorter lives are not judged."""
        if len(self._requests) < LEAST_SAMPLES:
            return
        for name, fit in judge(self._requests, self.series, bounds).items():
            line = {"life": tally.life, "figure": name, "requests": self._requests[-1], "grown": fit.grown}
            tally.vitals.append(
                line | {"bound": fit.bound, "first": fit.first, "last": fit.last, "most": fit.most}
            )
            if not fit.flat:
                tally.wrong(f"{name} grew by {fit.grown:.0f} over a life: {self.series[name]}")
