from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samovar.runtime.kernel.mailbox import Mailbox

from tests.kit import virtual


def test_a_mailbox_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Mailbox(0, "reject")


@virtual
async def test_a_message_after_the_readers_cancellation_in_one_round_is_kept() -> None:
    mailbox = Mailbox(1, "reject")
    mailbox.waiter = waiter = asyncio.get_running_loop().create_future()
    waiter.cancel()
    mailbox.put(("message", None, 0.0))
    assert len(mailbox) == 1
    assert mailbox.waiter is None


class Model:
    """A mailbox as a reader would describe it: two lists, and a queue of senders that wait for room."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.system: deque[int] = deque()
        self.user: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.closed = False

    def take(self) -> int | None:
        if self.system:
            return self.system.popleft()
        if not self.user:
            return None
        taken = self.user.popleft()
        if self.waiting:
            self.user.append(self.waiting.popleft())
        return taken


class Pair:
    """A mailbox and its model, driven by the same operations."""

    def __init__(self, capacity: int) -> None:
        self.mailbox, self.model = Mailbox(capacity, "wait"), Model(capacity)
        self.senders: dict[int, asyncio.Task[None]] = {}

    async def _send(self, number: int) -> None:
        await self.mailbox.writable()
        if not self.mailbox.closed:
            assert not self.mailbox.full, "whoever was let in has its place"
            self.mailbox.put((number, None, 0.0))

    def _take(self) -> int | None:
        """Take as the cell's loop does."""
        if self.mailbox.system:
            return self.mailbox.system.popleft()[0]
        if not self.mailbox.user:
            return None
        taken = self.mailbox.user.popleft()[0]
        if self.mailbox.senders:
            self.mailbox.admit_sender()
        return taken

    def put(self, number: int) -> None:
        assert self.mailbox.full is (self.model.closed or len(self.model.user) >= self.model.capacity)
        if not self.mailbox.full:
            self.mailbox.put((number, None, 0.0))
            self.model.user.append(number)

    def send(self, number: int) -> None:
        self.senders[number] = asyncio.ensure_future(self._send(number))
        if not self.model.closed:
            has_room = len(self.model.user) < self.model.capacity
            (self.model.user if has_room else self.model.waiting).append(number)

    def system(self, number: int) -> None:
        self.mailbox.put_system((number, None, 0.0))
        self.model.system.append(number)

    def take(self, number: int) -> None:
        assert self._take() == self.model.take()

    def cancel(self, number: int) -> None:
        if self.model.waiting:
            self.senders[self.model.waiting.pop()].cancel()

    def cancel_chosen(self, number: int) -> None:
        """Let the reader choose a sender that is cancelled before it can run."""
        if self.model.waiting and not self.model.system:
            chosen = self.model.waiting.popleft()
            assert self._take() == self.model.take()
            self.senders[chosen].cancel()

    def close(self, number: int) -> None:
        self.mailbox.close()
        self.model.closed = True
        self.model.waiting.clear()

    def open(self, number: int) -> None:
        self.mailbox.open()
        self.model.closed = False

    def take_all(self, number: int) -> None:
        assert [envelope[0] for envelope in self.mailbox.take_all()] == list(self.model.user)
        self.model.user.clear()
        while self.model.waiting and len(self.model.user) < self.model.capacity:
            self.model.user.append(self.model.waiting.popleft())

    def check(self) -> None:
        mailbox, model = self.mailbox, self.model
        assert [envelope[0] for envelope in mailbox.user] == list(model.user)
        assert [envelope[0] for envelope in mailbox.system] == list(model.system)
        assert len(mailbox.senders) == len(model.waiting)
        assert len(mailbox) == len(model.user) + len(model.system)
        assert mailbox.room == (0 if model.closed else model.capacity), "no reservation outlives its sender"


NAMES = [
    "put",
    "send",
    "send",
    "system",
    "take",
    "take",
    "cancel",
    "cancel_chosen",
    "close",
    "open",
    "take_all",
]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.lists(st.sampled_from(NAMES), max_size=60))
def test_a_mailbox_agrees_with_its_model(capacity: int, operations: list[str]) -> None:
    @virtual
    async def check() -> None:
        pair = Pair(capacity)
        for number, operation in enumerate(operations):
            getattr(pair, operation)(number)
            for _ in range(3):
                await asyncio.sleep(0)
            pair.check()
        pair.close(0)
        await asyncio.gather(*pair.senders.values(), return_exceptions=True)

    check()
