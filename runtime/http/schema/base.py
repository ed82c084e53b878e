"""The ground of all request models: strict, null is absent, and every complaint names the field.

A field's kind and bounds stand in its model alone; requests are validated by it and ``/openapi.json`` is made
of it. The first complaint, in the order of the fields, is the one that a client sees.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from .complaints import absent, http_error, invalid, not_supported, path_of, unknown, unsupported_part

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ApiModel",
    "OpenModel",
    "absent",
    "invalid",
    "not_supported",
    "parse",
    "path_of",
    "unsupported_part",
]

_NAME_CHARS = 64


class ApiModel(BaseModel):
    """A JSON object of a request. Unknown fields are refused; no value is coerced; immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _present(cls, body: object) -> object:
        """Drop nulls; refuse the first field that is unknown, however many there are."""
        if not isinstance(body, dict):
            return body
        given, known = cast("dict[str, object]", body), _names(cls)
        present = {name: value for name, value in given.items() if value is not None}
        for name in present:
            if name not in known:
                raise unknown(name, _near(name, known))
        return present


class OpenModel(BaseModel):
    """A JSON object whose further fields are a client's own business and are dropped; else as ApiModel.

    Requests hold thousands of them, so nothing but pydantic's own code looks at each: fields that may be
    absent are ``… | None``.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], body: Mapping[str, object], prefix: str = "") -> M:
    """Return ``body`` as a model. Raises HttpError 400 naming the first field at fault, behind ``prefix``."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise http_error(error.errors(include_url=False)[0], prefix) from error


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def _near(name: str, known: frozenset[str]) -> str:
    near = get_close_matches(name[:_NAME_CHARS], sorted(known), 1)
    return near[0] if near else ""
