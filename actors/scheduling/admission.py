"""From a rendered prompt to a row that may wait for a lane, or the reason why it never could: pure policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ...runtime.engine.port import RowRequest
from ..requests import Refused
from .ledger import Asked
from .verdicts import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...runtime.engine.port import ModelInfo, Sampling
    from ...runtime.engine.prompt import RenderedPrompt
    from ..requests import GenerationRequest, ServiceClass
    from .options import SchedulerOptions

HANDICAP_S: Final[Mapping[ServiceClass, float]] = {"priority": 0.0, "default": 30.0, "flex": 300.0}
"""A request waits as if it had come so much later. So a class goes before a lower one, and a lower one that
has waited for the difference goes before whoever comes then: it is never starved."""
CAPACITY_TOKENS: Final = 256
"""Live states grow by so many tokens at a time (DESIGN §4)."""


@dataclass(frozen=True, slots=True)
class Admittance:
    """What requests are held against. ``seed`` makes the seed of a row whose client gave none."""

    model: ModelInfo
    options: SchedulerOptions
    seed: Callable[[], int]
    publish: bool

    def prepare(
        self, request: GenerationRequest, prompt: RenderedPrompt, arrived_s: float
    ) -> Asked | Refused:
        """Return the request as it may wait, or why it cannot be served at all."""
        count, context = len(prompt.tokens), self.model.context_length
        if not count:
            return Refused("empty_prompt", "the prompt has no tokens", request.prompt_field)
        if count >= context:
            return _beyond_context(count, context, request.prompt_field)
        wanted = request.max_tokens
        max_tokens = min(wanted or self.options.max_tokens, context - count)
        if not self._fits(count + max_tokens):
            room = self._room() - count
            if wanted is not None or room < 1:
                return self._beyond_memory(count, max_tokens)
            max_tokens = room  # the client left the length to the server
        row = self._row(request, prompt, max_tokens)
        known = fingerprint(prompt.tokens, row)
        row = replace(row, sampling=self._seeded(row.sampling))
        due_s = arrived_s + HANDICAP_S[request.service_class]
        kv_bytes = self._bytes(count + max_tokens)
        return Asked(
            request, row, prompt.tokens, kv_bytes, arrived_s, due_s, known, in_reasoning=prompt.in_reasoning
        )

    def _row(self, request: GenerationRequest, prompt: RenderedPrompt, max_tokens: int) -> RowRequest:
        sampling = request.sampling
        if not request.temperature_given:
            sampling = replace(sampling, temperature=self.model.default_temperature)
        return RowRequest(
            request.id,
            prompt.tokens,
            max_tokens,
            sampling,
            request.stop,
            request.top_logprobs,
            boundary=prompt.boundary,
            publish=self.publish,
            namespace=request.namespace,
            stop_tokens=request.stop_tokens,
            guide=prompt.guide,
        )

    def _seeded(self, sampling: Sampling) -> Sampling:
        """Give a row that draws a seed: on another lane it draws on as it would have."""
        if sampling.seed is not None or sampling.temperature <= 0:
            return sampling
        return replace(sampling, seed=self.seed())

    def _bytes(self, tokens: int) -> int:
        return self.model.kv.peak_for(-(-tokens // CAPACITY_TOKENS) * CAPACITY_TOKENS)

    def _fits(self, tokens: int) -> bool:
        budget = self.options.kv_budget_bytes
        return not budget or self._bytes(tokens) <= budget

    def _room(self) -> int:
        """Return how many tokens one request may come to, prompt included, by memory alone."""
        low, high = 0, self.model.context_length // CAPACITY_TOKENS + 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fits(middle * CAPACITY_TOKENS) else (low, middle - 1)
        return low * CAPACITY_TOKENS

    def _beyond_memory(self, count: int, max_tokens: int) -> Refused:
        budget, room, needed = self.options.kv_budget_bytes, self._room(), self._bytes(count + max_tokens)
        return Refused(
            "memory_exceeded",
            f"{count} prompt tokens and max_tokens {max_tokens} may take {needed} bytes of state; there are"
            f" {budget}, enough for {room} tokens in all",
            "messages" if room <= count else "max_tokens",
        )


def _beyond_context(tokens: int, context_length: int, field: str) -> Refused:
    return Refused(
        "context_length_exceeded",
        f"the prompt has {tokens} tokens; the model's context holds {context_length}, reply included",
        field,
    )
