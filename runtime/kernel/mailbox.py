"""A bounded queue with two lanes and one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from .message import Envelope

Overflow: TypeAlias = Literal["reject", "wait", "drop_oldest"]


class Mailbox:
    """Holds an actor's messages; the system lane is always read before the user lane.

    The user lane is bounded by ``capacity``. The system lane carries what the kernel itself delivers to
    the actor (watch notices, timers, results of spawned work, thread events) and is bounded by the
    numbers of those, each of which has its own limit. Loop thread only; one reader.

    Senders that wait for room are served first come first served: a place that falls free is reserved for
    the first of them, so nobody who comes later can take it.

    ``system``, ``user``, ``room``, ``senders`` and ``waiter`` are open to the ref and the cell of the same
    actor, whose hot paths use them directly; everybody else goes through the methods.
    """

    __slots__ = ("_reserved", "capacity", "closed", "overflow", "room", "senders", "system", "user", "waiter")

    def __init__(self, capacity: int, overflow: Overflow) -> None:
        if capacity < 1:
            raise ValueError(f"mailbox capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self.overflow: Overflow = overflow
        self.closed = False
        # How long the user lane may be for a newcomer: the capacity less the reserved places, 0 while
        # closed, so that one comparison answers "may I append?".
        self.room = capacity
        self.system: deque[Envelope] = deque()
        self.user: deque[Envelope] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.senders: deque[asyncio.Future[bool]] = deque()
        self._reserved = 0

    def __len__(self) -> int:
        return len(self.system) + len(self.user)

    @property
    def full(self) -> bool:
        """Whether the user lane has no room for a newcomer (never has it while closed)."""
        return len(self.user) >= self.room

    def oldest_s(self) -> float | None:
        """Loop time at which the oldest waiting message arrived, or None when empty."""
        heads = [lane[0][2] for lane in (self.system, self.user) if lane]
        return min(heads) if heads else None

    def put(self, envelope: Envelope) -> None:
        """Append to the user lane; the caller has checked for room."""
        self.user.append(envelope)
        if self.waiter is not None:
            self.wake()

    def put_system(self, envelope: Envelope) -> None:
        """Append to the system lane."""
        self.system.append(envelope)
        if self.waiter is not None:
            self.wake()

    def clear_system(self) -> None:
        """Drop what the kernel posted to an incarnation that has ended."""
        self.system.clear()

    def take_all(self) -> list[Envelope]:
        """Empty the user lane, oldest first; senders that wait for room get it."""
        envelopes = list(self.user)
        self.user.clear()
        for _ in envelopes:
            self.admit_sender()
        return envelopes

    def wake(self) -> None:
        """Release the reader, which waits on ``waiter``, whatever is queued."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def writable(self) -> None:
        """Wait, first come first served, until the user lane has room or the mailbox closes.

        The caller looks which of the two it is, and puts before it awaits anything else; when it does not
        put, it calls ``pass_on``.
        """
        if self.closed or not self.full:
            return
        sender: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.senders.append(sender)
        try:
            holds_place = await sender
        except BaseException:
            if sender.done() and not sender.cancelled():
                if sender.result():
                    self._reserve(-1)
                    self.pass_on()  # this sender was chosen and is gone
            elif sender in self.senders:
                self.senders.remove(sender)
            raise
        if holds_place:
            self._reserve(-1)

    def pass_on(self) -> None:
        """Give a place that was not used to the next sender."""
        if not self.full:
            self.admit_sender()

    def open(self) -> None:
        """Accept messages (again)."""
        self.closed = False
        self._reserve(0)

    def close(self) -> None:
        """Accept nothing more; waiting senders find it closed."""
        self.closed = True
        self.room = 0
        while self.senders:
            self.admit_sender()

    def admit_sender(self) -> None:
        """Reserve a place for the sender that waits longest; when closed, let it go on without one."""
        while self.senders:
            sender = self.senders.popleft()
            if not sender.done():
                if not self.closed:
                    self._reserve(1)
                sender.set_result(not self.closed)
                return

    def _reserve(self, places: int) -> None:
        self._reserved += places
        self.room = 0 if self.closed else self.capacity - self._reserved
