"""Who is asking: the deadline that asks inherit, and the chain that reveals ask cycles."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .inbox import Inbox

current_cell: ContextVar[Inbox | None] = ContextVar("current_cell", default=None)
"""The cell whose handler runs in this task; None in spawned tasks and outside of actors."""


def waits_for(target: Inbox, asker: Inbox) -> bool:
    """Whether ``target``'s handler waits, directly or through others, for ``asker`` (or is ``asker``).

    The graph of waiting handlers has no cycle because every ask that would close one is refused, so the
    walk ends; it is as long as the chain of nested asks.
    """
    return target is asker or any(waits_for(next_cell, asker) for next_cell in target.waiting)
