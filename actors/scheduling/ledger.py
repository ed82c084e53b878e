"""Every request that runs, with all that it takes to go on with it on another lane.

The ledger lives outside the scheduler, like its counters: a crash of the scheduler loses no request, and a
lane that crashes while the scheduler is down loses none either. Loop thread only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...runtime.engine.port import Cancelled, Failed, Finished
from .options import SchedulerCounts
from .turnover import Turnover
from .verdicts import Convicts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...runtime.engine.port import RowRequest
    from ...storage.tokens import TokenIds
    from ..requests import GenerationRequest
    from ..stream import RequestStream
    from .verdicts import Mark


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asked for, prepared: nothing in it ever changes.

    ``row`` is the row as it starts from nothing, its seed chosen. ``tokens`` are its prompt, ``kv_bytes``
    what its state takes at its longest. ``arrived_s`` is when it came (loop time), ``due_s`` orders the
    queue. ``fingerprint`` is the same for the same request sent again. ``in_reasoning``: the reply begins
    inside the model's reasoning.
    """

    request: GenerationRequest
    row: RowRequest
    tokens: TokenIds
    kv_bytes: int
    arrived_s: float
    due_s: float
    fingerprint: bytes
    in_reasoning: bool = False

    @property
    def id(self) -> str:
        """The request's id."""
        return self.row.id


@dataclass(slots=True, eq=False)
class Running:
    """An admitted request until its terminal event.

    ``lease_id`` is the lease of the prefix that it started from. ``starts``: how often a lane took it.
    ``lane`` is the path of the lane that it was on last. ``mark``: it is suspected of having crashed that
    lane, until it gets further than this. ``crashes``: how often it was the only suspect.
    """

    asked: Asked
    stream: RequestStream
    lease_id: int | None = None
    starts: int = 0
    lane: str | None = None
    mark: Mark | None = None
    crashes: int = 0

    @property
    def id(self) -> str:
        """The request's id."""
        return self.asked.id

    def suspect(self, mark: Mark, cleared: Callable[[], None]) -> None:
        """Hold the request to ``mark``; ``cleared`` is called when it has got further."""
        self.mark = mark

        def look() -> None:
            if mark.passed(self.stream):
                self.mark = self.stream.watcher = None
                cleared()

        self.stream.watcher = look


@dataclass(slots=True)
class Ledger:
    """The running requests, and what was learned of those before them. Outlives the scheduler's incarnations.

    ``open`` is False once admission was closed. ``prefill_tps``: the measured rate of prefill.
    """

    counts: SchedulerCounts = field(default_factory=SchedulerCounts)
    turnover: Turnover = field(default_factory=Turnover)
    convicts: Convicts = field(default_factory=Convicts)
    open: bool = True
    prefill_tps: float | None = None
    _running: dict[str, Running] = field(default_factory=dict[str, Running])

    def __iter__(self) -> Iterator[Running]:
        return iter(list(self._running.values()))

    def __len__(self) -> int:
        return len(self._running)

    @property
    def kv_bytes(self) -> int:
        """What the states of all running requests may come to take."""
        return sum(running.asked.kv_bytes for running in self._running.values())

    def drained_in_s(self, rows: int) -> float:
        """Return when all that run on ``rows`` rows will have ended, as far as can be told."""
        return self.turnover.retry_after_s(len(self), rows)

    def get(self, request_id: str) -> Running | None:
        """Return a running request."""
        return self._running.get(request_id)

    def admit(self, running: Running) -> None:
        """Take a request in."""
        self._running[running.id] = running
        self.counts.admitted += 1

    def close(self, running: Running) -> None:
        """Count a request whose stream has ended, and forget it."""
        del self._running[running.id]
        running.stream.watcher = None
        times = running.stream.times
        if times.started_s is not None and times.ended_s is not None:
            self.turnover.ended(times.ended_s - times.started_s)
        match running.stream.terminal:
            case Finished():
                self.counts.finished += 1
            case Cancelled():
                self.counts.cancelled += 1
            case Failed():
                self.counts.failed += 1
            case None:
                raise AssertionError(f"request {running.id} has not ended")
