"""Tools that a client offers to the model, and whether it must, may or must not call one.

- ``auto`` (the default where there are tools): the model may call. ``strict`` of a function is not enforced.
- ``none``: no call is read out of the reply, but the tools stay in the prompt, so that a conversation which
  forbids calls for one turn finds its prefix in the cache.
- ``required``, or a function by name: the reply is constrained to calls, arguments by their schema; to one
  call for a named function and with ``parallel_tool_calls`` false.
- ``allowed_tools``: as ``required`` over some of the tools, or, with mode ``auto``, only these are offered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import Discriminator, Field, Tag

from ...engine.prompt import Constraint
from ..errors import bad_value, unsupported
from .base import ApiModel, OpenModel
from .kinds import OBJECT, TEXT, Chars, Items, tag_of

MAX_TOOLS = 1024
_MAX_NAME_CHARS = 128

ToolName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]+$"), Chars(1, _MAX_NAME_CHARS)]


class FunctionSpec(OpenModel):
    """What a function is called, what it does, and the JSON Schema of its arguments."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class FunctionTool(OpenModel):
    """A tool as chat completions offer it."""

    type: Literal["function"]
    function: FunctionSpec


class FunctionName(OpenModel):
    """A function by its name."""

    name: ToolName


class NamedTool(OpenModel):
    """A function that must be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(ApiModel):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Items(1, MAX_TOOLS)]


class AllowedToolsChoice(ApiModel):
    """OpenAI's choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


_ALLOWED = Tag("<allowed_tools>")


def _choice_tag(value: object) -> str | None:
    if isinstance(value, dict) and cast("dict[str, object]", value).get("type") == "allowed_tools":
        return _ALLOWED.tag
    return tag_of(cast("object", value))


ToolList: TypeAlias = Annotated[list[FunctionTool], Items(0, MAX_TOOLS)]
ToolChoice: TypeAlias = Annotated[
    Annotated[Literal["auto", "none", "required"], TEXT]
    | Annotated[NamedTool, OBJECT]
    | Annotated[AllowedToolsChoice, _ALLOWED],
    Discriminator(
        _choice_tag, custom_error_type="kind", custom_error_message="auto, none, required or an object"
    ),
]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What comes of a request's tools: those in the prompt, a demand for calls, whether calls are read."""

    tools: tuple[Mapping[str, object], ...] = ()
    constraint: Constraint | None = None
    may_call: bool = False

    def beside(self, form: Constraint | None) -> Constraint | None:
        """Return what a reply must match that was also asked for in a form: a demand for calls goes first.

        Raises HttpError (400) where the model is free to call, since a form would keep it from that.
        """
        if form is not None and self.may_call and self.constraint is None:
            why = "not beside tools that the model may call; set tool_choice to none or required."
            raise unsupported(form.param, why)
        return self.constraint or form


def tool_use(
    tools: Sequence[FunctionTool] | None, choice: ToolChoice | None, *, parallel: bool | None
) -> ToolUse:
    """Return what ``tools`` come to under ``choice``. Raises HttpError over a choice they do not allow."""
    offered = {tool.function.name: _as_json(tool) for tool in tools or ()}
    _check_distinct(tools or ())
    match choice:
        case None | "auto":
            return ToolUse(tuple(offered.values()), None, may_call=bool(offered))
        case "none":
            return ToolUse(tuple(offered.values()))
        case "required":
            return _demand(offered, list(offered), many=parallel is not False)
        case NamedTool():
            name = choice.function.name
            _check_offered(name, offered, "tool_choice.function.name")
            return _demand(offered, [name], many=False)
        case AllowedToolsChoice():
            return _among(offered, choice.allowed_tools, many=parallel is not False)


def _among(offered: dict[str, Mapping[str, object]], allowed: AllowedTools, *, many: bool) -> ToolUse:
    names = [tool.function.name for tool in allowed.tools]
    for index, name in enumerate(names):
        _check_offered(name, offered, f"tool_choice.allowed_tools.tools[{index}].function.name")
    if allowed.mode == "required":
        return _demand(offered, names, many=many)
    return ToolUse(tuple(offered[name] for name in dict.fromkeys(names)), None, may_call=True)


def _demand(offered: dict[str, Mapping[str, object]], names: list[str], *, many: bool) -> ToolUse:
    if not names:
        raise bad_value("tool_choice", "tool_choice demands a call, but no tools are offered.")
    tools = tuple(offered[name] for name in dict.fromkeys(names))
    demand = Constraint("tools", tools=tools, many=many, param="tool_choice")
    return ToolUse(tuple(offered.values()), demand, may_call=True)


def _check_offered(name: str, offered: Mapping[str, object], path: str) -> None:
    if name not in offered:
        raise bad_value(path, f"{path}: no tool {name!r} is offered.")


def _check_distinct(tools: Sequence[FunctionTool]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.function.name in seen:
            path = f"tools[{index}].function.name"
            raise bad_value(path, f"{path}: there are two tools of the name {tool.function.name!r}.")
        seen.add(tool.function.name)


def _as_json(tool: FunctionTool) -> Mapping[str, object]:
    """Return what templates show: name, description and parameters, as far as they were given."""
    function = tool.function
    shown: dict[str, object] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": shown}
