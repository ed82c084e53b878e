"""Tools, their choice, and the form of the text, as the Responses API writes them: flat.

Each comes to what chat completions make of the nested form, so both APIs mean the same by it.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import orjson
from pydantic import AfterValidator, Discriminator, Field, Tag

from ...engine.prompt import Constraint
from ..errors import HttpError
from .base import ApiModel, OpenModel, not_supported
from .kinds import Chars, Items, Only
from .responses_items import type_of
from .tools import (
    MAX_TOOLS,
    AllowedTools,
    AllowedToolsChoice,
    FunctionName,
    FunctionSpec,
    FunctionTool,
    NamedTool,
    ToolName,
    ToolUse,
    tool_use,
)

_SHOWN_CHARS: Final = 64
_OFF: Final = False
_MAX_NAME_CHARS: Final = 64


def _refuse_tool(kind: str) -> str:
    raise not_supported(f"there is no tool {kind[:_SHOWN_CHARS]!r} here; functions of your own are.")


def _refuse_choice(kind: str) -> str:
    raise not_supported(f"there is no choice {kind[:_SHOWN_CHARS]!r} here.")


class FlatFunction(ApiModel):
    """A function of the client's. ``strict`` is not enforced unless a call is demanded, as in chat."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    output_schema: dict[str, object] | None = None
    defer_loading: Annotated[object, Only("all tools are shown from the start.", _OFF)] = None
    allowed_callers: Annotated[object, Only("only the model calls tools.", ["direct"])] = None
    asynchronous: Annotated[object, Only("calls are not asynchronous.", _OFF), Field(alias="async")] = None


class OtherTool(OpenModel):
    """A tool that OpenAI runs itself, or one without a JSON Schema."""

    type: Annotated[str, AfterValidator(_refuse_tool)]


class FlatName(OpenModel):
    """The function that must be called."""

    type: Literal["function"]
    name: ToolName


class FlatAllowed(ApiModel):
    """Some of the tools, and whether one of them must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatName], Items(1, MAX_TOOLS)]


class OtherChoice(OpenModel):
    """A choice of a tool that is not here."""

    type: Annotated[str, AfterValidator(_refuse_choice)]


class TextForm(OpenModel):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaForm(ApiModel):
    """JSON by a schema; it constrains whether ``strict`` is set or not."""

    type: Literal["json_schema"]
    name: Annotated[str, Chars(1, _MAX_NAME_CHARS)]
    schema_: Annotated[dict[str, object], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


def _tag_of(value: object, kinds: frozenset[str]) -> str:
    kind = type_of(value)
    return f"<{kind}>" if kind in kinds else "<other>"


_WORDS: Final = frozenset({"auto", "none", "required"})
_CHOICES: Final = frozenset({"function", "allowed_tools"})
_FORMS: Final = frozenset({"json_schema"})

FlatTool: TypeAlias = Annotated[
    Annotated[FlatFunction, Tag("<function>")] | Annotated[OtherTool, Tag("<other>")],
    Discriminator(lambda value: _tag_of(value, frozenset({"function"}))),
]
FlatTools: TypeAlias = Annotated[list[FlatTool], Items(0, MAX_TOOLS)]
FlatChoice: TypeAlias = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("<word>")]
    | Annotated[FlatName, Tag("<function>")]
    | Annotated[FlatAllowed, Tag("<allowed_tools>")]
    | Annotated[OtherChoice, Tag("<other>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else _tag_of(value, _CHOICES)),
]
TextFormat: TypeAlias = Annotated[
    Annotated[SchemaForm, Tag("<json_schema>")] | Annotated[TextForm, Tag("<other>")],
    Discriminator(lambda value: _tag_of(value, _FORMS)),
]


def flat_tool_use(
    tools: Sequence[FlatFunction | OtherTool], choice: FlatChoice | None, *, parallel: bool | None
) -> ToolUse:
    """Return what tools and choice come to. Raises HttpError naming the flat fields."""
    functions = [_nested(tool) for tool in tools if isinstance(tool, FlatFunction)]
    try:
        return tool_use(functions, _nested_choice(choice), parallel=parallel)
    except HttpError as error:
        param = None if error.param is None else _flat(error.param)
        raise HttpError(error.status, error.code, _flat(error.message), param=param) from error


def text_constraint(form: SchemaForm | TextForm | None) -> Constraint | None:
    """Return what ``text.format`` demands of a reply."""
    match form:
        case SchemaForm():
            return Constraint("json_schema", orjson.dumps(form.schema_).decode(), param="text.format.schema")
        case TextForm(type="json_object"):
            return Constraint("json_object", param="text.format")
        case _:
            return None


def _nested(tool: FlatFunction) -> FunctionTool:
    spec = FunctionSpec(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return FunctionTool(type="function", function=spec)


def _nested_choice(
    choice: FlatChoice | None,
) -> Literal["auto", "none", "required"] | NamedTool | AllowedToolsChoice | None:
    match choice:
        case FlatName():
            return _named(choice)
        case FlatAllowed():
            tools = [_named(tool) for tool in choice.tools]
            allowed = AllowedTools(mode=choice.mode, tools=tools)
            return AllowedToolsChoice(type="allowed_tools", allowed_tools=allowed)
        case OtherChoice():
            return None
        case _:
            return choice


def _named(choice: FlatName) -> NamedTool:
    return NamedTool(type="function", function=FunctionName(name=choice.name))


def _flat(text: str) -> str:
    return text.replace(".function.name", ".name").replace("tool_choice.allowed_tools.", "tool_choice.")
