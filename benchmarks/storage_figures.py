"""What the storage benchmark finds: figures with their goals, how they are printed, and timing in turns."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """One number. ``goal`` None: told for its own sake. ``facts``: what it was made of."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    better: Literal["more", "less"] = "less"
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.better == "more" else self.value <= self.goal

    def table(self) -> dict[str, object]:
        """Return it for JSON."""
        return asdict(self) | {"met": self.met}

    def line(self) -> str:
        """Return it for people."""
        sign = ">=" if self.better == "more" else "<="
        goal = "" if self.goal is None else f"goal {sign} {self.goal:g}"
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        facts = ", ".join(f"{name} {_short(value)}" for name, value in self.facts.items())
        return f"{self.name:<46}{self.value:>9.3f} {self.unit:<5}{goal:<13}{verdict:<8}{facts}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


Timed = Callable[[], float]
"""Does something once and returns the seconds it took, without what it took to get ready."""

MAX_TRIES = 3
QUIET_SHARE = 0.1
QUIET_WINDOW_S = 0.3


@dataclass(frozen=True)
class Round:
    """Each contender's seconds in one round, and the share of the machine that others had meanwhile."""

    taken: dict[str, float]
    others: float


@dataclass(frozen=True)
class Turns:
    """Rounds in which all contenders ran, one after the other."""

    rounds: list[Round]

    def seconds(self, name: str) -> list[float]:
        """Return a contender's seconds, round by round."""
        return [each.taken[name] for each in self.rounds]

    def ratio(self, over: str, under: str) -> float:
        """Return the median of the ratios within each round, since what the machine did fell upon both."""
        return statistics.median(self._ratios(over, under))

    def facts(self, over: str, under: str) -> dict[str, object]:
        """Return how far the ratios lie apart, that of the best times, and how much others had."""
        ratios = self._ratios(over, under)
        return {
            "range": f"{min(ratios):.2f}..{max(ratios):.2f}",
            "best": round(min(self.seconds(over)) / min(self.seconds(under)), 2),
            "others": f"{max(each.others for each in self.rounds):.0%}",
        }

    def _ratios(self, over: str, under: str) -> list[float]:
        return [each.taken[over] / each.taken[under] for each in self.rounds]


@dataclass
class Patience:
    """How many seconds may still be spent on waiting until other processes leave the machine alone."""

    left_s: float = 0.0

    def wait(self) -> None:
        """Wait for a quiet moment while there is patience."""
        while self.left_s > 0:
            before = Load.now()
            time.sleep(QUIET_WINDOW_S)
            self.left_s -= QUIET_WINDOW_S
            if before.others() <= QUIET_SHARE:
                return


PATIENCE = Patience()


def in_turns(contenders: dict[str, Timed], rounds: int) -> Turns:
    """Run all contenders in turns, each round beginning with another one.

    One round before goes uncounted. Where other processes take part of the machine, there are up to three
    times ``rounds`` rounds, and those that were disturbed least are kept.
    """
    names = list(contenders)
    found: list[Round] = []
    quiet = turn = 0
    while quiet < rounds and turn <= MAX_TRIES * rounds:
        PATIENCE.wait()
        first = turn % len(names)
        taken: dict[str, float] = {}
        others = 0.0
        for name in names[first:] + names[:first]:
            gc.collect()
            before = Load.now()
            taken[name] = contenders[name]()
            others = max(others, before.others())
        if turn:
            found.append(Round(taken, others))
            quiet += others <= QUIET_SHARE
        turn += 1
    return Turns(sorted(found, key=lambda each: each.others)[:rounds])


@dataclass(frozen=True)
class Load:
    """CPU seconds at a moment: of all that runs here, and of this process."""

    at_s: float
    all_s: float
    ours_s: float

    @classmethod
    def now(cls) -> Load:
        """Read the counters; where there are none, others have nothing."""
        try:
            with open("/proc/stat") as file:  # noqa: PTH123 - the shortest way, since it is timed
                user, nice, system, _, _, irq, soft, steal, *_ = map(int, file.readline().split()[1:])
        except OSError:
            return cls(time.monotonic(), 0.0, 0.0)
        busy_s = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), busy_s, time.process_time())

    def others(self) -> float:
        """Return the share of the machine that other processes had since then."""
        now = Load.now()
        theirs_s = now.all_s - self.all_s - (now.ours_s - self.ours_s)
        took_s = max(now.at_s - self.at_s, 1e-3) * (os.cpu_count() or 1)
        return max(0.0, theirs_s / took_s)


def clocked(work: Callable[[], object]) -> float:
    """Return how many seconds ``work`` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
