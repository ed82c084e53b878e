"""Which row runs on which lane, and where the next one goes: pure bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...runtime.kernel import ActorRef
    from ..generation import Lane
    from .ledger import Asked, Running

PREFILL_ROW_TOKENS: Final = 512
"""So many tokens still to prefill weigh on a lane like one more row that decodes."""


@dataclass(slots=True, eq=False)
class Place:
    """One lane, the rows on it, and the requests for which a row is kept while their prefix is fetched.

    ``up`` is False while the lane is between two incarnations; ``looking``: somebody waits for the next.
    """

    lane: Lane
    rows: dict[str, Running] = field(default_factory=dict[str, "Running"])
    kept: dict[str, Asked] = field(default_factory=dict[str, "Asked"])
    up: bool = True
    looking: bool = False
    trial: str | None = None

    @property
    def taken(self) -> int:
        """How many rows are not free."""
        return len(self.rows) + len(self.kept)

    @property
    def on_trial(self) -> bool:
        """Whether a suspect is on the lane, or about to be, that has not got past its mark."""
        suspects = (running.mark is not None for running in self.rows.values())
        return (self.trial is not None and self.trial in self.kept) or any(suspects)

    def load(self) -> tuple[float, int]:
        """Return what weighs on the lane: rows and prefill to be done, then bytes."""
        to_prefill = sum(running.stream.prefill_left for running in self.rows.values())
        to_prefill += sum(len(asked.tokens) for asked in self.kept.values())
        sizes = [running.asked.kv_bytes for running in self.rows.values()]
        sizes += [asked.kv_bytes for asked in self.kept.values()]
        return self.taken + to_prefill / PREFILL_ROW_TOKENS, sum(sizes)


class Places:
    """All lanes, each with room for ``batch`` rows."""

    def __init__(self, lanes: Sequence[Lane], batch: int) -> None:
        self._places = [Place(lane) for lane in lanes]
        self.batch = batch

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    @property
    def capacity(self) -> int:
        """How many rows there are in all, on lanes that are down too."""
        return self.batch * len(self._places)

    @property
    def free(self) -> int:
        """How many more rows there is room for on the lanes that are up."""
        return sum(self.batch - place.taken for place in self._places if place.up)

    def has_room(self, place: Place) -> bool:
        """Whether a lane is up and has a free row."""
        return place.up and place.taken < self.batch

    def lightest(self) -> Place | None:
        """Return the lane with the least load that has room; the first of equals; None when none has."""
        return min(filter(self.has_room, self._places), key=Place.load, default=None)

    def on(self, lane: ActorRef[Any]) -> Place:
        """Return the place of a lane."""
        return next(place for place in self._places if place.lane.ref is lane)

    def at(self, path: str) -> Place | None:
        """Return the place of the lane with this path."""
        return next((place for place in self._places if place.lane.ref.path == path), None)

    def holding(self, request_id: str) -> Place | None:
        """Return the place that runs a request."""
        return next((place for place in self._places if request_id in place.rows), None)
