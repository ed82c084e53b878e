"""Progress of long work, for people: a bar on a terminal, a few plain lines anywhere else.

The events come from ``runtime.engine.progress``; only their shape is known here, so that the command
line starts without MLX.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol, TextIO, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.progress import Progress, TaskID

PLAIN_STEP_PERCENT = 25


class Event(Protocol):
    """``done`` of ``total`` units (None: unknown) of a stage are done; ``message`` says of what."""

    @property
    def stage(self) -> str:
        """What is being done, in one word."""
        ...

    @property
    def done(self) -> int:
        """Units done."""
        ...

    @property
    def total(self) -> int | None:
        """Units in all."""
        ...

    @property
    def message(self) -> str:
        """What it is done to."""
        ...


Report: TypeAlias = "Callable[[Event], None]"


@contextlib.contextmanager
def shown_progress(stream: TextIO) -> Generator[Report]:
    """Yield a callback that shows events on ``stream`` until the block ends.

    The callback may run on any thread, one call at a time, and returns quickly.
    """
    if not stream.isatty():
        yield PlainProgress(stream)
        return
    from rich.console import Console  # noqa: PLC0415 - costs more than the rest of the command line
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(file=stream)) as progress:
        yield _Bars(progress)


@contextlib.contextmanager
def shown_activity(stream: TextIO, name: str) -> Generator[Callable[[str], None]]:
    """Yield a callback that shows lines about work of unknown length until the block ends.

    On a terminal they stand above a clock that shows that something goes on.
    """
    if not stream.isatty():
        yield lambda line: print(line, file=stream, flush=True)
        return
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        progress.add_task(name, total=None)
        yield lambda line: progress.console.print(line, markup=False, highlight=False)


class PlainProgress:
    """One line when a stage begins, at each quarter of it, and nothing twice."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._next_percent = 0

    def __call__(self, event: Event) -> None:
        """Print a line if the event has something new to say."""
        if event.stage != self._stage:
            self._stage = event.stage
            self._next_percent = 0
        percent = 100 * event.done // event.total if event.total else 0
        if percent < self._next_percent:
            return
        self._next_percent = (percent // PLAIN_STEP_PERCENT + 1) * PLAIN_STEP_PERCENT
        share = f" {percent}%" if event.total else ""
        self._stream.write(f"{event.stage}: {event.message}{share}\n")
        self._stream.flush()


class _Bars:
    """One bar a stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, event: Event) -> None:
        label = f"{event.stage} {event.message}"
        if event.stage not in self._tasks:
            self._tasks[event.stage] = self._progress.add_task(label, total=event.total)
        self._progress.update(
            self._tasks[event.stage], description=label, completed=event.done, total=event.total
        )
