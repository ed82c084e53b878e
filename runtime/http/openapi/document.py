"""The OpenAPI 3.1 document of the routes that a server has."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
from pydantic.json_schema import models_json_schema

from ...version import version
from ..errors import is_anthropic
from . import anthropic, completions, responses, state
from . import cache as caching
from .errors import REASONS, AnthropicError, Error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .operation import Operation

Json: TypeAlias = dict[str, Any]
Refs: TypeAlias = "Mapping[type[object], Json]"

OPERATIONS: tuple[Operation, ...] = (
    *completions.OPERATIONS,
    *responses.OPERATIONS,
    *anthropic.OPERATIONS,
    *caching.OPERATIONS,
    *state.OPERATIONS,
)
_PLACEHOLDER = re.compile(r"{(\w+)}")
_JSON = "application/json"
_RETRY = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds."}}
_RETRYABLE = frozenset({429, 503})
_UNLESS_KEYS: Json = {}
_DONE: Json = {"const": "[DONE]"}


def described(routes: Iterable[tuple[str, str]]) -> bytes:
    """Return the document of those ``(method, path)`` of a server that are described; slow once."""
    return _document(frozenset(routes))


@cache
def _document(routes: frozenset[tuple[str, str]]) -> bytes:
    operations = [each for each in OPERATIONS if (each.method, each.path) in routes]
    refs, schemas = _schemas(operations)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, refs)
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "Samovar", "version": version()},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
            # Keys are only asked for where they are configured.
            "security": [_UNLESS_KEYS, {"bearer": []}, {"key": []}],
        }
    )


def _schemas(operations: Sequence[Operation]) -> tuple[Refs, Json]:
    models = dict.fromkeys([Error, AnthropicError, *(model for each in operations for model in each.models)])
    references, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    return {model: ref for (model, _), ref in references.items()}, definitions["$defs"]


def _operation(operation: Operation, refs: Refs) -> Json:
    body: Json = {}
    if operation.bodies:
        content = {_JSON: {"schema": _one_of([refs[model] for model in operation.bodies])}}
        body = {"requestBody": {"required": operation.body_required, "content": content}}
    return {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation)],
        "responses": _responses(operation, refs),
        **body,
    }


def _operation_id(operation: Operation) -> str:
    return "_".join([operation.method, *re.findall(r"\w+", operation.path)])


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PLACEHOLDER.findall(path)
    ]


def _query_parameters(operation: Operation) -> list[Json]:
    if operation.query is None:
        return []
    schema = operation.query.model_json_schema()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(each)}
        for name, each in schema["properties"].items()
    ]


def _without_null(schema: Json) -> Json:
    """Return what is left of a field that may be null: a query has no null."""
    return next((each for each in schema.get("anyOf", []) if each != {"type": "null"}), schema)


def _responses(operation: Operation, refs: Refs) -> Json:
    found: Json = {}
    if operation.answer is not None or operation.text:
        found["200"] = {"description": "Done.", "content": _content(operation, refs)}
    failure = refs[AnthropicError if is_anthropic(operation.path) else Error]
    for status in sorted(operation.errors):
        own = operation.others.get(status)
        schema = failure if own is None else _one_of([refs[own], failure])
        found[str(status)] = {"description": REASONS[status], "content": {_JSON: {"schema": schema}}}
        if status in _RETRYABLE:
            found[str(status)]["headers"] = _RETRY
    return found


def _content(operation: Operation, refs: Refs) -> Json:
    if operation.text:
        return {"text/plain": {"schema": {"type": "string"}}}
    assert operation.answer is not None
    content: Json = {_JSON: {"schema": refs[operation.answer]}}
    if operation.events:
        failure = AnthropicError if is_anthropic(operation.path) else Error
        content["text/event-stream"] = {
            "schema": _event([refs[model] for model in (*operation.events, failure)])
        }
    return content


def _event(data: list[Json]) -> Json:
    """Return one server-sent event; before OpenAPI 3.2 a stream's schema is that of each event."""
    encoded = {"type": "string", "contentMediaType": _JSON, "contentSchema": _one_of(data)}
    return {
        "type": "object",
        "description": "An event, where the body has `stream` true.",
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [_DONE, encoded]}},
        "required": ["data"],
    }


def _one_of(schemas: list[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
