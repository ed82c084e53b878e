"""What the kernel counts, per actor and for the whole system. Counters never go backwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .message import Failure

State: TypeAlias = Literal["stopped", "starting", "running", "stopping", "restarting", "gone", "unstoppable"]
DeadReason: TypeAlias = Literal["crashed", "dropped", "gone", "overflow"]


@dataclass(slots=True)
class Counts:
    """The running counters of one actor."""

    handled: int = 0
    skipped: int = 0
    handle_s: float = 0.0
    handle_max_s: float = 0.0
    restarts: int = 0
    dead_letters: Counter[DeadReason] = field(default_factory=Counter[DeadReason])


@dataclass(frozen=True, slots=True)
class ActorFigures:
    """A snapshot of one actor. Durations in seconds; ``oldest_age_s`` is 0 when nothing waits.

    ``handled`` counts messages whose handler returned, ``skipped`` envelopes whose asker had gone.
    ``unstoppable`` counts threads or tasks that outlived their budgets.
    """

    path: str
    kind: Literal["actor", "supervisor"]
    state: State
    incarnation: int
    depth: int
    capacity: int
    oldest_age_s: float
    handled: int
    skipped: int
    handle_mean_s: float
    handle_max_s: float
    restarts: int
    dead_letters: Mapping[DeadReason, int]
    open_asks: int
    tasks: int
    last_failure: Failure | None
    unstoppable: int
