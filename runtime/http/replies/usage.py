"""How many tokens a call took and where its time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....actors.requests import Admitted
    from .pieces import ChoiceEnd


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all choices of a call. A prompt that choices share counts once, and so does its cached part.

    ``samovar`` is INTERFACE §4's object, of the first choice.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    samovar: dict[str, object]

    def openai(self) -> dict[str, object]:
        """Return OpenAI's usage object of (chat) completions, with Samovar's own part."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "samovar": self.samovar,
        }


def usage_of(admitted: Sequence[Admitted], ends: Sequence[ChoiceEnd], prompts: Sequence[int]) -> Usage:
    """Return the usage of choices that have ended. ``prompts``: the first choice of each distinct prompt."""
    return Usage(
        prompt_tokens=sum(ends[index].finished.prompt_tokens for index in prompts),
        completion_tokens=sum(end.finished.completion_tokens for end in ends),
        cached_tokens=sum(admitted[index].reuse.cached_tokens for index in prompts),
        reasoning_tokens=sum(end.reasoning_tokens for end in ends),
        samovar=_samovar(admitted[0], ends[0]),
    )


def elapsed_ms(start_s: float | None, end_s: float | None) -> float | None:
    """Return the milliseconds between two stations; None when either was not reached."""
    return None if start_s is None or end_s is None else round((end_s - start_s) * 1e3, 3)


def _samovar(admitted: Admitted, end: ChoiceEnd) -> dict[str, object]:
    reuse, times = admitted.reuse, admitted.stream.times
    return {
        "tier": reuse.tier,
        "cached_tokens": reuse.cached_tokens,
        "restore_ms": round(reuse.restore_ms, 3),
        "queue_ms": elapsed_ms(times.submitted_s, times.started_s),
        "prefill_ms": round(end.finished.prefill_ms, 3),
        "ttft_ms": elapsed_ms(times.submitted_s, times.first_token_s),
        "miss_reason": reuse.miss_reason,
    }
