"""Lanes that come and go: who was on a lost one, who is to blame, and when it is back.

Part of ``scheduler.py``, in whose handlers all of it runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...runtime.engine.port import Failed
from ...runtime.kernel import ActorCrashed, ActorGone, AskTimeout, Terminated
from .verdicts import judge, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runtime.kernel import Context
    from ..generation import StartRow
    from ..scheduler import SchedulerMessage
    from .ledger import Ledger, Running
    from .places import Place, Places
    from .seating import Seating

LANE_ASK_S: Final = 5.0
LANE_UP_S: Final = 60.0
LOOK_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class LaneLooked:
    """A lane that was down has answered (from a task), or it could not be asked."""

    place: Place
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Look whether a lane is up again (from a timer)."""

    place: Place


class LaneWatch:
    """The lanes as one incarnation sees them. ``cleared`` is called when a suspect has got past its mark."""

    def __init__(
        self,
        ctx: Context[SchedulerMessage],
        places: Places,
        seating: Seating,
        ledger: Ledger,
        cleared: Callable[[], None],
    ) -> None:
        self._ctx = ctx
        self._places = places
        self._seating = seating
        self._ledger = ledger
        self._cleared = cleared

    async def begin(self) -> None:
        """Watch the lanes and compare what they have with the ledger."""
        for place in self._places:
            self._ctx.watch(place.lane.ref)
        await asyncio.gather(*(self._find_rows(place) for place in self._places))
        for running in self._ledger:
            self._take_up(running)

    def lost(self, place: Place) -> None:
        """Note that a lane is down, and wait beside the mailbox until it answers again."""
        place.up = False
        if place.looking:
            return
        place.looking = True
        self._ctx.spawn(
            place.lane.rows(LANE_UP_S),
            lambda _: LaneLooked(place),
            lambda error: LaneLooked(place, error),
        )

    def looked(self, message: LaneLooked) -> None:
        """Note that a lane is up, or look again later unless it is gone for good."""
        place = message.place
        place.looking = False
        if message.error is None:
            place.up = True
        elif not isinstance(message.error, ActorGone):
            self._ctx.after(LOOK_AGAIN_S, Look(place))

    def ended(self, message: Terminated) -> None:
        """Find out who is to blame, let everybody else go on, and watch the lane's next incarnation.

        A lane that is gone has none: its supervisor takes this scheduler along.
        """
        place = self._places.on(message.ref)
        if message.reason != "gone":
            self._ctx.watch(message.ref)
        self.lost(place)
        rows, place.rows = list(place.rows.values()), {}
        error = None if message.failure is None else message.failure.error
        verdict = judge(rows, error)
        for running, mark in verdict.suspects:
            running.suspect(mark, self._cleared)
        for running in rows:
            if running is verdict.convicted:
                self._convict(running, error)
            else:
                self._seating.strand(running)

    def _convict(self, running: Running, error: BaseException | None) -> None:
        """End a request that has crashed a lane twice, and remember it for when it is sent again."""
        cause = f"this request crashed the lane that served it, twice: {told(error)}"
        self._ledger.convicts.add(running.asked.fingerprint, cause, self._ctx.now_s())
        self._seating.end(running, Failed(running.id, "lane_crashed", cause, shown=True))

    async def _find_rows(self, place: Place) -> None:
        """Note the rows that a lane has. One that does not answer is between incarnations: it has none."""
        rows: tuple[StartRow, ...] = ()
        try:
            rows = await place.lane.rows(LANE_ASK_S)
        except (ActorCrashed, ActorGone, AskTimeout):
            self.lost(place)
        for row in rows:
            running = self._ledger.get(row.request.id)
            if running is None or running.stream is not row.stream:
                place.lane.cancel(row.request.id)
            else:
                place.rows[running.id] = running

    def _take_up(self, running: Running) -> None:
        """Account for a request that ran before this incarnation of the scheduler."""
        stream = running.stream
        running.lease_id = None  # it ended with the incarnation that took it
        place = self._places.holding(running.id)
        stream.cancelled = stream.cancelled or not stream.claimed
        if stream.terminal is not None:
            if place is not None:
                del place.rows[running.id]
            self._seating.end(running, stream.terminal)
        elif place is None:
            self._seating.strand(running)
        elif stream.cancelled:
            place.lane.cancel(running.id)
