"""A legacy completion request: prompts as text or token ids, several at once, each with ``n`` choices.

Choices that OpenAI leaves open: a prompt is text, ids, or a list of either, and never empty; without a limit
a reply has OpenAI's 16 tokens; ``echo`` puts a prompt of text in front of its replies and is refused for ids
and beside ``logprobs``, since the prompt's own are not computed; ``best_of`` must equal ``n``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Annotated, TypeAlias, cast

from pydantic import Discriminator, Field, Tag

from ....actors.requests import GenerationRequest
from ...engine.port import ModelInfo
from ...engine.prompt import GivenIds, PlainText, Prompt
from ..call import Call, choices_of
from ..errors import bad_value, unsupported
from .accepted import CompletionRefusedFields, InertFields
from .base import parse
from .calls import CallFields, check_model, service_class_of, session_of, usage_wanted
from .formats import FormatFields, constraint_of
from .kinds import TEXT, Chars, Items, Whole
from .sampling import (
    MAX_COUNT,
    Limit,
    SamplingFields,
    StopFields,
    max_tokens_of,
    not_a_token,
    sampling_of,
    stop_tokens_of,
    stops_of,
)

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128
MAX_PROMPT_CHARS = 1 << 26
MAX_PROMPT_TOKENS = 1 << 20
MAX_LOGPROBS = 5

_TEXTS, _IDS, _LISTS = Tag("<texts>"), Tag("<ids>"), Tag("<lists>")


def _prompt_tag(value: object) -> str | None:
    """Tell the forms of a prompt apart by the first item; a wrong one is reported as an id."""
    if not isinstance(value, list):
        return TEXT.tag if isinstance(value, str) else None
    first = cast("list[object]", value)[:1]
    if first and isinstance(first[0], str):
        return _TEXTS.tag
    return _LISTS.tag if first and isinstance(first[0], list) else _IDS.tag


Text: TypeAlias = Annotated[str, Chars(1, MAX_PROMPT_CHARS)]
Ids: TypeAlias = Annotated[list[Annotated[int, Field(ge=0)]], Items(1, MAX_PROMPT_TOKENS)]
PromptField: TypeAlias = Annotated[
    Annotated[Text, TEXT]
    | Annotated[list[Text], Items(1, MAX_PROMPTS), _TEXTS]
    | Annotated[Ids, _IDS]
    | Annotated[list[Ids], Items(1, MAX_PROMPTS), _LISTS],
    Discriminator(
        _prompt_tag,
        custom_error_type="kind",
        custom_error_message="a string, a list of token ids, or a list of either",
    ),
]


class CompletionRequest(
    CallFields, SamplingFields, StopFields, FormatFields, InertFields, CompletionRefusedFields
):
    """``POST /v1/completions``."""

    prompt: PromptField
    max_tokens: Limit | None = None
    logprobs: Annotated[int, Whole(0, MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Whole(1, MAX_COUNT)] | None = None


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A call, and for each of its choices the text that is put in front of the reply."""

    call: Call
    echoes: tuple[str, ...]


def parse_completion(
    body: Mapping[str, object], headers: Mapping[str, str], info: ModelInfo, aliases: Sequence[str]
) -> CompletionCall:
    """Return the call that ``body`` asks for. Raises HttpError (400, 404) naming the field."""
    fields = parse(CompletionRequest, body)
    check_model(fields.model, info, aliases)
    count = _choices_each(fields)
    prompts = [*_prompts(fields.prompt, info)]
    if count * len(prompts) > MAX_PROMPTS:
        raise bad_value("n", f"n: {count} choices of {len(prompts)} prompts are more than {MAX_PROMPTS}.")
    call_id = f"cmpl-{token_hex(12)}"
    first = _request(fields, headers, info, call_id, prompts[0])
    firsts = [first, *(_sibling(first, index, prompt) for index, prompt in enumerate(prompts[1:], 1))]
    call = Call(
        id=call_id,
        requests=tuple(choice for request in firsts for choice in choices_of(request, count)),
        model=info.id,
        stream=fields.stream or False,
        include_usage=usage_wanted(fields),
        logprobs=fields.logprobs is not None,
    )
    return CompletionCall(call, tuple(_echo(fields, choice) for choice in call.requests))


def _request(
    fields: CompletionRequest, headers: Mapping[str, str], info: ModelInfo, call_id: str, prompt: Prompt
) -> GenerationRequest:
    return GenerationRequest(
        id=call_id,
        prompt=prompt,
        sampling=sampling_of(fields, info),
        temperature_given=fields.temperature is not None,
        max_tokens=max_tokens_of(fields.max_tokens or DEFAULT_MAX_TOKENS, info),
        stop=stops_of(fields),
        stop_tokens=stop_tokens_of(fields, info),
        top_logprobs=fields.logprobs,
        constraint=constraint_of(fields),
        cache_salt=fields.cache_salt,
        session_id=session_of(headers, fields.session_id, fields.prompt_cache_key),
        service_class=service_class_of(fields.service_tier),
    )


def _sibling(first: GenerationRequest, index: int, prompt: Prompt) -> GenerationRequest:
    return replace(first, id=f"{first.id}-{index}", prompt=prompt)


def _choices_each(fields: CompletionRequest) -> int:
    count = fields.n or 1
    if fields.best_of is not None and fields.best_of != count:
        raise unsupported("best_of", "it must equal n; ask for n choices and take the best.")
    return count


def _prompts(given: PromptField, info: ModelInfo) -> Iterator[Prompt]:
    if isinstance(given, str):
        yield PlainText(given)
        return
    if isinstance(given[0], int):
        yield _given_ids(cast("list[int]", given), "prompt", info)
        return
    for index, prompt in enumerate(given):
        if isinstance(prompt, list):
            yield _given_ids(prompt, f"prompt[{index}]", info)
        else:
            yield PlainText(str(prompt))


def _given_ids(tokens: list[int], path: str, info: ModelInfo) -> GivenIds:
    if max(tokens) >= info.vocab_size:
        index = next(index for index, token in enumerate(tokens) if token >= info.vocab_size)
        raise not_a_token(f"{path}[{index}]", tokens[index], info.vocab_size)
    return GivenIds(tuple(tokens))


def _echo(fields: CompletionRequest, request: GenerationRequest) -> str:
    if not fields.echo:
        return ""
    if fields.logprobs is not None:
        raise unsupported("echo", "not beside logprobs: a prompt's own are not computed.")
    if not isinstance(request.prompt, PlainText):
        raise unsupported("echo", "a prompt of token ids is not put into words.")
    return request.prompt.text
