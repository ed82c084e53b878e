"""The parts of a reply that streamed and whole answers share: usage, logprobs, endings, the whole answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from ...engine.port import Cancelled, Delta, Failed, Finished, TokenLogprob
from ..errors import HttpError, internal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....actors.requests import PrefixReuse
    from ....actors.stream import StreamEvent, StreamTimes
    from ..schema.chat import ChatCall

_REPLACEMENT = "\ufffd"


def settle(
    events: Sequence[StreamEvent],
) -> tuple[str, list[TokenLogprob], Finished | Cancelled | Failed | None]:
    """Return the text and logprobs that ``events`` add up to, and the terminal event if it is among them."""
    text = ""
    logprobs: list[TokenLogprob] = []
    ending: Finished | Cancelled | Failed | None = None
    for event in events:
        if isinstance(event, Delta):
            text += event.text
            if event.logprobs:
                logprobs.extend(event.logprobs)
        elif isinstance(event, Finished):
            text += event.text
            ending = event
        elif isinstance(event, (Cancelled, Failed)):
            ending = event
    return text, logprobs, ending


def failure(ending: Cancelled | Failed, request_id: str) -> HttpError:
    """Return what the client is told of a request that did not finish.

    The event's code names the cause. Its message is the engine's own and stays in the log, unless it was
    written for the client.
    """
    if isinstance(ending, Cancelled):
        message = f"The server dropped the request. Request id: {request_id}."
        return HttpError(503, "cancelled", message, retry_after_s=1.0)
    error = internal(request_id)
    cause = f"{ending.code}: {ending.message}" if ending.shown else ending.code
    message = f"The reply could not be generated ({cause}). Request id: {request_id}."
    return HttpError(error.status, ending.code, message, detail=ending.message)


def elapsed_ms(start_s: float | None, end_s: float | None) -> float | None:
    """Return the milliseconds between two stations; None when either was not reached."""
    return None if start_s is None or end_s is None else round((end_s - start_s) * 1e3, 3)


def usage(finished: Finished, times: StreamTimes, reuse: PrefixReuse) -> dict[str, object]:
    """Return OpenAI's usage object with Samovar's own part."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reuse.cached_tokens},
        "samovar": {
            "tier": reuse.tier,
            "cached_tokens": reuse.cached_tokens,
            "restore_ms": round(reuse.restore_ms, 3),
            "queue_ms": elapsed_ms(times.submitted_s, times.started_s),
            "prefill_ms": round(finished.prefill_ms, 3),
            "ttft_ms": elapsed_ms(times.submitted_s, times.first_token_s),
            "miss_reason": reuse.miss_reason,
        },
    }


def logprobs_json(entries: Sequence[TokenLogprob]) -> dict[str, object]:
    """Return OpenAI's logprobs object for some tokens."""
    content = [
        _token_json(entry.text, entry.logprob)
        | {"top_logprobs": [_token_json(text, logprob) for _, text, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class WholeReply:
    """Gathers a reply that is answered in one piece."""

    def __init__(self, call: ChatCall, created_s: int) -> None:
        self._call = call
        self._created_s = created_s
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, text: str, entries: Sequence[TokenLogprob]) -> None:
        """Append what some events added up to."""
        self._texts.append(text)
        self._logprobs.extend(entries)

    def body(self, finished: Finished, times: StreamTimes, reuse: PrefixReuse) -> bytes:
        """Return the JSON of the finished answer."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(self._texts), "refusal": None},
            "logprobs": logprobs_json(self._logprobs) if self._call.logprobs else None,
            "finish_reason": finished.reason,
        }
        body = {
            "id": self._call.request.id,
            "object": "chat.completion",
            "created": self._created_s,
            "model": self._call.model,
            "choices": [choice],
            "usage": usage(finished, times, reuse),
        }
        return orjson.dumps(body)


def _token_json(text: str, logprob: float) -> dict[str, object]:
    # A token may be a part of a character: then its text is a replacement mark, and its bytes are unknown.
    known = _REPLACEMENT not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else None}
