"""Where a figure stands in a recorded result: functions that take the result and return the figure.

All raise KeyError, IndexError or StopIteration where it is not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def times(loop: str, name: str) -> Callable[[Any], float]:
    return lambda result: result["loops"][loop]["times_as_fast"][name]


def clients(count: int, key: str, asked: float = 0.0) -> Callable[[Any], float]:
    return lambda result: next(
        each[key]
        for each in result["results"]
        if each["clients"] == count and each["asked_tokens_per_s"] == asked
    )


def storage(name: str, *parts: str) -> Callable[[Any], float]:
    return lambda result: next(
        each["value"] for part in parts for each in result["results"].get(part, []) if each["name"] == name
    )


def of_cold(asked: int, key: str) -> Callable[[Any], float]:
    return lambda result: next(
        each[key] for each in result["ratios_to_cold"] if each["asked_tokens"] == asked
    )


def side(label: str, server: str) -> Callable[[Any], float]:
    return lambda result: result["figures"][label]["ratios"][server]


def worst(labels: Iterable[str]) -> Callable[[Any], float]:
    wanted = tuple(labels)
    return lambda result: min(
        ratio for label in wanted for ratio in result["figures"][label]["ratios"].values()
    )


def own(label: str) -> Callable[[Any], float]:
    return lambda result: result["figures"][label]["values"]["samovar"]


def aggregate_times(result: Any) -> float:
    return own("aggregate, 8 streams")(result) / own("aggregate, 1 stream")(result)


def decode(*rows: int) -> Callable[[Any], float]:
    return lambda result: min(result["results"][f"decode_{count}"]["ratio"] for count in rows)


def batch_times(result: Any) -> float:
    found = result["results"]
    return found["decode_32"]["samovar_tps"] / found["decode_1"]["samovar_tps"]


def not_flat(result: Any) -> float:
    return float(sum(not each["flat"] for each in result["figures"].values()))
