"""The address of an actor."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .call import current_cell
from .errors import ActorGone

if TYPE_CHECKING:
    from .inbox import Inbox
    from .message import Askable

M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")


class ActorRef(Generic[M_contra]):
    """Names one actor for as long as the process lives, across all of its incarnations.

    Safe to hand around and to keep; compared by identity. Methods run on the loop thread only; other
    threads reach actors through ``PinnedThread``. A ref made by a ``ChildSpec`` is bound to its cell when
    the tree is built; before that it behaves like the ref of an actor that is gone.
    """

    __slots__ = ("_cell", "_id")

    def __init__(self, child_id: str) -> None:
        self._id = child_id
        self._cell: Inbox | None = None

    @property
    def path(self) -> str:
        """Where the actor stands in the tree, such as ``serving/lanes/0``."""
        return self._cell.path if self._cell is not None else self._id

    def tell(self, message: M_contra) -> bool:
        """Enqueue ``message``; True when it was queued. Never waits, never raises for the actor's state.

        False means that it went to dead letters: the mailbox was full (overflow ``reject`` or ``wait``)
        or the actor is gone. With ``drop_oldest`` the oldest message makes room instead.
        """
        cell = self._cell
        if cell is None:
            return False
        mailbox = cell.mailbox
        if len(mailbox.user) >= mailbox.room:
            return cell.tell_when_full(message)
        mailbox.user.append((message, None, cell.now_s()))
        if mailbox.waiter is not None:
            mailbox.wake()
        return True

    async def deliver(self, message: M_contra, timeout_s: float) -> None:
        """Enqueue ``message``, waiting for room where the mailbox's overflow is ``wait``.

        Raises Overloaded (no room, or none within ``timeout_s``) or ActorGone.
        """
        await self._bound(message).deliver(message, timeout_s)

    async def ask(self, message: Askable[M_contra, R], timeout_s: float) -> R:
        """Send ``message`` and wait for its reply.

        Ends in exactly one way: the reply, or Rejected, ActorCrashed, ActorGone, AskTimeout, Overloaded or
        AskCycle. Asked from inside a handler, the deadline is the smaller of ``timeout_s`` from now and
        what remains of the ask being handled. If the asker is cancelled, the ask is abandoned and never
        handled unless it already was. An idle actor may answer before this suspends (ADR 0004).
        """
        cell = self._cell
        if cell is None:
            cell = self._bound(message)
        caller = current_cell.get()
        promise = cell.promise_for(message, timeout_s, caller)
        if caller is not None:
            caller.waiting.append(cell)
        try:
            mailbox = cell.mailbox
            if len(mailbox.user) < mailbox.room:
                mailbox.user.append((message, promise, promise.asked_s))
                if mailbox.waiter is not None and cell.attend(promise.asked_s):
                    await asyncio.sleep(0)  # this task was cancelled meanwhile: it learns so here
                return await promise.wait() if promise.open else promise.answer()
            future = promise.wait()
            await cell.enqueue_when_full(message, promise)
            return await future
        except BaseException:
            promise.abandon()
            raise
        finally:
            if caller is not None:
                caller.waiting.remove(cell)

    def bind(self, cell: Inbox) -> None:
        """Tie the ref to the cell built for it (kernel-internal)."""
        if self._cell is not None and self._cell is not cell:
            raise RuntimeError(f"{self._cell.path} already has a cell: one spec builds one actor")
        self._cell = cell

    def _bound(self, message: Any) -> Inbox:
        if self._cell is None:
            raise ActorGone(self._id, type(message).__name__, "the actor is not part of a running tree")
        return self._cell

    def __repr__(self) -> str:
        return f"ActorRef({self.path})"
