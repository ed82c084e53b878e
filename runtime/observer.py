"""Tells the log what happens in the actor tree: one line per change of state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .kernel import InjectedCrash
from .logs import get_logger

if TYPE_CHECKING:
    from .kernel import DeadLetter, Failure

_log = get_logger("samovar.actors")


class LogObserver:
    """The kernel's observer for a served tree."""

    def failed(self, failure: Failure, restart_in_s: float | None) -> None:
        """Log a crash with its traceback (a crash made on purpose has none worth reading)."""
        _log.error(
            "actor_failed",
            path=failure.path,
            incarnation=failure.incarnation,
            handling=failure.message_type,
            error=f"{type(failure.error).__name__}: {failure.error}",
            restart_in_s=restart_in_s,
            exc_info=None if isinstance(failure.error, InjectedCrash) else failure.error,
        )

    def restarted(self, path: str, incarnation: int) -> None:
        """Log a restart that succeeded."""
        _log.warning("actor_restarted", path=path, incarnation=incarnation)

    def gave_up(self, path: str, failure: Failure) -> None:
        """Log an escalation."""
        _log.error("supervisor_gave_up", path=path, last_failure=str(failure))

    def unstoppable(self, path: str, what: str) -> None:
        """Log what was left running."""
        _log.error("unstoppable", path=path, what=what)

    def dead_letter(self, letter: DeadLetter) -> None:
        """Log a lost message by type: its content may hold prompts."""
        _log.warning(
            "dead_letter", path=letter.path, message=type(letter.message).__name__, reason=letter.reason
        )
