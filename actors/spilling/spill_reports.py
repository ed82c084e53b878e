"""What durability says about itself: figures, the answer of a flush, words for the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...storage.dirty import Tally


@dataclass(slots=True)
class DurabilityCounts:
    """What happened since the process started. Outlives the actor's incarnations.

    ``degraded`` is now: the disk fails and is tried seldom. ``forgets``: how often all that was announced was
    forgotten, by a fresh incarnation or a clear.
    """

    degraded: bool = False
    forgets: int = 0
    spills: int = 0
    written_bytes: int = 0
    failed_spills: int = 0
    dropped_spills: int = 0
    write_ms_last: float = 0.0


@dataclass(frozen=True, slots=True)
class DurabilityFigures:
    """``pending_snapshots``: not durable yet; ``pending_spills``: of those, queued or being written.

    ``missing``: let go before they were durable, and not covered. The rest are counts.
    """

    pending_snapshots: int
    pending_spills: int
    pending_spill_bytes: int
    missing: int
    degraded: bool
    spills: int
    written_bytes: int
    failed_spills: int
    dropped_spills: int
    write_ms_last: float


@dataclass(frozen=True, slots=True)
class FlushReport:
    """Whether everything published is on disk, or covered by what is (seed §5.6).

    ``flushed``: became durable during this flush. ``missing``: let go before they were durable and not
    covered, ``dropped`` of them during this flush. ``pending``: not durable yet, ``failed`` of them tried by
    this flush. ``entries``, ``longest_durable_prefix_tokens``: what the directory holds. ``reason``: why not
    durable.
    """

    durable: bool
    flushed: int
    missing: int
    pending: int
    pending_bytes: int
    dropped: int
    failed: int
    entries: int
    longest_durable_prefix_tokens: int
    elapsed_ms: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class SpillNotice:
    """For the log. ``failures``: since the last notice."""

    event: Literal["failing", "recovered"]
    error: Exception | None
    failures: int
    pending: int
    pending_bytes: int
    degraded: bool


class SpillWarnings:
    """At most one warning in ``every_s`` seconds, and one word of recovery after it."""

    def __init__(self, every_s: float, notify: Callable[[SpillNotice], None]) -> None:
        self._every_s = every_s
        self._notify = notify
        self._failures = 0
        self._warned_s: float | None = None
        self._recovered = True
        self.last_error: Exception | None = None

    def failed(self, error: Exception, now_s: float, tally: Callable[[], Tally], *, degraded: bool) -> None:
        """Note a failed attempt."""
        self.last_error = error
        self._failures += 1
        if self._warned_s is not None and now_s - self._warned_s < self._every_s:
            return
        self._warned_s = now_s
        self._recovered = False
        self._say("failing", error, tally(), degraded=degraded)

    def recovered(self, tally: Callable[[], Tally]) -> None:
        """Note that the disk works again."""
        if not self._recovered:
            self._recovered = True
            self._say("recovered", None, tally(), degraded=False)

    def _say(
        self,
        event: Literal["failing", "recovered"],
        error: Exception | None,
        tally: Tally,
        *,
        degraded: bool,
    ) -> None:
        failures, self._failures = self._failures, 0
        self._notify(SpillNotice(event, error, failures, tally.pending, tally.pending_bytes, degraded))


def why_not_durable(tally: Tally, error: Exception | None, *, late: bool) -> str:
    """Say what is not durable and why."""
    reasons: list[str] = []
    waiting = tally.pending - tally.failed
    if tally.failed:
        reasons.append(f"{tally.failed} could not be written: {type(error).__name__}: {error}")
    if waiting > 0:
        when = "were not written before the deadline" if late else "are not written yet"
        reasons.append(f"{waiting} {when}")
    if tally.missing:
        reasons.append(f"{tally.missing} were let go before they were written")
    return "; ".join(reasons)
