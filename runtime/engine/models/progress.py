"""How long work on models tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["download", "extract", "convert", "verify"]


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """``done`` of ``total`` units of one stage: bytes, or tensors for ``convert``.

    ``total`` is None while it is unknown. ``message`` names what is being worked on, for people.
    """

    stage: Stage
    done: int
    total: int | None
    message: str


Progress: TypeAlias = Callable[[ProgressEvent], None]
"""Called on the working thread, at most about a hundred times a stage; must return quickly."""


def silent(event: ProgressEvent) -> None:
    """Take no notice."""
    del event


class ThinnedProgress:
    """Passes on about a hundred reports of one stage of known size, the last one always."""

    __slots__ = ("_message", "_next", "_progress", "_stage", "_step", "_total")

    def __init__(self, progress: Progress, stage: Stage, total: int, message: str) -> None:
        self._progress = progress
        self._stage: Stage = stage
        self._total = total
        self._message = message
        self._step = max(1, total // 100)
        self._next = 0

    def __call__(self, done: int) -> None:
        """Report that ``done`` units of the stage are behind us."""
        if done >= self._next or done == self._total:
            self._next = done + self._step
            self._progress(ProgressEvent(self._stage, done, self._total, self._message))
