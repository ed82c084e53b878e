"""The content blocks of a message: which block a piece of a reply belongs to, and how each begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never

from ..replies.pieces import Reasoning, Text, ToolArguments, ToolCallOpened

if TYPE_CHECKING:
    from ..replies.pieces import Piece

BlockKind: TypeAlias = Literal["text", "thinking", "tool_use"]

EMPTY_TEXT: dict[str, object] = {"type": "text", "text": ""}
"""What a reply without any content consists of: clients look at the first block."""


def kind_of(piece: Piece) -> BlockKind:
    """Return which kind of block a piece belongs to."""
    match piece:
        case Text():
            return "text"
        case Reasoning():
            return "thinking"
        case ToolCallOpened() | ToolArguments():
            return "tool_use"
        case _:
            assert_never(piece)


def opens(piece: Piece, open_kind: BlockKind | None) -> bool:
    """Return whether a piece begins a block, while one of ``open_kind`` is open (None: none is)."""
    return isinstance(piece, ToolCallOpened) or kind_of(piece) != open_kind


def first_of(piece: Piece) -> dict[str, object]:
    """Return a new block as it is before any of its content."""
    match piece:
        case Text():
            return dict(EMPTY_TEXT)
        case Reasoning():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCallOpened():
            # Ids are the server's own; Anthropic's clients know them by this prefix.
            return {"type": "tool_use", "id": tool_use_id(piece.id), "name": piece.name, "input": {}}
        case ToolArguments():
            raise ValueError("arguments came before their call")
        case _:
            assert_never(piece)


def tool_use_id(call_id: str) -> str:
    """Return a call's id as Anthropic's clients know them."""
    return f"toolu_{call_id.removeprefix('call_')}"
