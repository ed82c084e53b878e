"""Answers of Anthropic's Messages API."""

from typing import Literal

from ..schema.anthropic import CountBody, MessagesBody
from .completions import SamovarUsage
from .operation import CALLING, GENERATING, OpenShape, Operation, Shape


class MessageBlock(OpenShape):
    """A part of a message; its type says what else it has."""

    type: Literal["text", "thinking", "tool_use"]


class ThinkingPart(Shape):
    """How many of a message's tokens were thoughts."""

    thinking_tokens: int


class MessageUsage(Shape):
    """Tokens of a message; what came from the cache is no part of ``input_tokens``."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingPart
    samovar: SamovarUsage


class Message(Shape):
    """A message of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class MessageEvent(OpenShape):
    """One event of a stream; its type says what else it has."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]


class TokenCount(Shape):
    """How long a prompt is."""

    input_tokens: int


OPERATIONS = (
    Operation(
        "post",
        "/v1/messages",
        "Go on with a conversation",
        Message,
        bodies=(MessagesBody,),
        events=(MessageEvent,),
        errors=CALLING,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count a prompt's tokens",
        TokenCount,
        bodies=(CountBody,),
        errors=GENERATING,
    ),
)
