"""Answers of the Responses API."""

from typing import Annotated, Literal

from pydantic import Field

from ..schema.responses import ResponsesBody
from .completions import CachedShare, ReasoningShare, SamovarUsage
from .operation import CALLING, PLAIN, OpenShape, Operation, Shape

_STORED = (*PLAIN, 404)


class InputDetails(CachedShare):
    """Of the prompt's tokens."""

    cache_write_tokens: int


class ResponseUsage(Shape):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningShare
    total_tokens: int
    samovar: SamovarUsage


class Details(OpenShape):
    """Why a response is not whole."""


class ResponseItem(OpenShape):
    """An item of a conversation; its type says what else it has."""

    type: str


class Response(OpenShape):
    """A response; further fields repeat the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: Details | None
    incomplete_details: Details | None
    model: str
    output: list[ResponseItem]
    usage: ResponseUsage | None
    store: bool


class ResponseEvent(OpenShape):
    """One event of a stream; its type says what else it has."""

    type: str
    sequence_number: int


class DeletedResponse(Shape):
    """A response that is no more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(Shape):
    """A page of the items that a response was asked with."""

    object: Literal["list"]
    data: list[ResponseItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputItemsQuery(Shape):
    """Which items to list; ``after`` is an item's id."""

    limit: Annotated[int, Field(ge=1, le=100)] | None = None
    order: Literal["asc", "desc"] | None = None
    after: str | None = None


class RetrieveQuery(Shape):
    """A stored response is given whole."""

    stream: Literal[False] | None = None


OPERATIONS = (
    Operation(
        "post",
        "/v1/responses",
        "Go on with a conversation that the server may keep",
        Response,
        bodies=(ResponsesBody,),
        events=(ResponseEvent,),
        errors=CALLING,
    ),
    Operation(
        "get",
        "/v1/responses/{id}",
        "Return a stored response",
        Response,
        query=RetrieveQuery,
        errors=_STORED,
    ),
    Operation("delete", "/v1/responses/{id}", "Forget a stored response", DeletedResponse, errors=_STORED),
    Operation(
        "get",
        "/v1/responses/{id}/input_items",
        "List what a stored response was asked with",
        InputItems,
        query=InputItemsQuery,
        errors=_STORED,
    ),
    Operation(
        "post",
        "/v1/responses/{id}/cancel",
        "Refused: no response runs in the background",
        None,
        errors=_STORED,
    ),
)
