"""From the body of a Responses request to a call, and what of it the answer will need."""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple, cast

import orjson

from ....actors.requests import GenerationRequest
from ...engine.prompt import Conversation
from ..call import Call
from ..errors import HttpError, bad_value, missing
from ..schema.base import parse
from ..schema.calls import check_model, service_class_of, session_of
from ..schema.responses import ResponsesBody
from ..schema.responses_tools import flat_tool_use, text_constraint
from ..schema.sampling import max_tokens_of, sampling_of, stop_tokens_of, stops_of
from .history import messages_of
from .inputs import given_items

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...engine.port import ModelInfo
    from .history import Message
    from .inputs import Json
    from .store import ResponseStore


class Parsed(NamedTuple):
    """A body as it was sent, without nulls, and what it says."""

    raw: Mapping[str, object]
    body: ResponsesBody


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """A call, with what its answer repeats of the request and what the next turn goes on from.

    ``raw`` is the body as it was sent, without nulls. ``conversation`` holds the chat's messages up to the
    reply, instructions left out: they are one call's own. ``inputs`` are this call's items, each with an id.
    """

    call: Call
    body: ResponsesBody
    raw: Mapping[str, object]
    conversation: Sequence[Message]
    inputs: Sequence[Json]


def parsed(raw: Mapping[str, object]) -> Parsed:
    """Return a body whose fields are valid, each by itself. Any thread. Raises HttpError 400."""
    return Parsed(
        {name: value for name, value in raw.items() if value is not None}, parse(ResponsesBody, raw)
    )


def responses_call(
    asked: Parsed,
    headers: Mapping[str, str],
    info: ModelInfo,
    aliases: Sequence[str],
    store: ResponseStore,
) -> ResponsesCall:
    """Return the call that a body asks for. Raises HttpError (400, 404) over a field. Loop thread only."""
    raw, body = asked
    check_model(body.model, info, aliases)
    if body.stream_options is not None and not body.stream:
        raise bad_value("stream_options", "stream_options is only allowed when stream is true.")
    given = given_items(raw.get("input"), body.input, store)
    if not given and body.previous_response_id is None:
        raise missing("input")
    conversation = _before(body.previous_response_id, store)
    conversation += messages_of(item.meaning for item in given)
    call = _call(body, headers, info, conversation)
    return ResponsesCall(call, body, raw, conversation, [item.shown for item in given])


def _call(
    body: ResponsesBody, headers: Mapping[str, str], info: ModelInfo, conversation: Sequence[Message]
) -> Call:
    use = flat_tool_use(body.tools or (), body.tool_choice, parallel=body.parallel_tool_calls)
    request = GenerationRequest(
        id=f"resp_{token_hex(16)}",
        prompt=Conversation(_with_instructions(body, conversation), use.tools, body.template_kwargs),
        sampling=sampling_of(body, info),
        temperature_given=body.temperature is not None,
        max_tokens=max_tokens_of(body.max_output_tokens, info),
        stop=stops_of(body),
        stop_tokens=stop_tokens_of(body, info),
        top_logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
        constraint=use.beside(text_constraint(body.text.format if body.text is not None else None)),
        cache_salt=body.cache_salt,
        session_id=session_of(headers, body.session_id, body.prompt_cache_key),
        service_class=service_class_of(body.service_tier),
    )
    return Call(
        id=request.id,
        requests=(request,),
        model=info.id,
        stream=body.stream or False,
        include_usage=True,
        logprobs=body.wants_logprobs,
        may_call=use.may_call,
        one_call=body.parallel_tool_calls is False,
    )


def _with_instructions(body: ResponsesBody, conversation: Sequence[Message]) -> tuple[Message, ...]:
    if not body.instructions:
        return tuple(conversation)
    return {"role": "system", "content": body.instructions}, *conversation


def _before(response_id: str | None, store: ResponseStore) -> list[Message]:
    """Return the messages of the turns before. Raises HttpError when they are not, or no longer, stored."""
    if response_id is None:
        return []
    found = store.get(response_id)
    if found is None:
        message = f"Previous response with id {response_id!r} is not, or no longer, stored here."
        raise HttpError(400, "previous_response_not_found", message, param="previous_response_id")
    return cast("list[Message]", orjson.loads(found.conversation))
