"""What the HTTP layer needs of the rest of Samovar: protocols and the values that pass through them.

The application implements ``Serving`` over the actor tree; tests and benchmarks implement it over a
scripted engine. Everything here is called on the event loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...actors.requests import Admission, GenerationRequest, Refused
    from ..engine.port import ModelInfo


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the whole tree is up. ``detail`` names what is missing, by component.

    ``recovering`` says that it has been up and a part of it is restarting: requests are still taken, since
    they need only wait a moment. ``degraded`` says what works worse than configured though requests are
    served, like an SSD tier that cannot write; None when all is well. ``retry_after_s`` is when it may be
    worth asking again; None where nothing is known of that.
    """

    ready: bool
    draining: bool = False
    recovering: bool = False
    degraded: str | None = None
    retry_after_s: float | None = None
    detail: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken."""
        return (self.ready or self.recovering) and not self.draining


class Serving(Protocol):
    """The served model and the actor tree behind it."""

    def model(self) -> ModelInfo:
        """Return the served model; only called while ``readiness().ready`` or after it once was."""
        ...

    def aliases(self) -> Sequence[str]:
        """Return further names of the model, without its id and without ``default``."""
        ...

    async def submit(self, request: GenerationRequest) -> Admission:
        """Admit or refuse a request.

        A cancelled call leaves nothing running. Raises an AskError when the scheduler cannot be asked:
        a retryable one becomes 503, any other 500.
        """
        ...

    async def count_tokens(self, request: GenerationRequest) -> int | Refused:
        """Return how long the prompt of ``request`` is; Refused where it cannot be made.

        Nothing is generated, and it waits for no row. Raises an AskError as ``submit`` does.
        """
        ...

    def readiness(self) -> Readiness:
        """Return the present readiness; cheap, called for every request."""
        ...

    async def stats(self) -> Mapping[str, object]:
        """Return the body of ``GET /stats``; values are JSON values or dataclasses."""
        ...

    def tree(self) -> Sequence[Mapping[str, object]]:
        """Return one mapping per actor, each with its ``path``."""
        ...

    def crash(self, path: str) -> bool:
        """Crash the actor at ``path``; False when there is none. Reached only with fault injection on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What is known of one HTTP request at its end. Holds no prompt text, reply text or token ids.

    ``status`` is 499 when the client left first; for a stream that failed after its first byte it is
    what the status would have been. ``error`` is set for a cause that the server did not expect;
    ``error_detail`` is what the engine said of a failed reply, which the client is not told. Times
    are milliseconds; None where the request never got there.
    """

    request_id: str
    generation_id: str | None
    method: str
    path: str
    status: int
    duration_ms: float
    model: str | None = None
    stream: bool = False
    session_id: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tier: str | None = None
    restore_ms: float | None = None
    miss_reason: str | None = None
    diverged_at: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    error_code: str | None = None
    error_param: str | None = None
    error_detail: str | None = None
    error: BaseException | None = None


class RequestLog(Protocol):
    """Receives exactly one record per HTTP request, when its handler has ended."""

    def request_ended(self, record: RequestRecord) -> None:
        """Take a record; must neither block nor raise."""
        ...
