"""The output items of a response, from the pieces of its reply, and the events that tell of them.

One road for both kinds of answer: a whole response is what the events of a streamed one add up to. An item is
open until another kind of piece comes or the reply ends; then it is final.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING, TypeAlias

from ..replies.pieces import Reasoning, Text, ToolArguments, ToolCallOpened
from .parts import CallItem, MessageItem, ReasoningItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...engine.port import TokenLogprob
    from ..replies.pieces import Piece, Progress
    from .parts import Event

Item: TypeAlias = MessageItem | ReasoningItem | CallItem


def item_id(kind: str) -> str:
    """Return a fresh id of an item; ``kind`` is its prefix: msg, rs, fc, fco."""
    return f"{kind}_{token_hex(16)}"


class Output:
    """Gathers one reply's items. ``logprobs``: the client asked for them. Loop thread only."""

    def __init__(self, *, logprobs: bool, portable_reasoning: bool) -> None:
        self._logprobs = logprobs
        self._portable = portable_reasoning
        self._open: Item | None = None
        self.items: list[Item] = []

    def add(self, progress: Progress) -> list[Event]:
        """Take what was added to the reply, its end included; return what there is to tell of it."""
        events: list[Event] = []
        entries = progress.logprobs if self._logprobs else ()
        for piece in progress.pieces:
            if isinstance(piece, Text):
                events += self._text(piece.text, entries)
                entries = ()
            else:
                events += self._other(piece)
        if entries:  # of tokens whose text is still held back
            events += self._text("", entries)
        if progress.end is not None:
            if not self.items:
                events += self._text("", ())
            events += self._close(complete=progress.end.reason != "length")
        return events

    def abandon(self) -> None:
        """The reply goes no further: what was open is incomplete."""
        self._close(complete=False)

    def values(self) -> list[dict[str, object]]:
        """Return the items as JSON objects."""
        return [item.value() for item in self.items]

    def _text(self, text: str, entries: Sequence[TokenLogprob]) -> list[Event]:
        events: list[Event] = []
        message = self._open
        if not isinstance(message, MessageItem):
            message = MessageItem(item_id("msg"), len(self.items))
            events = self._begin(message)
        return [*events, message.add(text, entries)] if text or entries else events

    def _other(self, piece: Piece) -> list[Event]:
        match piece:
            case Reasoning():
                return self._reasoning(piece.text)
            case ToolCallOpened():
                return self._begin(CallItem(item_id("fc"), len(self.items), piece.id, piece.name))
            case ToolArguments():
                if not isinstance(self._open, CallItem):
                    message = f"arguments of tool call {piece.index} came while no call was open"
                    raise RuntimeError(message)  # noqa: TRY004 - the reply is wrong, not an argument
                return [self._open.add(piece.text)]
            case Text():
                return self._text(piece.text, ())

    def _reasoning(self, text: str) -> list[Event]:
        events: list[Event] = []
        item = self._open
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(item_id("rs"), len(self.items), portable=self._portable)
            events = self._begin(item)
        return [*events, item.add(text)]

    def _begin(self, item: Item) -> list[Event]:
        events = self._close(complete=True)
        self._open = item
        self.items.append(item)
        return [*events, *item.opening()]

    def _close(self, *, complete: bool) -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        item.status = "completed" if complete else "incomplete"
        return item.closing()
