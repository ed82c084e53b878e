"""What travels between actors.

A message is a frozen, slotted dataclass. One that wants an answer derives from ``Ask[Reply]``; the
reply's type is part of the message, so ``await ref.ask(Take(...), timeout_s)`` is typed, and a message
that the actor does not declare is a type error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    from .promise import Promise
    from .ref import ActorRef

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
M_co = TypeVar("M_co", covariant=True)

Envelope: TypeAlias = "tuple[Any, Promise[Any] | None, float]"
"""Message, promise of an ask (else None), loop time of arrival.

A bare tuple: the hot path builds one for every message.
"""


class Ask(Generic[R]):
    """Base of messages that are answered with an ``R``, exactly once."""

    __slots__ = ()

    def _addressed(self, ref: ActorRef[Self]) -> R:
        """Never called: ties the message's own type and its reply type together for type checkers."""
        raise NotImplementedError


class Askable(Protocol[M_co, R_co]):
    """A message that an ``ActorRef[M]`` takes and that is answered with an ``R``. For type checkers only."""

    def _addressed(self, ref: ActorRef[M_co]) -> R_co: ...  # pyright: ignore[reportGeneralTypeIssues, reportInvalidTypeVarUse]


TerminationReason: TypeAlias = Literal["crashed", "stopped", "killed", "gone"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One crash of one incarnation. ``message_type`` is None when no message was in hand."""

    path: str
    incarnation: int
    error: BaseException
    message_type: str | None
    at_s: float

    def __str__(self) -> str:
        where = f" handling {self.message_type}" if self.message_type else ""
        return f"{self.path}#{self.incarnation}{where}: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class Terminated:
    """A watched incarnation has ended. A watcher gets exactly one for each ``watch``.

    ``restarting`` tells whether the supervisor means to bring the actor back; the ref stays valid, and a
    new watch then waits for the end of the next incarnation. ``reason`` "gone" means that the target had
    already stopped for good when it was watched.
    """

    ref: ActorRef[Any]
    incarnation: int
    reason: TerminationReason
    failure: Failure | None
    restarting: bool
