"""A chat completion request: from a JSON object and headers to a call, or a 400 that says why.

Choices that OpenAI leaves open: ``max_completion_tokens`` wins over ``max_tokens``. A
``response_format`` beside tools that the model may or may not call is refused: a reply cannot be free to call
and bound to a form at once. ``templates`` says what comes of ``reasoning_effort``.
"""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Annotated

from ....actors.requests import GenerationRequest
from ...engine.port import ModelInfo
from ...engine.prompt import Conversation
from ..call import Call, choices_of
from ..errors import bad_value
from .accepted import ChatRefusedFields, InertFields
from .base import parse
from .calls import (
    CallFields,
    check_model,
    service_class_of,
    session_of,
    usage_wanted,
)
from .formats import FormatFields, constraint_of
from .kinds import Whole
from .messages import Messages, template_ready
from .sampling import Limit, SamplingFields, StopFields, max_tokens_of, sampling_of, stop_tokens_of, stops_of
from .templates import Effort, TemplateFields, template_kwargs_of
from .tools import ToolChoice, ToolList, tool_use

MAX_TOP_LOGPROBS = 20


class ChatRequest(
    CallFields,
    SamplingFields,
    StopFields,
    FormatFields,
    TemplateFields,
    InertFields,
    ChatRefusedFields,
):
    """``POST /v1/chat/completions``."""

    messages: Messages
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Whole(0, MAX_TOP_LOGPROBS)] | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None


def parse_chat(
    body: Mapping[str, object], headers: Mapping[str, str], info: ModelInfo, aliases: Sequence[str]
) -> Call:
    """Return the call that ``body`` asks for. Raises HttpError (400, 404) naming the field."""
    fields = parse(ChatRequest, body)
    check_model(fields.model, info, aliases)
    tools = tool_use(fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls)
    request = GenerationRequest(
        id=f"chatcmpl-{token_hex(12)}",
        prompt=Conversation(
            template_ready(fields.messages),
            tools.tools,
            template_kwargs_of(fields, fields.reasoning_effort),
        ),
        sampling=sampling_of(fields, info),
        temperature_given=fields.temperature is not None,
        max_tokens=max_tokens_of(fields.max_completion_tokens or fields.max_tokens, info),
        stop=stops_of(fields),
        stop_tokens=stop_tokens_of(fields, info),
        top_logprobs=_top_logprobs(fields),
        constraint=tools.beside(constraint_of(fields)),
        cache_salt=fields.cache_salt,
        session_id=session_of(headers, fields.session_id, fields.prompt_cache_key),
        service_class=service_class_of(fields.service_tier),
    )
    return Call(
        id=request.id,
        requests=choices_of(request, fields.n or 1),
        model=info.id,
        stream=fields.stream or False,
        include_usage=usage_wanted(fields),
        logprobs=fields.logprobs or False,
        may_call=tools.may_call,
        one_call=fields.parallel_tool_calls is False,
    )


def _top_logprobs(fields: ChatRequest) -> int | None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise bad_value("top_logprobs", "top_logprobs needs logprobs to be true.")
    return (fields.top_logprobs or 0) if fields.logprobs else None
