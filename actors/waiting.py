"""Events of a stream that nobody has taken yet: a reader may stay away for a hundred thousand tokens."""

from __future__ import annotations

import marshal
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from ..runtime.engine.port import Cancelled, Delta, Failed, Finished, Prefilled, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

StreamEvent: TypeAlias = Prefilled | Delta | Finished | Cancelled | Failed

PACKED_TOGETHER: Final = 512
"""How many waiting events are packed as one, and how many are taken at once behind such a pack."""

_Packed: TypeAlias = "bytes | list[StreamEvent]"


class WaitingEvents:
    """Keeps events in order and gives back exactly those, in lists; loop thread only.

    The deltas of a reader that is far behind are packed: some 20 bytes a token instead of 200, and 20 for
    each alternative instead of 170. They are not joined, for a token's text says whether it was content or
    reasoning. ``id`` is that of every event.
    """

    __slots__ = ("_behind", "_full", "_id")

    def __init__(self, id: str) -> None:  # noqa: A002 - as events spell it
        self._id = id
        self._full: deque[_Packed] = deque()
        self._behind: list[StreamEvent] = []

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._behind or self._full)

    def push(self, event: StreamEvent) -> None:
        """Append an event."""
        self._behind.append(event)
        if len(self._behind) == PACKED_TOGETHER:
            self._full.append(_packed(self._behind))
            self._behind = []

    def take(self) -> list[StreamEvent]:
        """Return all that waits, or the first PACKED_TOGETHER events where more do."""
        if self._full:
            packed = self._full.popleft()
            return self._unpacked(packed) if isinstance(packed, bytes) else packed
        events, self._behind = self._behind, []
        return events

    def _unpacked(self, packed: bytes) -> list[StreamEvent]:
        return [
            Delta(self._id, text, tokens, tuple(TokenLogprob(*each) for each in logprobs))
            for text, tokens, logprobs in marshal.loads(packed)  # noqa: S302 - from this module, unseen by others
        ]


def _packed(events: list[StreamEvent]) -> _Packed:
    """Return deltas as bytes. Anything else among them comes but once in a while, and is left as it is."""
    deltas = [event for event in events if isinstance(event, Delta)]
    if len(deltas) < len(events):
        return events
    return marshal.dumps([(each.text, each.tokens, _plain(each.logprobs)) for each in deltas])


def _plain(logprobs: Sequence[TokenLogprob]) -> list[tuple[object, ...]]:
    return [(each.token, each.text, each.logprob, each.top) for each in logprobs]
