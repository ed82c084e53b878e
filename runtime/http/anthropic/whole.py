"""A message that is answered in one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import orjson

from ..replies.pieces import Reasoning, ToolCallOpened
from .blocks import EMPTY_TEXT, first_of, kind_of, opens
from .usage import ending, usage_of

if TYPE_CHECKING:
    from ..call import Call
    from ..replies.pieces import ChoiceEnd, Piece, Progress
    from ..replies.usage import Usage
    from .blocks import BlockKind


class WholeMessage:
    """Gathers the blocks of one message. ``thoughts``: whether the client wants to read them."""

    def __init__(self, call: Call, *, thoughts: bool) -> None:
        self._call = call
        self._thoughts = thoughts
        self._kind: BlockKind | None = None
        self._blocks: list[tuple[dict[str, object], list[str]]] = []
        self._end: ChoiceEnd | None = None

    def add(self, progress: Progress) -> None:
        """Take what was added to the reply."""
        for piece in progress.pieces:
            if self._thoughts or not isinstance(piece, Reasoning):
                self._add(piece)
        self._end = progress.end or self._end

    def body(self, usage: Usage) -> bytes:
        """Return the JSON of the finished message."""
        assert self._end is not None
        content = [_filled(block, "".join(texts)) for block, texts in self._blocks]
        body = beginning(self._call) | ending(self._end)
        return orjson.dumps(body | {"content": content or [EMPTY_TEXT], "usage": usage_of(usage)})

    def _add(self, piece: Piece) -> None:
        if opens(piece, self._kind):
            self._kind = kind_of(piece)
            self._blocks.append((first_of(piece), []))
        if not isinstance(piece, ToolCallOpened):
            self._blocks[-1][1].append(piece.text)


def beginning(call: Call) -> dict[str, object]:
    """Return what is known of a message before anything is generated."""
    return {
        "id": call.id,
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _filled(block: dict[str, object], text: str) -> dict[str, object]:
    """Return a block with its content."""
    if block["type"] != "tool_use":
        return block | {cast("str", block["type"]): text}
    return block | {"input": cast("object", orjson.loads(text))}
