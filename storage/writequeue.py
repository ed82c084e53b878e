"""The order of writes: urgent ones first, then the longest, then the oldest (B008)."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from .dirty import Record

P = TypeVar("P")

_STALE_PLACES = 64


class WriteQueue(Generic[P]):
    """Records that may be written now. A record's ``ticket`` says whether it is in here.

    Taking a record out means setting its ticket to 0; its stale place goes by itself. Room: twice the live
    places and some.
    """

    def __init__(self) -> None:
        self._places: list[tuple[bool, int, int, Record[P]]] = []
        self._tickets = 0

    def push(self, record: Record[P]) -> None:
        """Queue a record, or give it the place that it deserves now."""
        self._tickets += 1
        record.ticket = self._tickets
        place = (not record.urgent, -len(record.tokens), record.ticket, record)
        heapq.heappush(self._places, place)

    def peek(self) -> Record[P] | None:
        """Return the first record."""
        while self._places and not _valid(self._places[0]):
            heapq.heappop(self._places)
        return self._places[0][3] if self._places else None

    def pop(self) -> Record[P] | None:
        """Take the first record out."""
        record = self.peek()
        if record is not None:
            heapq.heappop(self._places)
            record.ticket = 0
        return record

    def shrink(self, live: int) -> None:
        """Drop stale places when there are many; ``live`` is how many there can be that are not."""
        if len(self._places) > 2 * live + _STALE_PLACES:
            self._places = [place for place in self._places if _valid(place)]
            heapq.heapify(self._places)


def _valid(place: tuple[bool, int, int, Record[P]]) -> bool:
    return place[2] == place[3].ticket
