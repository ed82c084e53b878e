"""Answers of the routes that tell about the server, and of the one that breaks it on purpose."""

from typing import Literal

from .errors import ErrorDetail
from .operation import PLAIN, OpenShape, Operation, Shape


class Model(Shape):
    """A name under which the model answers; ``root`` is its id."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    context_length: int
    dtype: str


class ModelList(Shape):
    """All names that a request may give."""

    object: Literal["list"]
    data: list[Model]


class Ready(Shape):
    """Whether requests are served, and what is missing."""

    ready: bool
    draining: bool
    detail: dict[str, object]


class NotReady(Ready):
    """Why requests are not served."""

    error: ErrorDetail


class Health(Ready):
    """The process lives."""

    status: Literal["alive"]
    version: str
    uptime_s: float


class Stats(OpenShape):
    """Figures by part."""


class ActorRow(OpenShape):
    """An actor."""

    path: str


class Tree(Shape):
    """The actors."""

    actors: list[ActorRow]


class Crashed(Shape):
    """An actor that was crashed."""

    crashed: str


class Document(OpenShape):
    """This document."""

    openapi: str


OPERATIONS = (
    Operation("get", "/health", "Tell that the process lives", Health),
    Operation("get", "/ready", "Tell whether requests are served", Ready, others={503: NotReady}),
    Operation("get", "/stats", "Return the figures of every part", Stats),
    Operation("get", "/metrics", "Return the figures as Prometheus reads them", None, text=True),
    Operation("get", "/v1/models", "List the names of the model", ModelList),
    Operation("get", "/v1/models/{name}", "Describe one name of the model", Model, errors=(*PLAIN, 404)),
    Operation("get", "/openapi.json", "Return this document", Document),
    Operation("get", "/admin/tree", "List the actors", Tree),
    Operation(
        "post", "/admin/actors/{path}/crash", "Crash an actor on purpose", Crashed, errors=(*PLAIN, 404)
    ),
)
