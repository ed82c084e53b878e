"""Arguments of the tool calls in a history, as templates want them.

OpenAI's clients send JSON text, most templates want objects, some want text, and a call that was cut short
is no JSON at all. None of that is an error: a bad call must not spoil the rest of a session.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from .arranging import Message, Messages

    Writing: TypeAlias = Callable[[object], object]


def arguments_text(arguments: object) -> str:
    """Return arguments as the JSON text of an object, or of a string where they are none. Marked or not."""
    if isinstance(arguments, str):
        return arguments.strip() if _is_object(arguments) else _json(arguments)
    return _json(arguments or {})


def _as_objects(arguments: object) -> object:
    """Return an object where it is one, else the text as it came."""
    if isinstance(arguments, str):
        parsed = _parsed(arguments)
        return arguments if parsed is None else parsed
    return arguments or {}


def _as_text(arguments: object) -> object:
    """Return JSON text; text that is no JSON as it came."""
    return arguments if isinstance(arguments, str) else _json(arguments or {})


def _as_objects_only(arguments: object) -> object:
    """Return an object always: text that is none becomes its only member."""
    written = _as_objects(arguments)
    return {"arguments": written} if isinstance(written, str) else written


WRITINGS: Final[tuple[Writing, ...]] = (_as_objects, _as_text, _as_objects_only)
"""The ways to write arguments, the commonest first."""


def with_arguments(messages: Messages, writing: Writing) -> Messages:
    """Return the messages with the arguments of their tool calls written so."""
    return [_with_calls(message, writing) if message.get("tool_calls") else message for message in messages]


def _with_calls(message: Message, writing: Writing) -> Message:
    calls = cast("list[Message]", message["tool_calls"])
    return message | {"tool_calls": [_written(call, writing) for call in calls]}


def _written(call: Message, writing: Writing) -> Message:
    function = cast("Message", call.get("function") or {})
    return call | {"function": function | {"arguments": writing(function.get("arguments"))}}


def _parsed(text: str) -> dict[str, object] | None:
    """Return the object that ``text`` is; orjson refuses lone surrogates, written as escapes too.

    One that nests too deeply for templates to write is none.
    """
    try:
        value = orjson.loads(text)
        orjson.dumps(value)
    except (ValueError, TypeError):
        return None
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _is_object(text: str) -> bool:
    """Whether ``text``, which may hold marks, is the JSON of an object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
