"""What a backend does at the moment and for which rows: the suspects when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..port import AtWork

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..port import Phase
    from .rows import Row


class Suspects:
    """Keeps the phase and its rows. Lane thread only. Noting costs next to nothing, ``read`` makes a report.

    MLX computes later than it is told to, so an error comes out where a result is waited for. Whoever waits
    names the rows of all work that may be what failed.
    """

    __slots__ = ("_phase", "_rows")

    def __init__(self) -> None:
        self._phase: Phase = "step"
        self._rows: tuple[Row, ...] = ()

    def note(self, phase: Phase, rows: Iterable[Row]) -> None:
        """Say what is being done from here on."""
        self._phase = phase
        self._rows = tuple(rows)

    def read(self) -> AtWork:
        """Return what was noted last."""
        return AtWork(self._phase, frozenset(row.id for row in self._rows))
