"""Errors as clients get them, in OpenAI's envelope and in Anthropic's."""

from typing import Literal

from .operation import Shape

REASONS = {
    400: "The request is wrong; `param` names the field.",
    401: "A key is missing or wrong.",
    403: "This host or origin may not ask.",
    404: "There is no such thing.",
    413: "The body is larger than server.max_body.",
    415: "The body is no JSON in UTF-8.",
    422: "The model called a tool that was not offered.",
    429: "The queue is full; see Retry-After.",
    500: "The server failed to answer.",
    501: "This server does not have it.",
    503: "Not ready, draining or restarting; see Retry-After.",
    504: "The request took longer than server.request_timeout.",
}


class ErrorDetail(Shape):
    """What went wrong."""

    message: str
    type: str
    code: str
    param: str | None


class Error(Shape):
    """OpenAI's envelope."""

    error: ErrorDetail


class AnthropicError(Shape):
    """Anthropic's envelope; its error also has Samovar's code and param."""

    type: Literal["error"]
    error: ErrorDetail
    request_id: str
