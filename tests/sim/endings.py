"""What must hold of a process that has ended: all failures are of the plan, all dead letters explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samovar.runtime.engine.errors import LaneStepFailed
from samovar.runtime.kernel import InjectedCrash, StartFailed
from samovar.runtime.kernel.errors import RestartStorm

from tests.kit.faults import PowerLoss

from .engine import Planned

if TYPE_CHECKING:
    from samovar.runtime.kernel import DeadLetter

    from .process import Process
    from .world import World


def of_ended(world: World, process: Process) -> None:
    """Whatever failed did so by plan, and every dead letter has its reason."""
    wrong, failed = world.books.wrong, {failure.path for failure in process.failures}
    for failure in process.judged:
        if not _planned(failure.error) and not (process.stopping and isinstance(failure.error, StartFailed)):
            wrong(f"{failure!s} is no fault of the plan: {failure.error!r} {failure.error.__cause__!r}")
    for letter in process.letters:
        if not _explained(letter, failed, process):
            wrong(
                f"a dead letter for no reason: {letter.path} {letter.reason} {type(letter.message).__name__}"
            )
    if process.given_up and not process.failures:
        wrong(f"{process.given_up} gave up without a failure")
    if process.stuck and not process.stuck_allowed:
        wrong(f"it would not stop: {process.stuck}")


def _planned(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, InjectedCrash | Planned | PowerLoss | OSError):
            return True
        if not isinstance(error, LaneStepFailed | RestartStorm) and error.__cause__ is None:
            return False
        error = error.__cause__
    return False


def _explained(letter: DeadLetter, failed: set[str], process: Process) -> bool:
    match letter.reason:
        case "crashed" | "dropped":
            return letter.path in failed
        case "gone":
            return process.stopping or bool(failed)
        case _:
            return False
