"""The events of a streamed message.

Within a block everything around a delta's text stays the same, so it is encoded once a block and the text
spliced in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from ..replies.pieces import Reasoning, ToolCallOpened
from .blocks import EMPTY_TEXT, first_of, kind_of, opens
from .usage import ending, usage_at_start, usage_of
from .whole import beginning

if TYPE_CHECKING:
    from ....actors.requests import Admitted
    from ..call import Call
    from ..replies.pieces import ChoiceEnd, Piece, Progress
    from ..replies.usage import Usage
    from .blocks import BlockKind

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
# The kind of a block -> the type of its deltas and the field that holds their text.
_DELTAS = {
    "text": (b"text_delta", b"text"),
    "thinking": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}


class EventEncoder:
    """Encodes one message's stream. ``thoughts``: whether the client wants to read them."""

    def __init__(self, call: Call, *, thoughts: bool) -> None:
        self._call = call
        self._thoughts = thoughts
        self._kind: BlockKind | None = None
        self._index = -1
        self._before = b""
        self._end: ChoiceEnd | None = None

    def start(self, admitted: Admitted) -> bytes:
        """Return what a stream begins with, once the prompt's length is known."""
        message = beginning(self._call) | {"usage": usage_at_start(admitted)}
        return _event("message_start", {"message": message}) + _PING

    def progress(self, progress: Progress) -> bytes:
        """Return the events of what was added; nothing where there is nothing to tell."""
        self._end = progress.end or self._end
        shown = (p for p in progress.pieces if self._thoughts or not isinstance(p, Reasoning))
        return b"".join(self._piece(piece) for piece in shown)

    def done(self, usage: Usage) -> bytes:
        """Return what follows the last piece."""
        assert self._end is not None
        empty = b"" if self._kind is not None else self._open("text", dict(EMPTY_TEXT))
        delta = _event("message_delta", {"delta": ending(self._end), "usage": usage_of(usage)})
        return empty + self._close() + delta + _STOP

    def _piece(self, piece: Piece) -> bytes:
        opened = b""
        if opens(piece, self._kind):
            opened = self._close() + self._open(kind_of(piece), first_of(piece))
        if isinstance(piece, ToolCallOpened):
            return opened
        return opened + self._before + orjson.dumps(piece.text) + b"}}\n\n"

    def _open(self, kind: BlockKind, block: dict[str, object]) -> bytes:
        self._kind = kind
        self._index += 1
        delta, field = _DELTAS[kind]
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,' % self._index
        self._before = head + b'"delta":{"type":"%s","%s":' % (delta, field)
        return _event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> bytes:
        return b"" if self._kind is None else _event("content_block_stop", {"index": self._index})


def _event(kind: str, fields: dict[str, object]) -> bytes:
    return b"event: %s\ndata: " % kind.encode() + orjson.dumps({"type": kind} | fields) + b"\n\n"
