"""How replies are sampled and where they end: fields that every generating API has, and what they come to.

Choices that OpenAI leaves open: a limit past the context is cut to it, since no reply could be longer;
``top_p`` 0 keeps only the likeliest token; ``top_k`` -1 is off.
"""

from typing import Annotated, TypeAlias

from ...engine.port import ModelInfo, Sampling
from ..errors import bad_value
from .base import ApiModel
from .complaints import describe
from .kinds import LIST, TEXT, Chars, Entries, Items, Number, Whole, by_kind

MAX_STOPS = 16
MAX_STOP_CHARS = 512
MAX_BIASES = 1024
MAX_COUNT = 2**31 - 1
_TOKEN_DIGITS = 9

Limit: TypeAlias = Annotated[int, Whole(1, MAX_COUNT)]
Stop: TypeAlias = Annotated[str, Chars(1, MAX_STOP_CHARS)]
Stops: TypeAlias = Annotated[list[Stop], Items(0, MAX_STOPS)]
TextOrStops: TypeAlias = Annotated[
    Annotated[Stop, TEXT] | Annotated[Stops, LIST], by_kind("a string or a list of strings")
]


class SamplingFields(ApiModel):
    """How the next token is picked; see ``port.Sampling``."""

    temperature: Annotated[float, Number(0.0, 2.0)] | None = None
    top_p: Annotated[float, Number(0.0, 1.0)] | None = None
    top_k: Annotated[int, Whole(-1, MAX_COUNT)] | None = None
    min_p: Annotated[float, Number(0.0, 1.0)] | None = None
    seed: Annotated[int, Whole(-(2**63), 2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Number(-2.0, 2.0)] | None = None
    frequency_penalty: Annotated[float, Number(-2.0, 2.0)] | None = None
    repetition_penalty: Annotated[float, Number(0.0, 10.0, open=True)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Number(-100.0, 100.0)]], Entries(MAX_BIASES)] | None = (
        None
    )


class StopFields(ApiModel):
    """What ends a reply. ``stop_token_ids`` end it as the model's own end tokens do: vLLM's name for them."""

    stop: TextOrStops | None = None
    stop_token_ids: (
        Annotated[
            list[Annotated[int, Whole(0, MAX_COUNT)]],
            Items(0, MAX_STOPS),
        ]
        | None
    ) = None


def sampling_of(fields: SamplingFields, info: ModelInfo) -> Sampling:
    """Return the sampling that ``fields`` ask of a model. Raises HttpError over ids that are no tokens."""
    temperature, top_p = fields.temperature, fields.top_p
    top_k = max(fields.top_k or 0, 0)
    if top_p == 0.0:
        top_p, top_k = 1.0, 1
    return Sampling(
        temperature=info.default_temperature if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k,
        min_p=fields.min_p or 0.0,
        seed=fields.seed,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=_logit_bias(fields.logit_bias or {}, info.vocab_size),
    )


def max_tokens_of(limit: int | None, info: ModelInfo) -> int | None:
    """Return a client's limit, cut to the context; None where the lane's default applies."""
    return None if limit is None else min(limit, info.context_length)


def stops_of(fields: StopFields) -> tuple[str, ...]:
    """Return the strings that end the reply."""
    return (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())


def stop_tokens_of(fields: StopFields, info: ModelInfo) -> frozenset[int]:
    """Return the ids that end the reply. Raises HttpError over ids that are no tokens of the model."""
    tokens = fields.stop_token_ids or []
    for index, token in enumerate(tokens):
        if token >= info.vocab_size:
            raise not_a_token(f"stop_token_ids[{index}]", token, info.vocab_size)
    return frozenset(tokens)


def not_a_token(path: str, found: object, vocab_size: int) -> Exception:
    """Return the 400 for an id that the model does not have."""
    return bad_value(path, f"{path}: {describe(found)} is no token id of this model (0 to {vocab_size - 1}).")


def _logit_bias(given: dict[str, float], vocab_size: int) -> dict[int, float]:
    biases: dict[int, float] = {}
    for name, bias in given.items():
        token = int(name) if name.isascii() and name.isdigit() and len(name) <= _TOKEN_DIGITS else -1
        if not 0 <= token < vocab_size:
            raise not_a_token("logit_bias", name, vocab_size)
        biases[token] = bias
    return biases
