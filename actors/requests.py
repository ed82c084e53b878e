"""What clients ask of the scheduler and what they are told: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ..runtime.engine.port import GREEDY, Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .stream import RequestStream


ServiceClass: TypeAlias = Literal["priority", "default", "flex"]
"""Which requests go first; see ``admission.HANDICAP_S``."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One chat generation, validated in form but not yet tokenised.

    ``messages`` are template-ready: every content a string. ``max_tokens`` None means the lane's
    default. ``temperature_given`` is False when the client left it to the model's default.
    """

    id: str
    messages: tuple[Mapping[str, object], ...]
    sampling: Sampling = GREEDY
    temperature_given: bool = True
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    top_logprobs: int | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict[str, object])
    session_id: str | None = None
    service_class: ServiceClass = "default"


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """How much of a prompt was there already, from where, and why not more (None: nothing was missing).

    ``diverged_at``: how many tokens of the prompt anything stored shares, usable or not; None when not known.
    """

    tier: Literal["none", "ram", "ssd"]
    cached_tokens: int
    restore_ms: float
    miss_reason: str | None
    diverged_at: int | None = None


NO_REUSE: Final = PrefixReuse("none", 0, 0.0, "cache_off")


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request runs; its events come through ``stream``, whatever becomes of its lane."""

    stream: RequestStream
    prompt_tokens: int
    reuse: PrefixReuse = NO_REUSE


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not taken; nothing of it remains.

    ``code``: ``queue_full`` | ``draining`` | ``context_length_exceeded`` | ``memory_exceeded`` |
    ``template_error`` | ``empty_prompt`` | ``lane_crashed`` (the same request crashed lanes a moment ago).
    ``param`` names the field at fault where there is one. ``retry_after_s`` is set when trying again may
    help.
    """

    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


Admission: TypeAlias = Admitted | Refused
