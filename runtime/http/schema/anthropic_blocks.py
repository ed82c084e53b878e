"""Anthropic's content blocks as a client sends them: what was said, and the tools' calls and results.

Blocks are history that clients carry along, so fields that have no place in a prompt (citations, signatures,
callers) are dropped. A block of another kind is refused by its type: what it holds would be missing from the
prompt.
"""

from typing import Annotated, Final, Literal, Self, TypeAlias, cast

from pydantic import Discriminator, Tag, model_validator

from .base import OpenModel, unsupported_part
from .kinds import LIST, TEXT, Chars, Items, by_kind

MAX_BLOCKS = 1024
_NAME_CHARS = 256
_OTHER: Final = "<other>"
_KINDS: Final = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"})


class CacheControl(OpenModel):
    """A hint where to cache; without effect, since every prefix is cached here."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(OpenModel):
    """What all blocks have in common."""

    cache_control: CacheControl | None = None


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Block):
    """What the model thought in an earlier turn. Its signature is not looked at."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Block):
    """Thoughts that only Anthropic can read; dropped."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Block):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: Annotated[str, Chars(1, _NAME_CHARS)]
    name: Annotated[str, Chars(1, _NAME_CHARS)]
    input: dict[str, object]


class OtherBlock(OpenModel):
    """A block that cannot be put into a prompt: images, documents, what Anthropic's own tools gave."""

    type: str

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        raise unsupported_part(self.type)


def _kind_among(known: frozenset[str], value: object) -> str:
    """Return the tag of a block, sent or already parsed."""
    if isinstance(value, dict):
        kind = cast("dict[str, object]", value).get("type")
    else:
        kind = getattr(value, "type", None)
    return f"<{kind}>" if isinstance(kind, str) and kind in known else _OTHER


_Text: TypeAlias = Annotated[TextBlock, Tag("<text>")]
_Other: TypeAlias = Annotated[OtherBlock, Tag(_OTHER)]
_IsText: Final = Discriminator(lambda value: _kind_among(frozenset({"text"}), value))
TextBlocks: TypeAlias = Annotated[list[Annotated[_Text | _Other, _IsText]], Items(0, MAX_BLOCKS)]
TextContent: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[TextBlocks, LIST], by_kind("a string or a list of text blocks")
]
"""Text alone: the system prompt, what a tool gave."""


class ToolResultBlock(Block):
    """What a tool gave."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Chars(1, _NAME_CHARS)]
    content: TextContent | None = None
    is_error: bool | None = None


ContentBlock: TypeAlias = Annotated[
    _Text
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | _Other,
    Discriminator(lambda value: _kind_among(_KINDS, value)),
]
Content: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[list[ContentBlock], Items(0, MAX_BLOCKS), LIST],
    by_kind("a string or a list of blocks"),
]
"""What a turn consists of."""
