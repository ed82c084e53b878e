"""The bodies of ``POST /v1/messages`` and ``POST /v1/messages/count_tokens``, with Anthropic's beta fields.

Every field is honoured, or without effect by a stated reason, or refused by name where it asks for something
that this server does not do. ``model`` may be absent; ``session_id``, ``prompt_cache_key`` and
``chat_template_kwargs`` are Samovar's own.
"""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from .anthropic_blocks import CacheControl, Content, TextContent
from .anthropic_tools import Tool, ToolChoice
from .base import ApiModel, OpenModel, not_supported
from .calls import SessionId
from .kinds import Items, Number, Only, Whole
from .messages import MAX_MESSAGES
from .sampling import MAX_COUNT, Limit, Stops
from .templates import TemplateFields
from .tools import MAX_TOOLS

_SHOWN_CHARS = 64
_HERE: Final = "requests are answered by this server alone."
_CLEAR_THINKING: Final = "clear_thinking_20251015"


class Turn(OpenModel):
    """One turn. A ``system`` turn amid the conversation stays where it is."""

    role: Literal["user", "assistant", "system"]
    content: Content


class Thinking(OpenModel):
    """Whether to think first. ``budget_tokens`` is a hint without effect: ``max_tokens`` bounds both.

    ``display`` omitted leaves the thoughts out of the answer.
    """

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Whole(0, MAX_COUNT)] | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class OutputFormat(ApiModel):
    """What the reply must match."""

    type: Literal["json_schema"]
    schema_: dict[str, object] = Field(alias="schema")


class OutputConfig(ApiModel):
    """How to answer. ``task_budget`` is advice about a whole task, of which this server sees one request."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: dict[str, object] | None = None


def _nothing_cleared(kind: str) -> str:
    if kind != _CLEAR_THINKING:
        raise not_supported(f"{kind[:_SHOWN_CHARS]!r}: a conversation is never edited here.")
    return kind


class Edit(OpenModel):
    """An edit of the context. Which old thoughts a model sees is for its chat template to say."""

    type: Annotated[str, AfterValidator(_nothing_cleared)]


class ContextManagement(ApiModel):
    """Edits of the conversation before the model sees it."""

    edits: list[Edit] | None = None


class PromptBody(TemplateFields):
    """What a prompt is made of."""

    messages: Annotated[list[Turn], Items(1, MAX_MESSAGES)]
    model: str | None = None
    system: TextContent | None = None
    tools: Annotated[list[Tool], Items(0, MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement | None = None
    mcp_servers: Annotated[object, Only("there is no MCP client; offer tools instead.", [])] = None
    # Without effect: every prefix is cached, nothing is billed, and there is one speed, the best one.
    cache_control: CacheControl | None = None
    billing_policy: dict[str, object] | None = None
    speed: Literal["standard", "fast"] | None = None
    betas: list[str] | None = None
    anthropic_beta: list[str] | None = None
    anthropic_version: str | None = None


class CountBody(PromptBody):
    """A prompt to be counted, as it is sent: ``compaction`` has no effect on it."""

    compaction: dict[str, object] | None = None


class MessagesBody(PromptBody):
    """A message to be generated."""

    max_tokens: Limit
    stop_sequences: Stops | None = None
    stream: bool | None = None
    temperature: Annotated[float, Number(0.0, 1.0)] | None = None
    top_p: Annotated[float, Number(0.0, 1.0)] | None = None
    top_k: Annotated[int, Whole(0, MAX_COUNT)] | None = None
    session_id: SessionId | None = None
    prompt_cache_key: SessionId | None = None
    compaction: Annotated[object, Only("conversations are not summarised here.")] = None
    container: Annotated[object, Only("there is no code execution.")] = None
    thread: Annotated[object, Only("conversations are not kept; send all messages.")] = None
    fallback_credit_token: Annotated[object, Only(_HERE)] = None
    # Without effect: labels for accounts, and a server that has one model, never declines and always tells.
    metadata: dict[str, object] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, object] | None = None
    fallbacks: object = None
