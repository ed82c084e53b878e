"""The whole answer of a chat completion, and the logprobs that streamed and whole answers share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from .pieces import Reasoning, Text, ToolArguments, ToolCallOpened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...engine.port import TokenLogprob
    from ..call import Call
    from .pieces import ChoiceEnd, Piece, Progress
    from .usage import Usage

_REPLACEMENT = "\ufffd"


def logprobs_json(entries: Sequence[TokenLogprob]) -> dict[str, object]:
    """Return OpenAI's logprobs object for some tokens."""
    content = [
        _token_json(entry.text, entry.logprob)
        | {"top_logprobs": [_token_json(text, logprob) for _, text, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


@dataclass(slots=True)
class Gathered:
    """What came of one choice so far."""

    index: int
    pieces: list[Piece] = field(default_factory=list["Piece"])
    logprobs: list[TokenLogprob] = field(default_factory=list["TokenLogprob"])
    end: ChoiceEnd | None = None


class WholeReply:
    """Gathers a chat completion that is answered in one piece. A completion differs in its choices alone."""

    kind = "chat.completion"

    def __init__(self, call: Call, created_s: int) -> None:
        self._call = call
        self._created_s = created_s
        self._choices = [Gathered(index) for index in range(len(call.requests))]

    def add(self, progress: Progress) -> None:
        """Take what was added to a choice."""
        choice = self._choices[progress.index]
        choice.pieces += progress.pieces
        choice.logprobs += progress.logprobs
        choice.end = progress.end

    def body(self, usage: Usage) -> bytes:
        """Return the JSON of the finished answer."""
        body = {
            "id": self._call.id,
            "object": self.kind,
            "created": self._created_s,
            "model": self._call.model,
            "choices": [
                {
                    "index": choice.index,
                    **self._choice(choice),
                    "finish_reason": choice.end and choice.end.reason,
                }
                for choice in self._choices
            ],
            "usage": usage.openai(),
        }
        return orjson.dumps(body)

    def _choice(self, choice: Gathered) -> dict[str, object]:
        """Return what a choice says, and its logprobs."""
        return {
            "message": _message(choice.pieces),
            "logprobs": logprobs_json(choice.logprobs) if self._call.logprobs else None,
        }


def _message(pieces: Sequence[Piece]) -> dict[str, object]:
    """Return OpenAI's message; reasoning as DeepSeek has it; null for no content beside calls."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    calls = [_call_json(piece, pieces) for piece in pieces if isinstance(piece, ToolCallOpened)]
    message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message


def _call_json(opened: ToolCallOpened, pieces: Sequence[Piece]) -> dict[str, object]:
    texts = (piece for piece in pieces if isinstance(piece, ToolArguments) and piece.index == opened.index)
    function = {"name": opened.name, "arguments": "".join(piece.text for piece in texts)}
    return {"id": opened.id, "type": "function", "function": function}


def _token_json(text: str, logprob: float) -> dict[str, object]:
    # A token may be a part of a character: then its text is a replacement mark, and its bytes are unknown.
    known = _REPLACEMENT not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else None}
