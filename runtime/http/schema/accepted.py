"""Which fields of a chat request are taken, taken without effect, or refused.

Nothing that could change a reply is ever ignored. A field is one of:

- SUPPORTED: does what it says.
- INERT: OpenAI's labels and hints. They cannot change which tokens are right, ordinary clients send them,
  and refusing them would break those clients.
- UNSUPPORTED: asks for a feature that does not exist here; 400 ``unsupported_parameter``, unless the value
  asks for what happens anyway (n 1, tools [], response_format text).
- anything else: 400 ``unknown_parameter``, as OpenAI answers, with the nearest known name: a misspelt
  ``max_token`` must not silently become the default.

A null is the same as an absent field everywhere.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from ..errors import HttpError, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from .fields import Fields

SUPPORTED = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "chat_template_kwargs",
        "service_tier",
        "session_id",
        "prompt_cache_key",
    }
)

INERT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "safety_identifier",
        "prompt_cache_retention",
        "parallel_tool_calls",  # without tools there is nothing to run in parallel
        "reasoning_effort",  # a hint; becomes real with reasoning models
        "verbosity",
        "prediction",  # promises speed only
    }
)

_NO_TOOLS = "tools are not offered to the model yet; leave them out or set tool_choice to none."
_OFF = False
_NO_GRAMMAR = "replies cannot be constrained yet; only text is possible."


def _tools_off(fields: Fields, value: object) -> bool:
    return value == [] or fields.value("tool_choice") == "none"


def _type_is_text(_: Fields, value: object) -> bool:
    return value == {"type": "text"}


def _equals(*harmless: object) -> Callable[[Fields, object], bool]:
    return lambda _, value: any(value == allowed and type(value) is type(allowed) for allowed in harmless)


# field -> (why it is refused, which values are harmless because they ask for what happens anyway)
UNSUPPORTED: dict[str, tuple[str, Callable[[Fields, object], bool]]] = {
    "n": ("one choice per request.", _equals(1)),
    "tools": (_NO_TOOLS, _tools_off),
    "tool_choice": (_NO_TOOLS, _equals("none", "auto")),
    "functions": (_NO_TOOLS, _equals([])),
    "function_call": (_NO_TOOLS, _equals("none", "auto")),
    "response_format": (_NO_GRAMMAR, _type_is_text),
    "modalities": ("only text is produced.", _equals(["text"])),
    "audio": ("only text is produced.", _equals()),
    "web_search_options": ("there is no web search.", _equals()),
    "best_of": ("one choice per request.", _equals(1)),
    "echo": ("use the prompt that you have.", _equals(_OFF)),
    "cache_salt": ("cached prompts are not kept apart by salt.", _equals()),
    "min_tokens": ("replies have no lower limit.", _equals(0)),
    "ignore_eos": ("replies always end at the model's end token.", _equals(_OFF)),
    "guided_json": (_NO_GRAMMAR, _equals()),
    "guided_regex": (_NO_GRAMMAR, _equals()),
    "guided_choice": (_NO_GRAMMAR, _equals()),
    "guided_grammar": (_NO_GRAMMAR, _equals()),
    "structured_outputs": (_NO_GRAMMAR, _equals()),
    "grammar": (_NO_GRAMMAR, _equals("")),
    "json_schema": (_NO_GRAMMAR, _equals()),
}

_KNOWN = sorted(SUPPORTED | INERT | UNSUPPORTED.keys())
_SHOWN_CHARS = 64


def check_names(fields: Fields) -> None:
    """Raise HttpError 400 for the first field that is neither supported nor harmless."""
    for name in fields.present():
        if name in SUPPORTED or name in INERT:
            continue
        if name not in UNSUPPORTED:
            raise _unknown(name)
        why, harmless = UNSUPPORTED[name]
        if not harmless(fields, fields.value(name)):
            raise unsupported(name, why)


def _unknown(name: str) -> HttpError:
    shown = name[:_SHOWN_CHARS]
    near = get_close_matches(shown, _KNOWN, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return HttpError(400, "unknown_parameter", f"Unknown parameter: {shown!r}.{hint}", param=shown)
