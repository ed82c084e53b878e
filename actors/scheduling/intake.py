"""Requests before they have a row: prepared beside the mailbox, refused, or waiting in the backlog.

Part of ``scheduler.py``, in whose handlers all of it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...runtime.engine.errors import ConstraintError, EngineError
from ...runtime.kernel import Ask, Deferred
from ..requests import Admission, GenerationRequest, Refused

if TYPE_CHECKING:
    from ...runtime.engine.port import TextCodec
    from ...runtime.engine.prompt import RenderedPrompt
    from ...runtime.kernel import BlockingPool, Context
    from ...storage.tokens import TokenIds
    from ..scheduler import SchedulerMessage
    from .admission import Admittance
    from .backlog import Backlog
    from .ledger import Asked, Ledger
    from .places import Places


@dataclass(frozen=True, slots=True)
class Submit(Ask[Admission]):
    """Take a request. Answered once it runs (Admitted) or at once when it cannot be taken (Refused).

    Request ids are the submitter's to keep distinct.
    """

    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request was tokenised (from the blocking pool)."""

    submit: Submit
    prompt: RenderedPrompt


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """A request could not be tokenised (from the blocking pool)."""

    submit: Submit
    error: Exception


@dataclass(slots=True)
class _Preparing:
    answer: Deferred[Admission]
    arrived_s: float


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for a row, or for the prefix that it will start from."""

    asked: Asked
    answer: Deferred[Admission]
    overtaken: int = 0

    @property
    def tokens(self) -> TokenIds:
        """Its prompt."""
        return self.asked.tokens

    @property
    def namespace(self) -> str:
        """What its state depends on beside the tokens."""
        return self.asked.row.namespace

    @property
    def due_s(self) -> float:
        """Its place in the order."""
        return self.asked.due_s


class Intake:
    """The requests of one incarnation that have no stream yet."""

    def __init__(
        self,
        ctx: Context[SchedulerMessage],
        places: Places,
        backlog: Backlog[Waiting],
        ledger: Ledger,
        *,
        admittance: Admittance,
        codec: TextCodec,
        pool: BlockingPool,
    ) -> None:
        self._ctx = ctx
        self._places = places
        self._backlog = backlog
        self._ledger = ledger
        self._admittance = admittance
        self._codec = codec
        self._pool = pool
        self._preparing: dict[str, _Preparing] = {}

    @property
    def queued(self) -> int:
        """How many are prepared or wait."""
        return len(self._preparing) + len(self._backlog)

    def submit(self, message: Submit, running: int) -> None:
        """Take a request in or refuse it; ``running`` requests have a row."""
        answer, request = self._ctx.defer(message), message.request
        self.forget_leavers()
        waiting = self.queued
        if not self._ledger.open:
            after_s = self._retry_after_s(waiting + running)
            self._refuse(answer, Refused("draining", "the server is shutting down", retry_after_s=after_s))
            return
        if waiting >= self._admittance.options.queue + max(0, self._places.capacity - running):
            text, after_s = f"{waiting} requests are waiting already", self._retry_after_s(waiting)
            self._refuse(answer, Refused("queue_full", text, retry_after_s=after_s))
            return
        self._preparing[request.id] = _Preparing(answer, self._ctx.now_s())
        self._ctx.spawn(
            self._pool.run(self._codec.render, request.prompt, request.constraint),
            lambda prompt: Prepared(message, prompt),
            lambda error: PreparationFailed(message, error),
        )

    def prepared(self, message: Prepared) -> None:
        """Let a tokenised request wait for a row, unless it can never have one."""
        preparing = self._preparing.pop(message.submit.request.id)
        asked = self._admittance.prepare(message.submit.request, message.prompt, preparing.arrived_s)
        if isinstance(asked, Refused):
            self._refuse(preparing.answer, asked)
        elif (cause := self._ledger.convicts.cause(asked.fingerprint, self._ctx.now_s())) is not None:
            self._refuse(preparing.answer, Refused("lane_crashed", cause))
        else:
            self._backlog.add(Waiting(asked, preparing.answer))

    def unprepared(self, message: PreparationFailed) -> None:
        """Answer a request that could not be tokenised."""
        answer = self._preparing.pop(message.submit.request.id).answer
        error = message.error
        if isinstance(error, EngineError) and not error.retryable:
            field = error.param if isinstance(error, ConstraintError) else message.submit.request.prompt_field
            self._refuse(answer, Refused(error.code, str(error), field))
        else:
            answer.reject(error)

    def forget_leavers(self) -> None:
        """Drop queued requests whose client has gone."""
        self._ledger.counts.cancelled += self._backlog.drop(lambda waiting: waiting.answer.closed)

    def _refuse(self, answer: Deferred[Admission], refusal: Refused) -> None:
        self._ledger.counts.refused += 1
        answer.reply(refusal)

    def _retry_after_s(self, ahead: int) -> float:
        return self._ledger.turnover.retry_after_s(ahead, self._places.capacity)
