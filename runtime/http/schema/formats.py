"""What a reply must look like: ``response_format``, and vLLM's ``structured_outputs`` and ``guided_…``.

At most one of them constrains a reply. A JSON Schema constrains whether ``strict`` is set or not. Grammars
are Lark grammars as llguidance reads them. Whether a schema, expression or grammar can be used is found when
it is compiled: 400 ``invalid_constraint``.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import orjson
from pydantic import Field

from ...engine.prompt import Constraint, ConstraintKind
from ..errors import bad_value, missing
from .base import ApiModel, OpenModel
from .kinds import OBJECT, TEXT, Chars, Items, Only, by_kind

MAX_SOURCE_CHARS = 1 << 20
MAX_CHOICES = 1024

Source: TypeAlias = Annotated[str, Chars(1, MAX_SOURCE_CHARS)]
JsonSchema: TypeAlias = Annotated[
    Annotated[Source, TEXT] | Annotated[dict[str, object], OBJECT], by_kind("an object or its JSON text")
]
Choices: TypeAlias = Annotated[list[Annotated[str, Chars(1, 4096)]], Items(1, MAX_CHOICES)]


class NamedSchema(OpenModel):
    """OpenAI's wrapper of a schema; its name, description and ``strict`` change nothing."""

    name: str | None = None
    schema_: Annotated[dict[str, object], Field(alias="schema")]


class ResponseFormat(OpenModel):
    """OpenAI's ``response_format``; llama.cpp's and others' ``schema`` is taken as ``json_schema.schema``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Annotated[dict[str, object] | None, Field(alias="schema")] = None


class StructuredOutputs(ApiModel):
    """vLLM's constraints."""

    json_: Annotated[JsonSchema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Source | None = None
    choice: Choices | None = None
    grammar: Source | None = None
    structural_tag: Annotated[object, Only("use tools.")] = None


class FormatFields(ApiModel):
    """The fields of a request that constrain its reply."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None


def constraint_of(fields: FormatFields) -> Constraint | None:
    """Return the one constraint that ``fields`` ask for. Raises HttpError where they ask for several."""
    found = [*_constraints(fields)]
    if len(found) > 1:
        message = f"{found[1].param} cannot be combined with {found[0].param}."
        raise bad_value(found[1].param, message)
    return found[0] if found else None


def format_constraint(form: ResponseFormat | None, param: str = "response_format") -> Constraint | None:
    """Return what a ``response_format`` comes to. Raises HttpError where its schema is missing."""
    if form is None or form.type == "text":
        return None
    schema = form.json_schema.schema_ if form.json_schema is not None else form.schema_
    if schema is not None:
        return Constraint("json_schema", orjson.dumps(schema).decode(), param=param)
    if form.type == "json_schema":
        raise missing(f"{param}.json_schema")
    return Constraint("json_object", param=param)


def _constraints(fields: FormatFields) -> Iterator[Constraint]:
    form = format_constraint(fields.response_format)
    if form is not None:
        yield form
    outputs = fields.structured_outputs or StructuredOutputs()
    if outputs.json_object:
        yield Constraint("json_object", param="structured_outputs.json_object")
    given: tuple[tuple[ConstraintKind, str, object], ...] = (
        ("json_schema", "structured_outputs.json", outputs.json_),
        ("regex", "structured_outputs.regex", outputs.regex),
        ("choice", "structured_outputs.choice", outputs.choice),
        ("grammar", "structured_outputs.grammar", outputs.grammar),
        ("json_schema", "guided_json", fields.guided_json),
        ("regex", "guided_regex", fields.guided_regex),
        ("choice", "guided_choice", fields.guided_choice),
        ("grammar", "guided_grammar", fields.guided_grammar),
    )
    for kind, param, value in given:
        if value is not None:
            yield Constraint(kind, _source(value), param=param)


def _source(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
