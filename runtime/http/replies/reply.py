"""The whole answer of a chat completion, and the logprobs that streamed and whole answers share."""

from __future__ import annotations

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


class WholeReply:
    """Gathers a chat completion that is answered in one piece."""

    def __init__(self, call: Call, created_s: int) -> None:
        self._call = call
        self._created_s = created_s
        self._pieces: list[list[Piece]] = [[] for _ in call.requests]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in call.requests]
        self._ends: dict[int, ChoiceEnd] = {}

    def add(self, progress: Progress) -> None:
        """Take what was added to a choice."""
        self._pieces[progress.index] += progress.pieces
        self._logprobs[progress.index] += progress.logprobs
        if progress.end is not None:
            self._ends[progress.index] = progress.end

    def body(self, usage: Usage) -> bytes:
        """Return the JSON of the finished answer."""
        body = {
            "id": self._call.id,
            "object": "chat.completion",
            "created": self._created_s,
            "model": self._call.model,
            "choices": [self._choice(index) for index in range(len(self._call.requests))],
            "usage": usage.openai(),
        }
        return orjson.dumps(body)

    def _choice(self, index: int) -> dict[str, object]:
        return {
            "index": index,
            "message": _message(self._pieces[index]),
            "logprobs": logprobs_json(self._logprobs[index]) if self._call.logprobs else None,
            "finish_reason": self._ends[index].reason,
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
