"""The bytes of a streamed chat completion.

Everything around a delta's text is the same in every chunk of a request, so it is encoded once and the
text spliced in: one small ``orjson.dumps`` and one concatenation a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from .reply import logprobs_json, usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....actors.requests import PrefixReuse
    from ....actors.stream import StreamTimes
    from ...engine.port import Finished, TokenLogprob
    from ..schema.chat import ChatCall

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class ChunkEncoder:
    """Encodes one request's stream: a role chunk, deltas, a last chunk, usage when asked for, ``[DONE]``."""

    __slots__ = ("_after", "_before", "_call", "_head", "_role", "_tail")

    def __init__(self, call: ChatCall, created_s: int) -> None:
        about = {
            "id": call.request.id,
            "object": "chat.completion.chunk",
            "created": created_s,
            "model": call.model,
        }
        self._call = call
        self._head = b"data: " + orjson.dumps(about)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if call.include_usage else b"]}\n\n"
        self._before = self._head + b'{"index":0,"delta":{"content":'
        self._after = b'},"logprobs":null,"finish_reason":null}' + self._tail
        role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        self._role = self._head + role + self._tail

    def role(self) -> bytes:
        """Return the first chunk."""
        return self._role

    def delta(self, text: str, entries: Sequence[TokenLogprob]) -> bytes:
        """Return one chunk, or nothing where there is nothing to tell."""
        if entries and self._call.logprobs:
            choice = b'},"logprobs":' + orjson.dumps(logprobs_json(entries)) + b',"finish_reason":null}'
            return self._before + orjson.dumps(text) + choice + self._tail
        return self._before + orjson.dumps(text) + self._after if text else b""

    def last(self, finished: Finished, times: StreamTimes, reuse: PrefixReuse) -> bytes:
        """Return the chunk with the finish reason and all that follows it."""
        ending = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"%s"}' % finished.reason.encode()
        chunk = self._head + ending + self._tail
        if self._call.include_usage:
            chunk += self._head + b'],"usage":' + orjson.dumps(usage(finished, times, reuse)) + b"}\n\n"
        return chunk + DONE
