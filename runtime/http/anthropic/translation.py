"""From the bodies of Anthropic's routes to what the server generates and counts."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from ....actors.requests import GenerationRequest
from ...engine.prompt import Constraint, Conversation
from ..call import Call
from ..errors import unsupported
from ..schema.calls import check_model, session_of
from ..schema.sampling import SamplingFields, max_tokens_of, sampling_of
from ..schema.templates import template_kwargs_of
from .texts import json_text
from .tools import tool_use_of
from .turns import chat_messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...engine.port import ModelInfo
    from ..schema.anthropic import CountBody, MessagesBody, PromptBody
    from ..schema.tools import ToolUse


def message_call(
    body: MessagesBody, headers: Mapping[str, str], info: ModelInfo, aliases: Sequence[str]
) -> Call:
    """Return the call that ``body`` asks for. Raises HttpError (400, 404) naming the field."""
    check_model(body.model, info, aliases)
    if body.messages[-1].role == "assistant":
        raise unsupported("messages", "replies cannot be prefilled; the last turn must be the user's.")
    tools = tool_use_of(body)
    request = GenerationRequest(
        id=f"msg_{token_hex(12)}",
        prompt=_conversation(body, tools),
        sampling=sampling_of(_sampling(body), info),
        temperature_given=body.temperature is not None,
        max_tokens=max_tokens_of(body.max_tokens, info),
        stop=tuple(body.stop_sequences or ()),
        constraint=_constraint(body, tools),
        session_id=session_of(headers, body.session_id, body.prompt_cache_key),
    )
    return Call(
        id=request.id,
        requests=(request,),
        model=info.id,
        stream=body.stream or False,
        include_usage=True,
        may_call=tools.may_call,
        one_call=body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use is True,
    )


def counted_request(body: CountBody, info: ModelInfo, aliases: Sequence[str]) -> GenerationRequest:
    """Return a request whose prompt is the one that ``body`` is to be counted as. Raises HttpError.

    A conversation that ends with the assistant's turn is counted with what begins the next reply.
    """
    check_model(body.model, info, aliases)
    return GenerationRequest(id=f"count_{token_hex(12)}", prompt=_conversation(body, tool_use_of(body)))


def _conversation(body: PromptBody, tools: ToolUse) -> Conversation:
    return Conversation(chat_messages(body.system, body.messages), tools.tools, _template_kwargs(body))


def _template_kwargs(body: PromptBody) -> dict[str, object]:
    """Return what the chat template is told. Without ``thinking`` the template's own default holds."""
    given = template_kwargs_of(body, body.output_config.effort if body.output_config else None)
    return given if body.thinking is None else {"enable_thinking": body.thinking.type != "disabled", **given}


def _sampling(body: MessagesBody) -> SamplingFields:
    return SamplingFields(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k)


def _constraint(body: MessagesBody, tools: ToolUse) -> Constraint | None:
    """Return what the reply must match: calls, or a schema where it is not free to call."""
    form = body.output_config.format if body.output_config else None
    param = "output_config.format" if form else "output_format"
    if form is None and (form := body.output_format) is None:
        return tools.constraint
    if tools.may_call:
        raise unsupported(param, "not beside tools that the model may call; set tool_choice to none.")
    return Constraint("json_schema", json_text(form.schema_, param), param=param)
