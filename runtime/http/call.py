"""A validated API call, whatever API it came through: what to generate and how to answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ..engine.prompt import Conversation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...actors.requests import GenerationRequest

_SEED_STEP = 0x9E3779B97F4A7C15
_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Call:
    """One generation for each choice of the answer, in their order.

    ``id`` is what the client sees; the requests' own ids derive from it. ``may_call``: tool calls in replies
    are read as such, and with ``one_call`` a reply ends with its first. ``logprobs``: the client asked for
    them.
    """

    id: str
    requests: tuple[GenerationRequest, ...]
    model: str
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    may_call: bool = False
    one_call: bool = False

    @property
    def request(self) -> GenerationRequest:
        """The first choice's request; what the choices have in common is the same in all."""
        return self.requests[0]

    @property
    def prompt_starts(self) -> tuple[int, ...]:
        """The first choice of each prompt: choices of one prompt are neighbours and share the object."""
        shared = ((before.prompt, each.prompt) for before, each in pairwise(self.requests))
        return (0, *(index for index, (before, each) in enumerate(shared, 1) if before is not each))

    @property
    def tools(self) -> tuple[Mapping[str, object], ...]:
        """The tools that are offered."""
        prompt = self.request.prompt
        return prompt.tools if isinstance(prompt, Conversation) else ()


def choices_of(request: GenerationRequest, count: int) -> tuple[GenerationRequest, ...]:
    """Return ``count`` requests that differ in id and seed alone; the first is ``request`` itself.

    Without a seed each draws by chance of its own; with one, the same call gives the same choices again.
    """
    return (request, *(_sibling(request, index) for index in range(1, count)))


def _sibling(request: GenerationRequest, index: int) -> GenerationRequest:
    sampling = request.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + index * _SEED_STEP) % _SEEDS)
    return replace(request, id=f"{request.id}.{index}", sampling=sampling)
