"""The response object: what a request asked for, what came of it, and its place in the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import orjson

from ..schema.calls import service_class_of
from .history import messages_of
from .inputs import Json, known_items
from .output import Output
from .store import StoredResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..errors import HttpError
    from ..replies.pieces import ChoiceEnd, Progress
    from ..replies.usage import Usage
    from .parts import Event
    from .request import ResponsesCall
    from .store import ResponseStore

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]
_ECHOED = ("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key")
_LABELS = ("safety_identifier", "user", "prompt_cache_retention")
_TOO_LONG = "context_length_exceeded"
_RATE_LIMITED = 429
_SERVER_ERRORS_FROM = 500


class Answer:
    """One response from its first moment to its end. Loop thread only."""

    def __init__(self, asked: ResponsesCall, store: ResponseStore, created_s: int) -> None:
        self._asked = asked
        self._store = store
        self._created_s = created_s
        body = asked.body
        self.output = Output(logprobs=body.wants_logprobs, portable_reasoning=body.wants_portable_reasoning)
        self._end: ChoiceEnd | None = None

    def started(self) -> Json:
        """Return the response before its first item."""
        return self._object("in_progress", [])

    def add(self, progress: Progress) -> list[Event]:
        """Take what was added to the reply; return the events that tell it."""
        self._end = progress.end
        return self.output.add(progress)

    def body(self, usage: Usage) -> bytes:
        """Return the JSON of the finished response, once it is stored if it was to be."""
        return orjson.dumps(self.finished(usage))

    def failed(self, error: HttpError) -> Json:
        """Return the response as far as it came. It is not stored."""
        self.output.abandon()
        found = {"code": _failure_code(error), "message": error.message, "param": error.param}
        return self._object("failed", self.output.values()) | {"error": found}

    def finished(self, usage: Usage) -> Json:
        """Return the finished response, once it is stored if it was to be."""
        cut = self._end is not None and self._end.reason == "length"
        body = self._object("incomplete" if cut else "completed", self.output.values())
        body["usage"] = usage_json(usage)
        if cut:
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            body["completed_at"] = int(time.time())
        body["store"] = self._asked.body.store is not False
        if body["store"]:
            body["store"] = self._keep(body)
        return body

    def _keep(self, body: Json) -> bool:
        text = orjson.dumps(body)
        if not self._store.takes(len(text)):
            return False
        items = self.output.values()
        final = [item for item in items if item["type"] != "function_call" or item["status"] == "completed"]
        reply = messages_of(known_items(final))
        ids = [str(item["id"]) for item in (*self._asked.inputs, *items)]
        conversation = orjson.dumps([*self._asked.conversation, *reply])
        inputs = orjson.dumps(self._asked.inputs)
        return self._store.put(StoredResponse(self._asked.call.id, text, inputs, conversation, tuple(ids)))

    def _object(self, status: Status, output: list[Json]) -> Json:
        body, raw, request = self._asked.body, self._asked.raw, self._asked.call.request
        return {
            "id": self._asked.call.id,
            "object": "response",
            "created_at": self._created_s,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._asked.call.model,
            "output": output,
            **{name: raw.get(name) for name in _ECHOED},
            **{name: raw[name] for name in _LABELS if name in raw},
            "metadata": raw.get("metadata", {}),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": _reasoning(raw),
            "service_tier": service_class_of(body.service_tier),
            "store": body.store is not False,
            "temperature": request.sampling.temperature,
            "text": {"format": {"type": "text"}, **_mapping(raw, "text")},
            "tool_choice": raw.get("tool_choice", "auto"),
            "tools": raw.get("tools", []),
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def usage_json(usage: Usage) -> Json:
    """Return the Responses API's usage object, with Samovar's own part.

    ``cache_write_tokens`` is 0: whatever is computed is kept, and no token is billed for that.
    """
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "samovar": usage.samovar,
    }


def _failure_code(error: HttpError) -> str:
    """Return a code that clients know; ours, which may say more, is in the error event."""
    if error.code == _TOO_LONG:  # agents look for it to shorten what they send
        return error.code
    if error.status == _RATE_LIMITED:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= _SERVER_ERRORS_FROM else "invalid_prompt"


def _reasoning(raw: Mapping[str, object]) -> Json:
    return {"effort": None, "summary": None, **_mapping(raw, "reasoning")}


def _mapping(raw: Mapping[str, object], name: str) -> Json:
    value = cast("Json", raw.get(name, {}))
    return {key: each for key, each in value.items() if each is not None}
