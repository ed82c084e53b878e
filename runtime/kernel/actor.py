"""What an actor is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from .context import Context

M = TypeVar("M")


class Actor(Generic[M]):
    """Base of actors: state behind a mailbox, one message at a time, on the loop thread.

    A new object is made for every incarnation. ``receive`` awaits only short things: asks downwards with
    a deadline, a port call. Longer work goes through ``ctx.spawn`` or ``ctx.run_thread`` and comes back as
    a message. An exception out of any hook is a crash: this object is discarded, the message in hand goes
    to dead letters, and the supervisor decides.
    """

    ctx: Context[M]

    async def started(self) -> None:
        """Acquire what the actor needs; its supervisor starts nothing further until this returns."""

    async def receive(self, message: M) -> None:
        """Handle one message. An ``Ask`` must be replied to, rejected or deferred before this returns."""
        raise NotImplementedError

    async def stopped(self) -> None:
        """Say goodbye in an orderly stop, after the last message. Not called after a crash or a kill."""
