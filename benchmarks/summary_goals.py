"""The measurable goals of the issues so far, each with the figure that was measured and whether it is enough.

A figure is found in the recorded results by a path; a goal whose figure nobody recorded says so. ``remark``
says what the figure alone would not: mostly where it varied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .summary_tables import markdown, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Results = dict[str, Any]
HEAD = """# Goals, and what was measured

Made by `python -m benchmarks.summary` from the files beside this one. Commands, dates and machines:
[../README.md](../README.md). Goals that a test shows, not a figure, are not here (see tests/cases/README.md).
Unless it says H200: 2 shared cores, the 135 M default model in float32.

"""


@dataclass(frozen=True)
class Goal:
    """What an issue asks for. ``find``: a function of summary_find.py."""

    issue: int
    text: str
    source: str
    find: Callable[[Any], float]
    at_least: float | None = None
    at_most: float | None = None
    remark: str = ""

    def measured(self, results: Results) -> float | None:
        """Return the recorded figure, None where there is none."""
        try:
            return float(self.find(results[self.source]))
        except (KeyError, IndexError, StopIteration):
            return None

    def met(self, measured: float | None) -> bool | None:
        """Return whether the figure is enough; None without one."""
        if measured is None:
            return None
        return (self.at_least is None or measured >= self.at_least) and (
            self.at_most is None or measured <= self.at_most
        )

    @property
    def bound(self) -> str:
        """The goal as text."""
        return f"≥ {number(self.at_least)}" if self.at_least is not None else f"≤ {number(self.at_most)}"


def goals_page(goals: Iterable[Goal], results: Results) -> str:
    """Return goals.md."""
    rows = [_row(goal, results) for goal in sorted(goals, key=lambda goal: goal.issue)]
    met = sum(row[4] == "yes" for row in rows)
    short = sum(row[4] == "**no**" for row in rows)
    count = f"{len(rows)} goals: {met} met, {short} not, {len(rows) - met - short} without a recorded figure."
    table = markdown(["issue", "goal", "asked", "measured", "met", "from", "remark"], rows)
    return f"{HEAD}{count}\n\n{table}\n"


def _row(goal: Goal, results: Results) -> list[str]:
    measured = goal.measured(results)
    verdict = {True: "yes", False: "**no**", None: "-"}[goal.met(measured)]
    source = f"[{goal.source}]({goal.source}.json)" if goal.source in results else goal.source
    return [
        str(goal.issue),
        goal.text,
        goal.bound,
        number(measured) if measured is not None else "not recorded",
        verdict,
        source,
        goal.remark,
    ]
