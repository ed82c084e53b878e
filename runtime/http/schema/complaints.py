"""What a request can have wrong, and the words in which a client is told.

Validators raise one of the errors made here; what pydantic itself finds is put into the same words. A
message goes on from the field's name. ``at`` leads from the place where a validator stands to the field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticCustomError

from ..errors import HttpError, bad_value, missing, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic_core import ErrorDetails

_SHOWN_CHARS = 64
_SHOWN_VALUE_CHARS = 40
_INVALID: Final = "invalid_value"
_UNSUPPORTED: Final = "unsupported_parameter"
_UNKNOWN: Final = "unknown_parameter"
_CONTENT: Final = "unsupported_content"
_ABSENT: Final = "missing"
_WANTED = {
    "bool_type": "a boolean",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "an object",
    "string_type": "a string",
}


def invalid(message: str, *at: str | int) -> PydanticCustomError:
    """Return what a validator raises over a bad value."""
    return PydanticCustomError(_INVALID, "{message}", {"message": message, "at": at})


def not_supported(why: str, *at: str | int) -> PydanticCustomError:
    """Return what a validator raises over a value that asks for something this server does not have."""
    return PydanticCustomError(_UNSUPPORTED, "{message}", {"message": why, "at": at})


def absent(*at: str | int) -> PydanticCustomError:
    """Return what a validator raises where a field is required after all."""
    return PydanticCustomError(_ABSENT, "is required", {"at": at})


def unknown(name: str, near: str) -> PydanticCustomError:
    """Return what is raised over a field that does not exist; ``near`` is one that does, or empty."""
    return PydanticCustomError(_UNKNOWN, "{near}", {"near": near, "at": (name,)})


def unsupported_part(kind: str, *at: str | int) -> PydanticCustomError:
    """Return what a validator raises over a content part that is no text."""
    return PydanticCustomError(_CONTENT, "{kind}", {"kind": kind[:_SHOWN_CHARS], "at": at})


def http_error(found: ErrorDetails, prefix: str = "") -> HttpError:
    """Return the 400 for what a validation found, its field named behind ``prefix``."""
    context = found.get("ctx", {})
    path = prefix + path_of((*found["loc"], *context.get("at", ())))
    made = _MADE.get(found["type"])
    if made is not None:
        return made(path, context)
    if found["input"] is None:
        return missing(path)
    return bad_value(path, f"{path} {_complaint(found, context)}")


def path_of(loc: tuple[int | str, ...]) -> str:
    """Return a place as errors give it: ``messages[0].content``. Members of unions are no part of it."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not (step.startswith("<") and step.endswith(">")):
            path += f".{step}" if path else step
    return path


def _complaint(found: ErrorDetails, context: dict[str, Any]) -> str:
    """Return pydantic's own findings in this server's words."""
    value = found["input"]
    match found["type"]:
        case "too_long":
            return f"has {len(value)} items; at most {context['max_length']} are allowed."
        case "too_short":
            return "must not be empty."
        case _:
            wanted = _wanted(found, context)
    return f"must be {wanted}, not {describe(value)}."


def _wanted(found: ErrorDetails, context: dict[str, Any]) -> str:
    match found["type"]:
        case "kind":
            return found["msg"]
        case "greater_than_equal":
            return f"at least {context['ge']}"
        case "literal_error":
            return context["expected"]
        case "string_pattern_mismatch":
            return f"a string that matches {context['pattern']}"
        case kind:
            return _WANTED.get(kind, "of the kind that is documented")


def _unknown(path: str, near: str) -> HttpError:
    shown = path[:_SHOWN_CHARS]
    hint = f" Did you mean {near}?" if near else ""
    return HttpError(400, _UNKNOWN, f"Unknown parameter: {shown!r}.{hint}", param=shown)


def _unsupported_part(path: str, kind: str) -> HttpError:
    message = f"{path}: parts of type {kind!r} are not supported; only text is."
    return HttpError(400, _CONTENT, message, param=path)


_MADE: Final[Mapping[str, Callable[[str, dict[str, Any]], HttpError]]] = {
    _ABSENT: lambda path, _: missing(path),
    _CONTENT: lambda path, context: _unsupported_part(path, context["kind"]),
    _INVALID: lambda path, context: bad_value(path, f"{path} {context['message']}"),
    _UNKNOWN: lambda path, context: _unknown(path, context["near"]),
    _UNSUPPORTED: lambda path, context: unsupported(path, context["message"]),
}


def describe(value: object) -> str:
    """Return a JSON value's kind and, for scalars, its beginning."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:.6g}" if isinstance(value, float) else str(value)
        case str():
            shown = value if len(value) <= _SHOWN_VALUE_CHARS else value[:_SHOWN_VALUE_CHARS] + "…"
            return f"the string {shown!r}"
        case list():
            return "a list"
        case _:
            return "an object"
