"""One operation of the API, as it is described."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Mapping

Method: TypeAlias = Literal["get", "post", "delete"]

# What any route may say: who may ask, and how the server fares.
_ANY = (400, 401, 403, 500, 503, 504)
PLAIN = _ANY
BODY = (*_ANY, 413, 415)
GENERATING = (*BODY, 404, 429)
CALLING = (*GENERATING, 422)


class Shape(BaseModel):
    """A JSON object of an answer: it has exactly these fields. Only its schema is used."""

    model_config = ConfigDict(extra="forbid")


class OpenShape(BaseModel):
    """A JSON object of an answer that may have further fields."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class Operation:
    """What a method on a path takes and answers.

    ``bodies``: models of which the request's body is one; none for no body. ``events``: what each event of a
    stream holds, where ``stream`` asks for one. ``others``: answers beside 200 that are no plain errors.
    ``text``: the answer is plain text.
    """

    method: Method
    path: str
    summary: str
    answer: type[BaseModel] | None
    bodies: tuple[type[BaseModel], ...] = ()
    body_required: bool = True
    query: type[BaseModel] | None = None
    events: tuple[type[BaseModel], ...] = ()
    others: Mapping[int, type[BaseModel]] = field(default_factory=dict[int, type[BaseModel]])
    errors: tuple[int, ...] = PLAIN
    text: bool = False

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        """Every model that its description refers to."""
        found = (self.answer, self.query, *self.bodies, *self.events, *self.others.values())
        return tuple(model for model in found if model is not None)

    def __str__(self) -> str:
        """Return it as logs and tests name it."""
        return f"{self.method.upper()} {self.path}"
