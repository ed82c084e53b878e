"""What the samples of the serving benchmark come to: figures per server, ratios, goals, a table.

A ratio says how many times better Samovar is: ours over theirs where more is better, theirs over ours where
less is. Above 1: ahead.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .serving_measures import Samples

OURS = "samovar"
DECODE_GAP_S = 0.25
SHORT_TTFT_S = 1.5
EIGHT_TIMES = 3.0


def p95(samples: list[float]) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]


@dataclass(frozen=True)
class Figure:
    """One line of the table: how ``samples`` become a number, and which way is better."""

    label: str
    samples: str
    unit: str
    more: bool
    of: Callable[[list[float]], float] = statistics.median


FIGURES = (
    Figure("aggregate, 1 stream", "aggregate_1", "tok/s", more=True),
    Figure("aggregate, 4 streams", "aggregate_4", "tok/s", more=True),
    Figure("aggregate, 8 streams", "aggregate_8", "tok/s", more=True),
    Figure("decode alone", "decode_1", "tok/s", more=True),
    Figure("decode, 4 streams", "decode_4", "tok/s", more=True),
    Figure("decode, 8 streams", "decode_8", "tok/s", more=True),
    Figure("short TTFT under load, p50", "load_ttft_s", "s", more=False),
    Figure("short TTFT under load, p95", "load_ttft_s", "s", more=False, of=p95),
    Figure("worst gap beside a long prompt", "gap_s", "s", more=False, of=max),
    Figure("short TTFT beside it", "short_ttft_s", "s", more=False),
    Figure("TTFT of that long prompt", "long_ttft_s", "s", more=False),
    Figure("cold TTFT of a long prompt", "cold_ttft_s", "s", more=False),
)


@dataclass(frozen=True)
class Line:
    """A figure of every server, and Samovar's ratio to each other one; what was not measured is absent."""

    figure: Figure
    values: Mapping[str, float]
    ratios: Mapping[str, float]

    @property
    def ahead(self) -> bool | None:
        """Whether Samovar is ahead of every one; None without anything to compare."""
        return min(self.ratios.values()) > 1.0 if self.ratios else None


@dataclass(frozen=True)
class Goal:
    """What issue 4 asks for, what was measured, and whether that is enough; None: not measured."""

    text: str
    measured: float | None
    bound: float | None
    met: bool | None


def lines(samples: Mapping[str, Samples], figures: Iterable[Figure] = FIGURES) -> list[Line]:
    """Return the figures that at least one server has."""
    found: list[Line] = []
    for figure in figures:
        values = {
            name: figure.of(own[figure.samples]) for name, own in samples.items() if own.get(figure.samples)
        }
        if values:
            found.append(Line(figure, values, _ratios(figure, values)))
    return found


def goals(samples: Mapping[str, Samples]) -> list[Goal]:
    """Return the goals that have a bound of their own; being ahead is in the lines."""
    own = samples.get(OURS, {})
    one, eight = _figure(own, "aggregate_1"), _figure(own, "aggregate_8")
    gap, step = _figure(own, "gap_s", max), _figure(own, "step_s")
    gap_bound = None if step is None else max(2.0 * DECODE_GAP_S, 2.0 * step)
    others = [
        each for name, mine in samples.items() if name != OURS if (each := _figure(mine, "cold_ttft_s"))
    ]
    times = None if one is None or eight is None else eight / one
    decode = _figure(own, "decode_1"), _figure(own, "decode_8")
    decode_times = None if decode[0] is None or decode[1] is None else decode[1] / decode[0]
    return [
        _at_least("8 streams ≥ 3 times one stream, aggregate", times, EIGHT_TIMES),
        _at_least("8 streams ≥ 3 times one stream, while all decode", decode_times, EIGHT_TIMES),
        _at_most("worst gap ≤ max(2 decode_gap, 2 steps), s", gap, gap_bound),
        _at_most("short TTFT beside a long prompt ≤ 1.5 s", _figure(own, "short_ttft_s"), SHORT_TTFT_S),
        _at_most("cold TTFT ≤ the best peer's, s", _figure(own, "cold_ttft_s"), min(others, default=None)),
    ]


def show(found: list[Line], reached: list[Goal], servers: list[str]) -> str:
    """Return the table as text: a line per figure, a column per server, the ratios in brackets."""
    width = max(14, *(len(name) + 2 for name in servers))
    head = f"{'figure':<36}" + "".join(f"{name:>{width}}" for name in servers) + "   ahead of all"
    rows = [head, "-" * len(head)]
    for line in found:
        label = f"{line.figure.label} ({line.figure.unit})"
        cells = "".join(f"{_cell(line, name):>{width}}" for name in servers)
        rows.append(f"{label:<36}{cells}   {_verdict(line.ahead)}")
    rows.append("(in brackets: how many times better Samovar is)")
    for goal in reached:
        measured, bound = (number(each) for each in (goal.measured, goal.bound))
        rows.append(f"goal: {goal.text:<46} {measured:>8} (bound {bound}) {_verdict(goal.met)}")
    return "\n".join(rows)


def _ratios(figure: Figure, values: Mapping[str, float]) -> dict[str, float]:
    if OURS not in values:
        return {}
    ours = values[OURS]
    others = {name: value for name, value in values.items() if name != OURS}
    pairs = {name: (ours, value) if figure.more else (value, ours) for name, value in others.items()}
    return {name: upper / lower for name, (upper, lower) in pairs.items() if lower > 0.0}


def _figure(
    samples: Samples, name: str, of: Callable[[list[float]], float] = statistics.median
) -> float | None:
    return of(samples[name]) if samples.get(name) else None


def _at_least(text: str, measured: float | None, bound: float) -> Goal:
    return Goal(text, measured, bound, None if measured is None else measured >= bound)


def _at_most(text: str, measured: float | None, bound: float | None) -> Goal:
    return Goal(text, measured, bound, None if measured is None or bound is None else measured <= bound)


def _cell(line: Line, name: str) -> str:
    if name not in line.values:
        return "-"
    ratio = f" ({line.ratios[name]:.2f})" if name in line.ratios else ""
    return f"{number(line.values[name])}{ratio}"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value >= 10.0 else f"{value:.2f}"


def _verdict(met: bool | None) -> str:
    return {True: "yes", False: "NO", None: "-"}[met]
