"""What the comparison found as one table: a line per figure, a column per server, ratios, failures by name.

A ratio says how many times better Samovar is (serving_report.py). A server without a figure has the word for
why in its place, and the reason stands below the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .serving_report import Figure, Line, lines, number, p95

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .serving_measures import Samples

Outcomes = dict[str, list[str]]
"""By scenario: ``failed: …``, ``no time`` or ``skipped: …``, once for each round in which it was so."""

FIGURES: dict[str, tuple[Figure, ...]] = {
    "start": (Figure("start to first answer", "first_answer_s", "s", more=False),),
    "idle": (
        Figure("idle memory", "idle_mb", "MB", more=False),
        Figure("idle CPU", "idle_cpu_percent", "% of a core", more=False),
    ),
    "repeat": (
        Figure("cold prompt, TTFT", "cold_ttft_s", "s", more=False),
        Figure("same again, TTFT", "again_ttft_s", "s", more=False),
        Figure("same again, of cold", "again_of_cold", "x", more=False),
    ),
    "sigterm": (
        Figure("after SIGTERM, TTFT", "sigterm_ttft_s", "s", more=False),
        Figure("after SIGTERM, of cold", "sigterm_of_cold", "x", more=False),
        Figure("after SIGTERM, reused", "sigterm_reused", "share", more=True),
    ),
    "sigkill": (
        Figure("after SIGKILL, TTFT", "sigkill_ttft_s", "s", more=False),
        Figure("after SIGKILL, of cold", "sigkill_of_cold", "x", more=False),
        Figure("after SIGKILL, reused", "sigkill_reused", "share", more=True),
    ),
    "agent": (
        Figure("agent, first turn, TTFT", "agent_first_ttft_s", "s", more=False),
        Figure("agent, later turns, TTFT p50", "agent_ttft_s", "s", more=False),
        Figure("agent, later turns, TTFT p95", "agent_ttft_s", "s", more=False, of=p95),
        Figure("agent, later turns, reused", "agent_reused", "share", more=True),
        Figure("agent, next one's first, TTFT", "agent_joined_ttft_s", "s", more=False),
        Figure("agent, next one's first, reused", "agent_joined_reused", "share", more=True),
        Figure("agent, whole conversation", "agent_s", "s", more=False),
    ),
    "streams": (
        Figure("aggregate, 1 stream", "aggregate_1", "tok/s", more=True),
        Figure("aggregate, 4 streams", "aggregate_4", "tok/s", more=True),
        Figure("aggregate, 8 streams", "aggregate_8", "tok/s", more=True),
        Figure("decode, 1 stream", "decode_1", "tok/s", more=True),
        Figure("decode, 4 streams", "decode_4", "tok/s", more=True),
        Figure("decode, 8 streams", "decode_8", "tok/s", more=True),
    ),
    "interference": (
        Figure("worst gap beside long prompt", "gap_s", "s", more=False, of=max),
        Figure("short TTFT beside it", "short_ttft_s", "s", more=False),
        Figure("TTFT of that long prompt", "long_ttft_s", "s", more=False),
    ),
    "load": (
        Figure("short TTFT under load, p50", "load_ttft_s", "s", more=False),
        Figure("short TTFT under load, p95", "load_ttft_s", "s", more=False, of=p95),
    ),
}


@dataclass(frozen=True)
class Row:
    """One line of the table, and the scenario that its figure comes from."""

    scenario: str
    line: Line


def rows(samples: Mapping[str, Samples]) -> list[Row]:
    """Return the figures that at least one server has, in the order of the scenarios."""
    return [Row(name, line) for name, figures in FIGURES.items() for line in lines(samples, figures)]


def table(found: list[Row], outcomes: Mapping[str, Outcomes]) -> str:
    """Return the table as text, the servers in the order of ``outcomes``."""
    width = max(15, *(len(name) + 2 for name in outcomes))
    head = f"{'figure':<42}" + "".join(f"{name:>{width}}" for name in outcomes)
    body = [head, "-" * len(head)]
    for row in found:
        label = f"{row.line.figure.label} ({row.line.figure.unit})"
        cells = "".join(f"{cell(row, name, own):>{width}}" for name, own in outcomes.items())
        body.append(f"{label:<42}{cells}")
    body.append("(in brackets: how many times better Samovar is; -: the server does not say)")
    return "\n".join([*body, *reasons(outcomes)])


def cell(row: Row, server: str, outcomes: Outcomes) -> str:
    """Return a server's figure with its ratio, or the word for why there is none."""
    value = row.line.values.get(server)
    if value is None:
        found = outcomes.get(row.scenario)
        return found[0].partition(":")[0] if found else "-"
    ratio = row.line.ratios.get(server)
    return number(value) if ratio is None else f"{number(value)} ({ratio:.2f})"


def reasons(outcomes: Mapping[str, Outcomes]) -> list[str]:
    """Return a line for each scenario that a server did not get through."""
    return [
        f"{server}, {scenario}: {each}"
        for server, own in outcomes.items()
        for scenario, all_of_it in own.items()
        for each in all_of_it
    ]
