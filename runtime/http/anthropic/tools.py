"""Anthropic's tools as the function tools that every API here comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import bad_value
from ..schema.anthropic_tools import OtherTool
from ..schema.tools import FunctionName, FunctionSpec, FunctionTool, NamedTool, tool_use
from .texts import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from ..schema.anthropic import PromptBody
    from ..schema.anthropic_tools import CustomTool, ToolChoice
    from ..schema.tools import ToolUse


def tool_use_of(body: PromptBody) -> ToolUse:
    """Return what a body's tools come to. Raises HttpError for a choice that they do not allow."""
    tools = [tool for tool in body.tools or () if not isinstance(tool, OtherTool)]
    _check_names(tools, body.tool_choice)
    choice = body.tool_choice
    parallel = choice is None or not choice.disable_parallel_tool_use
    return tool_use([_function(tool) for tool in tools], _choice(choice), parallel=parallel)


def _check_names(tools: Sequence[CustomTool], choice: ToolChoice | None) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            path = f"tools[{index}].name"
            raise bad_value(path, f"{path}: there are two tools of the name {tool.name!r}.")
        names.add(tool.name)
    if choice is not None and choice.name is not None and choice.name not in names:
        raise bad_value("tool_choice.name", f"tool_choice.name: no tool {choice.name!r} is offered.")


def _choice(choice: ToolChoice | None) -> Literal["auto", "none", "required"] | NamedTool | None:
    if choice is None:
        return None
    if choice.name is not None:
        return NamedTool(type="function", function=FunctionName(name=choice.name))
    return "none" if choice.type == "none" else "required" if choice.type == "any" else "auto"


def _function(tool: CustomTool) -> FunctionTool:
    spec = FunctionSpec(
        name=tool.name,
        description=_description(tool),
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return FunctionTool(type="function", function=spec)


def _description(tool: CustomTool) -> str | None:
    """Return what the tool does, with its examples: templates have no other place for them."""
    if not tool.input_examples:
        return tool.description
    examples = "\n".join(json_text(example, "tools") for example in tool.input_examples)
    return f"{tool.description or tool.name}\n\nExamples of its input:\n{examples}"
