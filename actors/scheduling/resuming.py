"""Which requests have lost their lane, and which of them may go on now: pure bookkeeping.

Each goes on as soon as a lane has a free row, but for the suspects of a crash: they go back to the lane that
they were on, one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ledger import Running
    from .places import Place, Places


class Resuming:
    """The running requests that no lane has at the moment, in the order in which they go on."""

    def __init__(self) -> None:
        self._waiting: dict[str, Running] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, running: Running) -> None:
        """Let a request wait for a lane."""
        self._waiting[running.id] = running

    def drop(self, request_id: str) -> Running | None:
        """Forget a request; None when it does not wait here."""
        return self._waiting.pop(request_id, None)

    def next(self, places: Places) -> tuple[Running, Place] | None:
        """Take out the first request that may go on, with its lane; None when all have to wait."""
        for running in self._waiting.values():
            place = places.lightest() if running.mark is None else _home(running, places)
            if place is not None:
                del self._waiting[running.id]
                return running, place
        return None


def _home(suspect: Running, places: Places) -> Place | None:
    place = None if suspect.lane is None else places.at(suspect.lane)
    if place is None:
        return places.lightest()
    return place if places.has_room(place) and not place.on_trial else None
