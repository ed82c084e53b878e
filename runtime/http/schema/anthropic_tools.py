"""Anthropic's tools as a client offers them, and its choice among them."""

from typing import Annotated, Final, Literal, Self, TypeAlias, cast

from pydantic import AfterValidator, Discriminator, Tag, model_validator

from .anthropic_blocks import CacheControl
from .base import ApiModel, OpenModel, invalid, not_supported
from .kinds import Only
from .tools import ToolName

_CUSTOM: Final = "<custom>"
_OTHER: Final = "<other>"
_SHOWN_CHARS = 64


def _object_schema(schema: dict[str, object]) -> dict[str, object]:
    if schema.get("type", "object") != "object":
        raise invalid("must be a schema of type object.")
    return schema


def _by_model(callers: list[str]) -> list[str]:
    if "direct" not in callers:
        raise not_supported("tools are called by the model directly; there is no code execution.")
    return callers


def _refuse_tool(kind: str) -> str:
    raise not_supported(
        f"{kind[:_SHOWN_CHARS]!r} is a tool of Anthropic's own; "
        "offer a tool with a name, a description and an input_schema."
    )


class CustomTool(ApiModel):
    """A tool that the client runs. ``eager_input_streaming`` has no effect: inputs are always streamed."""

    name: ToolName
    input_schema: Annotated[dict[str, object], AfterValidator(_object_schema)]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    input_examples: list[dict[str, object]] | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    defer_loading: Annotated[bool | None, Only("tools cannot be searched for.", False)] = None  # noqa: FBT003
    allowed_callers: Annotated[list[str], AfterValidator(_by_model)] | None = None


class OtherTool(OpenModel):
    """A tool that Anthropic runs, or whose schema only Anthropic's models know."""

    type: Annotated[str, AfterValidator(_refuse_tool)]


def _kind(value: object) -> str:
    """Return the tag of a tool, sent or already parsed."""
    if isinstance(value, dict):
        kind = cast("dict[str, object]", value).get("type")
        return _CUSTOM if kind is None or kind == "custom" else _OTHER
    return _OTHER if isinstance(value, OtherTool) else _CUSTOM


Tool: TypeAlias = Annotated[
    Annotated[CustomTool, Tag(_CUSTOM)] | Annotated[OtherTool, Tag(_OTHER)], Discriminator(_kind)
]


class ToolChoice(ApiModel):
    """Whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise invalid("must have a name where its type is tool, and only there.")
        return self
