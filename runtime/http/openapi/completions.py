"""Answers of chat completions and of completions."""

from typing import Literal

from pydantic import Field

from ..schema.chat import ChatRequest
from ..schema.completions import CompletionRequest
from .operation import CALLING, GENERATING, Operation, Shape


class CachedShare(Shape):
    """How many of a prompt's tokens were there already."""

    cached_tokens: int


class ReasoningShare(Shape):
    """How many of a reply's tokens were reasoning."""

    reasoning_tokens: int


class SamovarUsage(Shape):
    """Where the first choice's prompt came from, and where its time went."""

    tier: Literal["none", "ram", "ssd"]
    cached_tokens: int
    restore_ms: float
    queue_ms: float | None
    prefill_ms: float
    ttft_ms: float | None
    miss_reason: str | None


class CompletionUsage(Shape):
    """Tokens of all choices; a prompt that choices share counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedShare
    completion_tokens_details: ReasoningShare
    samovar: SamovarUsage


class TokenProbability(Shape):
    """A token and its natural-log probability; bytes are null for a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenToken(TokenProbability):
    """A token of the reply and its likeliest alternatives."""

    top_logprobs: list[TokenProbability]


class ChatLogprobs(Shape):
    """The tokens of the content."""

    content: list[ChosenToken]
    refusal: None


class CalledFunction(Shape):
    """A function and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Shape):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ReplyMessage(Shape):
    """A reply. Content is null where it only calls tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)


class ChatChoice(Shape):
    """One of the replies."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Shape):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage


class PartialFunction(Shape):
    """What was added to a call; the name comes once."""

    name: str = ""
    arguments: str = ""


class PartialCall(Shape):
    """What was added to one of the calls."""

    index: int
    id: str = ""
    type: Literal["function"] = "function"
    function: PartialFunction


class Delta(Shape):
    """What was added to a reply."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    reasoning_content: str = ""
    tool_calls: list[PartialCall] = Field(default_factory=list)


class ChunkChoice(Shape):
    """What was added to a choice, or its end."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatCompletionChunk(Shape):
    """One event of a stream; ``data: [DONE]`` follows the last. No choices beside usage."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | None = None


class CompletionLogprobs(Shape):
    """Four lists of equal length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Shape):
    """One of the replies, or what was added to it; the reason comes with its end."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(Shape):
    """A whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None


OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Go on with a conversation",
        ChatCompletion,
        bodies=(ChatRequest,),
        events=(ChatCompletionChunk,),
        errors=CALLING,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Go on with a text",
        Completion,
        bodies=(CompletionRequest,),
        events=(Completion,),
        errors=GENERATING,
    ),
)
