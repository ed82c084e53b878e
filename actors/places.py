"""Which row runs on which lane, and where the next one goes: pure bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..runtime.kernel import ActorRef
    from .generation import Lane
    from .stream import RequestStream


@dataclass(slots=True)
class Running:
    """A row on a lane. ``lease_id`` is the lease of the prefix that it started from."""

    stream: RequestStream
    lease_id: int | None = None


@dataclass(slots=True)
class Place:
    """One lane and the rows placed on it, by request id."""

    lane: Lane
    rows: dict[str, Running] = field(default_factory=dict[str, Running])


class Places:
    """All lanes, each with room for ``batch`` rows."""

    def __init__(self, lanes: Sequence[Lane], batch: int) -> None:
        self._places = [Place(lane) for lane in lanes]
        self._batch = batch

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    @property
    def running(self) -> int:
        """How many rows run."""
        return sum(len(place.rows) for place in self._places)

    @property
    def free(self) -> int:
        """How many more rows there is room for."""
        return self._batch * len(self._places) - self.running

    def emptiest(self) -> Place:
        """Return the place with the fewest rows; the first of equals."""
        return min(self._places, key=lambda place: len(place.rows))

    def on(self, lane: ActorRef[Any]) -> Place:
        """Return the place of a lane."""
        return next(place for place in self._places if place.lane.ref is lane)

    def holding(self, request_id: str) -> Place | None:
        """Return the place that runs a request."""
        return next((place for place in self._places if request_id in place.rows), None)
