"""What clients ask of the scheduler and what they are told: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from blake3 import blake3

from ..runtime.engine.port import GREEDY, Sampling
from ..runtime.engine.prompt import Conversation

if TYPE_CHECKING:
    from ..runtime.engine.prompt import Constraint, Prompt
    from .stream import RequestStream


ServiceClass: TypeAlias = Literal["priority", "default", "flex"]
"""Which requests go first; see ``admission.HANDICAP_S``."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation, validated in form but not yet tokenised.

    ``max_tokens`` None means the lane's default. ``temperature_given`` is False when the client left it to
    the model's default. State is shared only between requests of the same ``cache_salt``.
    """

    id: str
    prompt: Prompt
    sampling: Sampling = GREEDY
    temperature_given: bool = True
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    top_logprobs: int | None = None
    constraint: Constraint | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    service_class: ServiceClass = "default"

    @property
    def prompt_field(self) -> str:
        """The field of the request that holds its prompt, for errors."""
        return "messages" if isinstance(self.prompt, Conversation) else "prompt"

    @property
    def namespace(self) -> str:
        """What its state depends on beside the tokens. Holds a hash of the salt, which may be a secret."""
        return "" if self.cache_salt is None else f"salt-{blake3(self.cache_salt.encode()).hexdigest(16)}"


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
    """The request runs; its events come through ``stream``, whatever becomes of its lane.

    ``in_reasoning``: the reply begins inside the model's reasoning.
    """

    stream: RequestStream
    prompt_tokens: int
    reuse: PrefixReuse = NO_REUSE
    in_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not taken; nothing of it remains.

    ``code``: ``queue_full`` | ``draining`` | ``context_length_exceeded`` | ``memory_exceeded`` |
    ``template_error`` | ``invalid_constraint`` | ``empty_prompt`` | ``lane_crashed`` (the same request
    crashed lanes a moment ago). ``param`` names the field at fault where there is one. ``retry_after_s`` is
    set when trying again may help.
    """

    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


Admission: TypeAlias = Admitted | Refused
