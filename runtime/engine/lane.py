"""The loop that a lane's pinned thread runs: drain commands, do one step, hand over the step's events.

It never waits for the event loop and the event loop never waits for it: commands come through the
thread's inbox, all events of a step leave in one hand-over (DESIGN §4).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from .errors import LaneStepFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .port import LaneBackend, LaneFigures, ModelInfo, RowEvent, RowRequest

FIGURES_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Insert:
    """Let a row join the batch."""

    request: RowRequest


@dataclass(frozen=True, slots=True)
class Drop:
    """Take a row out of the batch before the next step."""

    row_id: str


LaneCommand: TypeAlias = Insert | Drop


@dataclass(frozen=True, slots=True)
class Step:
    """What one step brought. ``figures`` is None when they were sent less than a moment ago."""

    events: tuple[RowEvent, ...]
    figures: LaneFigures | None


class CommandPort(Protocol):
    """The thread's side of the lane; the kernel's ThreadPort is one."""

    stopping: bool

    def take(self) -> list[LaneCommand]:
        """Return the commands that wait, without blocking."""
        ...

    def wait(self) -> list[LaneCommand]:
        """Block until there is a command or the lane is to stop."""
        ...

    def emit(self, events: list[Step]) -> None:
        """Hand events to the event loop."""
        ...


def run_lane(backend: LaneBackend, port: CommandPort, opened: Callable[[ModelInfo], None]) -> None:
    """Open ``backend``, say so, and serve commands until told to stop. The lane's thread only.

    Whatever the backend raises leaves through here and is a crash of the lane, out of a step as
    LaneStepFailed; its last figures go out before it. The backend is closed on every path.
    """
    try:
        opened(backend.open())
        try:
            _serve(backend, port)
        finally:
            port.emit([Step((), backend.figures())])
    finally:
        backend.close()


def _serve(backend: LaneBackend, port: CommandPort) -> None:
    figures_due_s = 0.0
    while not port.stopping:
        for command in port.take() if backend.busy else port.wait():
            _obey(backend, command)
        if not backend.busy:
            continue
        events = _stepped(backend)
        now_s = time.monotonic()
        send_figures = now_s >= figures_due_s or not backend.busy
        if send_figures:
            figures_due_s = now_s + FIGURES_EVERY_S
        if events or send_figures:
            port.emit([Step(tuple(events), backend.figures() if send_figures else None)])


def _stepped(backend: LaneBackend) -> list[RowEvent]:
    """Do a step; what it raises comes out with the rows that it was about."""
    try:
        return backend.step()
    except Exception as error:
        work = backend.at_work
        raise LaneStepFailed(work.phase, work.rows, error) from error


def _insert(backend: LaneBackend, request: RowRequest) -> None:
    """Queue a row; what that raises comes out with the row as the one suspect."""
    try:
        backend.insert(request)
    except Exception as error:
        raise LaneStepFailed("step", frozenset({request.id}), error) from error


def _obey(backend: LaneBackend, command: LaneCommand) -> None:
    match command:
        case Insert():
            _insert(backend, command.request)
        case Drop():
            backend.cancel(command.row_id)
