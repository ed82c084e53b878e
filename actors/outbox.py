"""Messages to a subscriber that must not be lost while it lives, though its mailbox is full for a while."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime.kernel import ActorRef

M = TypeVar("M")


class Outbox(Generic[M]):
    """In order, at most ``limit`` waiting: past that the oldest go. Loop thread.

    ``subscriber`` None, or one that returns None: nobody wants to know.
    """

    def __init__(self, subscriber: Callable[[], ActorRef[M] | None], limit: int) -> None:
        self._subscriber = subscriber
        self._waiting: deque[M] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: M) -> None:
        """Let a message wait for ``send``."""
        self._waiting.append(message)

    def send(self) -> bool:
        """Tell what waits; False when the subscriber takes no more for now, and it is to be tried again."""
        subscriber = self._subscriber()
        while self._waiting:
            if subscriber is not None and not subscriber.tell(self._waiting[0]):
                return False
            self._waiting.popleft()
        return True
