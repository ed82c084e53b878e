"""Watches the event loop itself: how late it runs what is due."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from ..runtime.kernel import Actor, ActorRef, Ask

BEAT_S = 0.1
"""Seldom enough to cost a quarter of a percent of a core at rest; 20 ms took four times that."""
KEPT_BEATS = 300


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat that was due at ``due_s`` (from the actor itself)."""

    due_s: float


@dataclass(frozen=True, slots=True)
class GetLag(Ask[float]):
    """The 99th percentile of the loop's lag over the last half minute, in milliseconds."""


MonitorMessage: TypeAlias = Beat | GetLag


class MonitorActor(Actor[MonitorMessage]):
    """Beats ten times a second and remembers by how much each beat came late."""

    def __init__(self) -> None:
        self._lags_s: deque[float] = deque(maxlen=KEPT_BEATS)

    async def started(self) -> None:
        """Start beating."""
        self._beat()

    async def receive(self, message: MonitorMessage) -> None:
        """Record a beat, or answer with the lag."""
        match message:
            case Beat():
                self._lags_s.append(max(0.0, self.ctx.now_s() - message.due_s))
                self._beat()
            case GetLag():
                self.ctx.reply(message, self._p99_ms())
            case _:
                assert_never(message)

    def check_integrity(self) -> None:
        """Assert that what is remembered is bounded and possible. No I/O; between two messages."""
        assert len(self._lags_s) <= KEPT_BEATS, "more beats than are kept"
        assert all(lag_s >= 0.0 for lag_s in self._lags_s), "a beat that came early"

    def _beat(self) -> None:
        self.ctx.after(BEAT_S, Beat(self.ctx.now_s() + BEAT_S))

    def _p99_ms(self) -> float:
        if not self._lags_s:
            return 0.0
        ordered = sorted(self._lags_s)
        return 1000.0 * ordered[int(0.99 * (len(ordered) - 1))]


class Monitor:
    """The typed face of the loop monitor."""

    def __init__(self, ref: ActorRef[MonitorMessage]) -> None:
        self.ref = ref

    async def lag_ms_p99(self, timeout_s: float) -> float:
        """Return the loop's lag. Raises AskError."""
        return await self.ref.ask(GetLag(), timeout_s)
