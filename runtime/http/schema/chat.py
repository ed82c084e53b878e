"""A chat completion request: from a JSON object and headers to a GenerationRequest, or a 400 that says why.

Choices that OpenAI leaves open: ``max_completion_tokens`` wins over ``max_tokens``; a limit past the context
is cut to it, since no reply could be longer; ``top_p`` 0 keeps only the likeliest token; ``top_k`` -1 is
off.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from ....actors.requests import GenerationRequest
from ...engine.port import ModelInfo, Sampling
from ...engine.prompt import Conversation
from ..call import Call
from ..errors import bad_value, unknown_model, unsupported
from .accepted import check_names
from .fields import Fields, describe
from .messages import parse_messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....actors.requests import ServiceClass

MAX_STOPS = 16
MAX_STOP_CHARS = 512
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_SESSION_CHARS = 256
_MAX_COUNT = 2**31 - 1
_MAX_KWARGS = 64
_MAX_REPETITION_PENALTY = 10.0
# OpenAI's service_tier -> which requests go first. Nothing is sold here, so what is bought there is ordinary.
_CLASSES: Mapping[str, ServiceClass] = {
    "auto": "default",
    "default": "default",
    "scale": "default",
    "flex": "flex",
    "priority": "priority",
}
# What the server itself passes to a chat template; a client may not replace it.
_RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tools",
        "truncation",
    }
)


def parse_chat(
    body: Mapping[str, object], headers: Mapping[str, str], info: ModelInfo, aliases: Sequence[str]
) -> Call:
    """Return the call that ``body`` asks for. Raises HttpError (400, 404) naming the field."""
    fields = Fields(body)
    check_names(fields)
    _check_model(fields, info, aliases)
    stream = fields.boolean("stream") or False
    top_logprobs = _top_logprobs(fields)
    request = GenerationRequest(
        id=f"chatcmpl-{token_hex(12)}",
        prompt=Conversation(parse_messages(fields), (), _template_kwargs(fields)),
        sampling=_sampling(fields, info),
        temperature_given=fields.value("temperature") is not None,
        max_tokens=_max_tokens(fields, info),
        stop=_stops(fields),
        stop_tokens=_stop_tokens(fields, info.vocab_size),
        top_logprobs=top_logprobs,
        session_id=_session(fields, headers),
        service_class=_service_class(fields),
    )
    return Call(
        id=request.id,
        requests=(request,),
        model=info.id,
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
        logprobs=top_logprobs is not None,
    )


def served_names(info: ModelInfo, aliases: Sequence[str]) -> list[str]:
    """Return every name under which the model answers, its id first."""
    return list(dict.fromkeys([info.id, *aliases, "default"]))


def _check_model(fields: Fields, info: ModelInfo, aliases: Sequence[str]) -> None:
    name = fields.text("model")
    if name is not None and name not in (served := served_names(info, aliases)):
        raise unknown_model(name, served)


def _include_usage(fields: Fields, *, stream: bool) -> bool:
    options = fields.mapping("stream_options")
    if options is None:
        return False
    if not stream:
        raise bad_value("stream_options", "stream_options is only allowed when stream is true.")
    inner = Fields(options, "stream_options.")
    for name in inner.present():
        if name not in {"include_usage", "include_obfuscation"}:
            raise unsupported(inner.path(name), "there is no such option.")
    inner.boolean("include_obfuscation")  # pads chunks against observers of TLS sizes; inert here
    return inner.boolean("include_usage") or False


def _max_tokens(fields: Fields, info: ModelInfo) -> int | None:
    limit = fields.integer("max_tokens", 1, _MAX_COUNT)
    newer = fields.integer("max_completion_tokens", 1, _MAX_COUNT)
    chosen = limit if newer is None else newer
    return None if chosen is None else min(chosen, info.context_length)


def _sampling(fields: Fields, info: ModelInfo) -> Sampling:
    temperature = fields.number("temperature", 0.0, 2.0)
    top_p = fields.number("top_p", 0.0, 1.0)
    top_k = max(fields.integer("top_k", -1, _MAX_COUNT) or 0, 0)
    if top_p == 0.0:
        top_p, top_k = 1.0, 1
    return Sampling(
        temperature=info.default_temperature if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k,
        min_p=fields.number("min_p", 0.0, 1.0) or 0.0,
        seed=fields.integer("seed", -(2**63), 2**63 - 1),
        repetition_penalty=_repetition_penalty(fields),
        presence_penalty=fields.number("presence_penalty", -2.0, 2.0) or 0.0,
        frequency_penalty=fields.number("frequency_penalty", -2.0, 2.0) or 0.0,
        logit_bias=_logit_bias(fields, info.vocab_size),
    )


def _repetition_penalty(fields: Fields) -> float:
    penalty = fields.number("repetition_penalty", 0.0, _MAX_REPETITION_PENALTY)
    if penalty == 0.0:
        raise bad_value("repetition_penalty", "repetition_penalty must be greater than 0.")
    return 1.0 if penalty is None else penalty


def _logit_bias(fields: Fields, vocab_size: int) -> dict[int, float]:
    given = fields.mapping("logit_bias") or {}
    if len(given) > MAX_BIASES:
        message = f"logit_bias has {len(given)} entries; at most {MAX_BIASES} are allowed."
        raise bad_value("logit_bias", message)
    entries = Fields(given, "logit_bias.")
    biases: dict[int, float] = {}
    for name in given:
        token = int(name) if name.isascii() and name.isdigit() and len(name) < len("1000000000") else -1
        if not 0 <= token < vocab_size:
            message = f"logit_bias: {describe(name)} is no token id of this model (0 to {vocab_size - 1})."
            raise bad_value("logit_bias", message)
        biases[token] = entries.number(name, -100.0, 100.0) or 0.0
    return biases


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.value("stop")
    if isinstance(value, str):
        return (_stop(Fields({"stop": value}), "stop"),)
    stops = fields.items("stop", MAX_STOPS) or []
    named = Fields({f"stop[{index}]": stop for index, stop in enumerate(stops)})
    return tuple(_stop(named, f"stop[{index}]") for index in range(len(stops)))


def _stop(fields: Fields, name: str) -> str:
    stop = fields.string(name, MAX_STOP_CHARS)
    if stop is None:
        raise bad_value(name, f"{name} must be a string, not null.")
    return stop


def _stop_tokens(fields: Fields, vocab_size: int) -> frozenset[int]:
    """Return ids that end the reply, as the model's own end tokens do: vLLM's name for them."""
    given = fields.items("stop_token_ids", MAX_STOPS) or []
    named = Fields({f"stop_token_ids[{index}]": token for index, token in enumerate(given)})
    tokens = [named.integer(name, 0, vocab_size - 1) for name in named.present()]
    if len(tokens) < len(given):
        raise bad_value("stop_token_ids", "stop_token_ids must hold integers, not null.")
    return frozenset(token for token in tokens if token is not None)


def _top_logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs") or False
    count = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if count is not None and not wanted:
        raise bad_value("top_logprobs", "top_logprobs needs logprobs to be true.")
    return (count or 0) if wanted else None


def _template_kwargs(fields: Fields) -> dict[str, object]:
    given = fields.mapping("chat_template_kwargs") or {}
    if len(given) > _MAX_KWARGS:
        raise bad_value("chat_template_kwargs", f"chat_template_kwargs has more than {_MAX_KWARGS} entries.")
    for name in given:
        if name in _RESERVED_KWARGS:
            raise bad_value(
                f"chat_template_kwargs.{name}", f"chat_template_kwargs.{name} is set by the server."
            )
    return given


def _service_class(fields: Fields) -> ServiceClass:
    tier = fields.text("service_tier")
    if tier is None:
        return "default"
    if tier not in _CLASSES:
        raise bad_value("service_tier", f"service_tier must be one of {', '.join(sorted(_CLASSES))}.")
    return _CLASSES[tier]


def _session(fields: Fields, headers: Mapping[str, str]) -> str | None:
    for name in ("session_id", "prompt_cache_key"):
        given = fields.string(name, MAX_SESSION_CHARS)
        if given is not None:
            return given
    for name in ("x-session-id", "x-session-affinity"):
        header = headers.get(name)
        if header:
            if not (header.isprintable() and len(header) <= MAX_SESSION_CHARS):
                raise bad_value(
                    name, f"{name} must be printable text of at most {MAX_SESSION_CHARS} characters."
                )
            return header
    return None
