"""How a message ended and what it took, in Anthropic's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....actors.requests import Admitted
    from ..replies.pieces import ChoiceEnd
    from ..replies.usage import Usage

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def ending(end: ChoiceEnd) -> dict[str, object]:
    """Return ``stop_reason`` and ``stop_sequence``.

    A reply that called a tool says so, even if a stop string ended it behind the call: the tool must run.
    """
    stopped_by = end.finished.stopped_by
    if end.reason == "stop" and stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
    return {"stop_reason": _REASONS[end.reason], "stop_sequence": None}


def usage_at_start(admitted: Admitted) -> dict[str, object]:
    """Return what is known of a message's usage before its first token."""
    return _input(admitted.prompt_tokens, admitted.reuse.cached_tokens) | {"output_tokens": 0}


def usage_of(usage: Usage) -> dict[str, object]:
    """Return the usage of a whole message, with Samovar's own part."""
    return _input(usage.prompt_tokens, usage.cached_tokens) | {
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "samovar": usage.samovar,
    }


def _input(prompt_tokens: int, cached_tokens: int) -> dict[str, object]:
    """Return the prompt's part. ``input_tokens`` leaves out what came from the cache.

    Writing to the cache is nothing that a client could be told of: every prompt is kept.
    """
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
    }
