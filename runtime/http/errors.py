"""Errors that a client is meant to see, and their envelopes: OpenAI's, and Anthropic's on Anthropic's routes.

HttpError is raised wherever a request goes wrong; the boundary turns it into a response, or into an
error event when a stream has already begun. Messages name fields and limits, never internals.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import orjson

from ..engine.port import Cancelled, Failed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ...actors.requests import Refused

ANTHROPIC_ROUTES = "/v1/messages"
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# A refusal's code -> status; whatever is not listed is the client's mistake.
_REFUSALS = {"queue_full": 429, "draining": 503, "lane_crashed": 500}
_RETRYABLE = {429, 503}
_RETRY_AFTER_S = 1.0
_SERVER_ERRORS_FROM = 500
_SHOWN_CHARS = 80


class HttpError(Exception):
    """An answer other than success. ``param`` is the field at fault, like ``messages[0].role``.

    ``detail`` is for the log alone; a client never sees it.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.detail = detail
        self._headers = dict(headers or {})

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.retry_after_s is not None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response, Retry-After (whole seconds, at least 1) among them."""
        if self.retry_after_s is None:
            return self._headers
        return self._headers | {"Retry-After": str(max(1, ceil(self.retry_after_s)))}

    def envelope(self) -> bytes:
        """Return the JSON body ``{"error": {message, type, code, param}}``."""
        default = "server_error" if self.status >= _SERVER_ERRORS_FROM else "invalid_request_error"
        kind = _TYPES.get(self.status, default)
        body = {"message": self.message, "type": kind, "code": self.code, "param": self.param}
        return orjson.dumps({"error": body})

    def anthropic_envelope(self, request_id: str) -> bytes:
        """Return ``{"type": "error", "error": {type, message, code, param}, "request_id"}``.

        Anthropic has no code and no param. Its clients let them pass, and without a code two
        errors of one type could not be told apart.
        """
        default = "api_error" if self.status >= _SERVER_ERRORS_FROM else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(self.status, default)
        body = {"type": kind, "message": self.message, "code": self.code, "param": self.param}
        return orjson.dumps({"type": "error", "error": body, "request_id": request_id})


def is_anthropic(path: str) -> bool:
    """Return whether a route is one of Anthropic's, so that its errors are too."""
    return path == ANTHROPIC_ROUTES or path.startswith(ANTHROPIC_ROUTES + "/")


def envelope_for(path: str, error: HttpError, request_id: str) -> bytes:
    """Return the JSON body that tells ``error`` to a client of the route ``path``."""
    return error.anthropic_envelope(request_id) if is_anthropic(path) else error.envelope()


def error_event_for(path: str, error: HttpError, request_id: str) -> bytes:
    """Return the server-sent event that ends an open stream of the route ``path`` with ``error``."""
    name = b"event: error\n" if is_anthropic(path) else b""
    return name + b"data: " + envelope_for(path, error, request_id) + b"\n\n"


def bad_value(param: str, message: str) -> HttpError:
    """Return the 400 for a field whose value cannot be used; ``message`` starts with the field."""
    return HttpError(400, "invalid_value", message, param=param)


def missing(param: str) -> HttpError:
    """Return the 400 for a required field that is absent or null."""
    return HttpError(400, "missing_required_parameter", f"{param} is required.", param=param)


def unsupported(param: str, why: str) -> HttpError:
    """Return the 400 for a field whose feature this server does not have."""
    message = f"{param} is not supported by this server: {why}"
    return HttpError(400, "unsupported_parameter", message, param=param)


def unknown_model(name: str, served: Sequence[str]) -> HttpError:
    """Return the 404 for a model that is not served here; names those that are."""
    shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
    message = f"The model {shown!r} is not served here. Served: {', '.join(served)}."
    return HttpError(404, "model_not_found", message, param="model")


def unknown_tool(name: str, offered: Collection[str], *, again: bool) -> HttpError:
    """Return the 422 for a reply that calls a tool which the request does not offer.

    Neither the client nor the server erred, the model did. As content the call would pass for an answer, and
    as a tool call many agents would fail over it. ``again``: another draw may do better, so the clients of
    OpenAI and Anthropic are told to try that by themselves; the prompt is in the cache.
    """
    shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
    known = ", ".join(sorted(offered))
    message = f"The model called a tool {shown!r} that was not offered. Offered: {known}."
    headers = {"x-should-retry": "true" if again else "false"}
    return HttpError(422, "unknown_tool", message, param="tools", headers=headers)


def not_ready(*, draining: bool, retry_after_s: float | None = None) -> HttpError:
    """Return the 503 for a server that is still starting or already stopping."""
    if draining:
        return HttpError(503, "draining", "The server is shutting down.", retry_after_s=retry_after_s or 5.0)
    return HttpError(503, "not_ready", "The server is not ready yet.", retry_after_s=1.0)


def timed_out(limit_s: float | None) -> HttpError:
    """Return the 504 for a request past ``server.request_timeout``; clients are told not to repeat it."""
    message = f"The request took longer than server.request_timeout ({limit_s} s)."
    return HttpError(504, "request_timeout", message, headers={"x-should-retry": "false"})


def internal(request_id: str) -> HttpError:
    """Return the 500 for a failure that the client cannot mend; the log holds the rest under the id."""
    return HttpError(500, "internal_error", f"The server failed to answer. Request id: {request_id}.")


def refusal(refused: Refused) -> HttpError:
    """Return the response to a request that the scheduler would not take."""
    status = _REFUSALS.get(refused.code, 400)
    param = refused.param or ("messages" if refused.code == "context_length_exceeded" else None)
    retry_after_s = refused.retry_after_s
    if status in _RETRYABLE and retry_after_s is None:
        retry_after_s = _RETRY_AFTER_S
    return HttpError(status, refused.code, refused.message, param=param, retry_after_s=retry_after_s)


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
