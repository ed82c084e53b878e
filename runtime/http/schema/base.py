"""The ground of all request models: strict, null is absent, and every complaint names the field.

A field's kind and bounds stand in its model alone; requests are validated by it and ``/openapi.json`` is made
of it. A validator that refuses raises ``invalid`` or ``not_supported``; whatever pydantic itself finds is put
into the same words. The first complaint, in the order of the fields, is the one that a client sees.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from ..errors import HttpError, bad_value, missing, unsupported
from .fields import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

_SHOWN_CHARS = 64
_INVALID = "invalid_value"
_UNSUPPORTED = "unsupported_parameter"


class ApiModel(BaseModel):
    """A JSON object of a request. Unknown fields are refused; no value is coerced; immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class OpenModel(BaseModel):
    """A JSON object whose further fields are a client's own business and are dropped; else as ApiModel."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], body: Mapping[str, object], prefix: str = "") -> M:
    """Return ``body`` as a model. Raises HttpError 400 naming the first field at fault, behind ``prefix``."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _explained(error.errors(include_url=False)[0], model, prefix) from error


def invalid(message: str) -> PydanticCustomError:
    """Return what a validator raises over a bad value; ``message`` goes on from the field's name."""
    return PydanticCustomError(_INVALID, "{message}", {"message": message})


def not_supported(why: str) -> PydanticCustomError:
    """Return what a validator raises over a value that asks for something this server does not have."""
    return PydanticCustomError(_UNSUPPORTED, "{message}", {"message": why})


def _explained(found: ErrorDetails, model: type[BaseModel], prefix: str) -> HttpError:
    path = prefix + path_of(found["loc"])
    message = found["msg"][:1].lower() + found["msg"][1:]
    match found["type"]:
        case "extra_forbidden":
            return _unknown(path, model)
        case "missing":
            return missing(path)
        case kind if kind == _UNSUPPORTED:
            return unsupported(path, message)
        case kind if kind == _INVALID:
            return bad_value(path, f"{path} {message}")
        case _ if found["input"] is None:
            return missing(path)
        case _:
            return bad_value(path, f"{path}: {message}, not {describe(found['input'])}.")


def path_of(loc: tuple[int | str, ...]) -> str:
    """Return a place as errors give it: ``messages[0].content``."""
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _unknown(path: str, model: type[BaseModel]) -> HttpError:
    shown = path[:_SHOWN_CHARS]
    near = get_close_matches(shown, sorted(model.model_fields), 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return HttpError(400, "unknown_parameter", f"Unknown parameter: {shown!r}.{hint}", param=shown)
