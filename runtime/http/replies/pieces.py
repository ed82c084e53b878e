"""What a reply consists of, as it comes: the common tongue between generations and the APIs' encoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from ...engine.port import Finished, TokenLogprob


@dataclass(frozen=True, slots=True)
class Text:
    """More of the reply's content; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the reply's reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallOpened:
    """The reply calls a tool. ``index`` counts the calls of a choice from 0; ``id`` is ours and unique."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of the JSON text of a call's arguments; all pieces of a call join to one JSON object."""

    index: int
    text: str


Piece: TypeAlias = Text | Reasoning | ToolCallOpened | ToolArguments
EndReason: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """A choice is complete. ``reason`` is ``tool_calls`` when it called a tool and was not cut short.

    ``reasoning_tokens`` of its tokens were reasoning.
    """

    reason: EndReason
    finished: Finished
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """What was added to one choice; ``end`` in its last one. ``logprobs`` are of tokens of content alone."""

    index: int
    pieces: tuple[Piece, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    end: ChoiceEnd | None = None
