"""The scheduler's limits and figures, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits: rows per lane, requests that may wait beyond free rows, tokens where a request says none.

    ``publish_min_tokens``: the shortest state that rows publish. ``kv_budget_bytes``: what the states of all
    running requests may take at their longest; 0 is unknown, and then rows alone are counted.
    """

    batch: int
    queue: int
    max_tokens: int
    publish_min_tokens: int = 32
    kv_budget_bytes: int = 0


@dataclass(slots=True)
class SchedulerCounts:
    """How many requests went which way. Outlives the actor's incarnations: counters never go backwards.

    ``resumed``: how often a request went on after it had lost its lane.
    """

    admitted: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    finished: int = 0
    resumed: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerFigures:
    """``queued``, ``running`` and the bytes are now; the others count since the process started.

    ``kv_bytes`` is what the running requests may come to take, of ``kv_budget_bytes`` (0: not limited).
    """

    queued: int
    running: int
    admitted: int
    refused: int
    cancelled: int
    failed: int
    finished: int
    resumed: int
    kv_bytes: int
    kv_budget_bytes: int
