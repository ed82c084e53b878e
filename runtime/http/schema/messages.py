"""The ``messages`` of a chat request, made ready for a chat template.

Rules (all documented for clients):

- content is a string, or a list of text parts that are joined in order with nothing between them, so
  that the split and the whole give the same prompt; null or absent is allowed for assistant and tool
  turns and means empty text.
- ``developer`` becomes ``system``; a later system turn stays where it is.
- ``tool_calls`` and ``tool_call_id`` pass through unchanged, arguments included, be they a string, a
  broken string or an object: a bad call in the history must not poison the session.
- other keys of a message are history that clients carry along (ids, annotations, timestamps); they have
  no place in a template and are dropped. Keys that ask for something (``prefix``) are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..errors import HttpError, bad_value, missing, unsupported
from .fields import Fields, as_object, describe

if TYPE_CHECKING:
    from collections.abc import Mapping

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_TOOL_CALLS = 128
_NULL_CONTENT_ROLES = frozenset({"assistant", "tool"})
_PASSED = ("name", "tool_call_id", "reasoning_content")
_ASKING = ("prefix", "partial")
_NAME_CHARS = 256


def parse_messages(fields: Fields) -> tuple[Mapping[str, object], ...]:
    """Return the conversation with every content a string. Raises HttpError naming the place."""
    messages = fields.items("messages", MAX_MESSAGES)
    if messages is None:
        raise missing("messages")
    if not messages:
        raise bad_value("messages", "messages must hold at least one message.")
    return tuple(_message(value, f"messages[{index}]") for index, value in enumerate(messages))


def _message(value: object, path: str) -> Mapping[str, object]:
    fields = Fields(as_object(value, path), f"{path}.")
    role = _role(fields)
    for name in _ASKING:
        if fields.value(name):
            raise unsupported(fields.path(name), "replies cannot be prefilled.")
    message: dict[str, object] = {"role": "system" if role == "developer" else role}
    message["content"] = _content(fields, role)
    for name in _PASSED:
        text = fields.text(name) if name == "reasoning_content" else fields.string(name, _NAME_CHARS)
        if text is not None:
            message[name] = text
    calls = _tool_calls(fields)
    if calls:
        message["tool_calls"] = calls
    return message


def _role(fields: Fields) -> str:
    role = fields.value("role")
    if role is None:
        raise missing(fields.path("role"))
    if role not in ROLES:
        path = fields.path("role")
        raise bad_value(path, f"{path} must be one of {', '.join(ROLES)}, not {describe(role)}.")
    return cast("str", role)


def _content(fields: Fields, role: str) -> str:
    content = fields.value("content")
    path = fields.path("content")
    match content:
        case str():
            return content
        case None if role in _NULL_CONTENT_ROLES:
            return ""
        case None:
            raise missing(path)
        case list():
            return _joined(cast("list[object]", content), path, role)
        case _:
            raise bad_value(
                path, f"{path} must be a string or a list of text parts, not {describe(content)}."
            )


def _joined(parts: list[object], path: str, role: str) -> str:
    if not parts and role not in _NULL_CONTENT_ROLES:
        raise bad_value(path, f"{path} must hold at least one part.")
    if len(parts) > MAX_PARTS:
        raise bad_value(path, f"{path} has {len(parts)} parts; at most {MAX_PARTS} are allowed.")
    return "".join(_part(part, f"{path}[{index}]", role) for index, part in enumerate(parts))


def _part(value: object, path: str, role: str) -> str:
    fields = Fields(as_object(value, path), f"{path}.")
    kind = fields.text("type")
    if kind is None:
        raise missing(fields.path("type"))
    # Clients send back what they were given: a refusal of an earlier reply is part of the assistant's text.
    name = "refusal" if kind == "refusal" and role == "assistant" else "text"
    if kind != name:
        message = f"{path}: parts of type {kind[:_NAME_CHARS]!r} are not supported; only text is."
        raise HttpError(400, "unsupported_content", message, param=path)
    text = fields.text(name)
    if text is None:
        raise missing(fields.path(name))
    return text


def _tool_calls(fields: Fields) -> list[object] | None:
    calls = fields.items("tool_calls", MAX_TOOL_CALLS)
    for index, value in enumerate(calls or ()):
        path = fields.path(f"tool_calls[{index}]")
        call = Fields(as_object(value, path), f"{path}.")
        call.text("id")
        function = call.mapping("function")
        if function is None:
            raise missing(call.path("function"))
        _check_function(Fields(function, f"{path}.function."))
    return calls


def _check_function(function: Fields) -> None:
    if function.string("name", _NAME_CHARS) is None:
        raise missing(function.path("name"))
    arguments = function.value("arguments")
    if arguments is not None and not isinstance(arguments, (str, dict)):
        path = function.path("arguments")
        raise bad_value(path, f"{path} must be a string or an object, not {describe(arguments)}.")
