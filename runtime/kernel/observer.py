"""How the kernel tells the outside what happens in it; logging, metrics and tests listen here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .figures import DeadReason
    from .message import Failure


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that no handler will complete. ``message`` is kept for inspection, not for redelivery."""

    path: str
    message: Any
    reason: DeadReason


class Observer(Protocol):
    """Called on the loop thread, synchronously, at the moment of the event; must be quick and not raise."""

    def failed(self, failure: Failure, restart_in_s: float | None) -> None:
        """An incarnation crashed; it comes back in ``restart_in_s`` seconds, or (None) not by itself."""
        ...

    def restarted(self, path: str, incarnation: int) -> None:
        """An actor or supervisor runs again."""
        ...

    def gave_up(self, path: str, failure: Failure) -> None:
        """A supervisor passed its restart limit and escalates ``failure``."""
        ...

    def unstoppable(self, path: str, what: str) -> None:
        """A task or thread outlived its stop and kill budgets and was left behind."""
        ...

    def dead_letter(self, letter: DeadLetter) -> None:
        """A message went to dead letters."""
        ...


class Silent:
    """An observer that ignores everything."""

    def failed(self, failure: Failure, restart_in_s: float | None) -> None:
        """Ignore."""

    def restarted(self, path: str, incarnation: int) -> None:
        """Ignore."""

    def gave_up(self, path: str, failure: Failure) -> None:
        """Ignore."""

    def unstoppable(self, path: str, what: str) -> None:
        """Ignore."""

    def dead_letter(self, letter: DeadLetter) -> None:
        """Ignore."""
