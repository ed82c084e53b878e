"""How much of one iteration of the event loop the kernel may take before everything else gets its turn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

TURN_S = 0.005
"""Seconds that messages may be handled one after the other before other tasks of the loop get their turn."""
TURN_LENGTH = 1_000
"""Hand-offs in a turn: what ends it where time stands still. Their own cost is less than ``TURN_S``."""


class Turn:
    """What hand-offs may still take of this iteration of the loop. One a system; loop thread only.

    ``left``, ``end_s`` and ``depth`` are open to the hand-offs, whose hot path uses them directly.
    """

    __slots__ = ("_loop", "depth", "end_s", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.depth = 0
        self.over()

    def begin(self, now_s: float) -> float:
        """Begin a turn at ``now_s``, before its first hand-off; return its end."""
        self._loop.call_soon(self.over)
        self.end_s = now_s + TURN_S
        return self.end_s

    def over(self) -> None:
        """Let the next hand-off begin a new turn (called by the loop, in its next iteration)."""
        self.left = TURN_LENGTH
        self.end_s = -math.inf
