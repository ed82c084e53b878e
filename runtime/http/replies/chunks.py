"""The bytes of a streamed chat completion.

Everything around a delta's text is the same in every chunk of a choice, so it is encoded once and the
text spliced in: one small ``orjson.dumps`` and one concatenation a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from .pieces import Reasoning, Text, ToolArguments, ToolCallOpened
from .reply import logprobs_json

if TYPE_CHECKING:
    from ....actors.requests import Admitted
    from ..call import Call
    from .pieces import Piece, Progress
    from .usage import Usage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_NO_LOGPROBS = b"null"
_GOES_ON = b',"finish_reason":null}'


class ChunkEncoder:
    """Encodes a call's stream: role chunks, deltas, last chunks, usage when asked for, ``[DONE]``."""

    __slots__ = ("_call", "_choices", "_head", "_tail")

    def __init__(self, call: Call, created_s: int) -> None:
        about = {"id": call.id, "object": "chat.completion.chunk", "created": created_s, "model": call.model}
        self._call = call
        self._head = b"data: " + orjson.dumps(about)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if call.include_usage else b"]}\n\n"
        self._choices = [b'{"index":%d,"delta":' % index for index in range(len(call.requests))]

    def start(self, _: Admitted) -> bytes:
        """Return the first chunk of every choice."""
        role = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return b"".join(self._head + choice + role + self._tail for choice in self._choices)

    def progress(self, progress: Progress) -> bytes:
        """Return the chunks of what was added to a choice; nothing where there is nothing to tell."""
        chunks = self._deltas(progress)
        if progress.end is not None:
            ending = b'{},"logprobs":null,"finish_reason":"%s"}' % progress.end.reason.encode()
            chunks += self._head + self._choices[progress.index] + ending + self._tail
        return chunks

    def done(self, usage: Usage) -> bytes:
        """Return what follows the last choice's end."""
        if not self._call.include_usage:
            return DONE
        return self._head + b'],"usage":' + orjson.dumps(usage.openai()) + b"}\n\n" + DONE

    def _deltas(self, progress: Progress) -> bytes:
        """Return a chunk for every piece; logprobs come with the first text, or by themselves."""
        shown = progress.logprobs if self._call.logprobs else ()
        logprobs = orjson.dumps(logprobs_json(shown)) if shown else _NO_LOGPROBS
        head = self._head + self._choices[progress.index]
        chunks = b""
        for piece in progress.pieces:
            told, logprobs = (logprobs, _NO_LOGPROBS) if isinstance(piece, Text) else (_NO_LOGPROBS, logprobs)
            chunks += head + _delta(piece) + b',"logprobs":' + told + _GOES_ON + self._tail
        if logprobs is not _NO_LOGPROBS:
            chunks += head + b'{"content":""},"logprobs":' + logprobs + _GOES_ON + self._tail
        return chunks


def _delta(piece: Piece) -> bytes:
    """Return the delta of one piece: a call opens with its id, type and name, and goes on by its index."""
    match piece:
        case Text():
            return b'{"content":' + orjson.dumps(piece.text) + b"}"
        case Reasoning():
            return b'{"reasoning_content":' + orjson.dumps(piece.text) + b"}"
        case ToolCallOpened():
            function = {"name": piece.name, "arguments": ""}
            opened = {"index": piece.index, "id": piece.id, "type": "function", "function": function}
            return orjson.dumps({"tool_calls": [opened]})
        case ToolArguments():
            more = {"index": piece.index, "function": {"arguments": piece.text}}
            return orjson.dumps({"tool_calls": [more]})


def error_event(envelope: bytes) -> bytes:
    """Return the event that ends a stream which failed after its first byte."""
    return b"data: " + envelope + b"\n\n"
