"""What the parts of ``samovar chat`` say to each other: wishes, pieces of replies, and who speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

Message: TypeAlias = "Mapping[str, str]"


@dataclass(frozen=True, slots=True)
class Wish:
    """How replies are to be generated; None leaves it to the model or the server."""

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """More of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the reasoning before the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The reply is complete. ``cut``: it reached a limit. Figures are None where nobody told them.

    ``tier`` says where the cached tokens of the prompt came from.
    """

    cut: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tier: str | None = None
    tokens_per_s: float | None = None


Piece: TypeAlias = Said | Thought | Done


class ReplyFailed(Exception):
    """There is no reply, or no more of it. The message is for people. ``usage``: as it was asked for."""

    def __init__(self, message: str, code: str, *, retryable: bool = False, usage: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.usage = usage


class GaveUp(ReplyFailed):
    """Parts of the program kept crashing: no reply will ever come any more."""


class Speaker(Protocol):
    """Whoever replies. Every method runs on the loop's thread, which differs from the terminal's."""

    async def open(self) -> None:
        """Get ready. May take minutes: a model is loaded."""
        ...

    async def introduce(self) -> str:
        """Return who speaks, in one line. Raises ReplyFailed when it is known already that nobody does."""
        ...

    def reply(self, messages: Sequence[Message], wish: Wish) -> AsyncGenerator[Piece]:
        """Yield the reply as it comes, ``Done`` last. Raises ReplyFailed. Closing it early drops the rest."""
        ...

    async def close(self) -> None:
        """Bring what was learned to disk and give everything up. Idempotent, also after a failed ``open``."""
        ...
