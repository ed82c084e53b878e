"""Messages to a subscriber that must not be lost while it lives, though its mailbox is full for a while."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runtime.kernel import ActorRef

M = TypeVar("M")

PAUSE_S: Final = 0.1


class Outbox(Generic[M]):
    """In order, at most ``limit`` waiting: past that the oldest go. Loop thread.

    A full subscriber is left alone for ``PAUSE_S``: every vain attempt is a dead letter. ``subscriber``
    returns None while nobody wants to know.
    """

    def __init__(self, subscriber: Callable[[], ActorRef[M] | None], limit: int) -> None:
        self._subscriber = subscriber
        self._waiting: deque[M] = deque(maxlen=limit)
        self._not_before_s = 0.0

    def put(self, message: M) -> None:
        """Let a message wait for ``send``."""
        self._waiting.append(message)

    def send(self, now_s: float) -> float | None:
        """Tell what waits. Returns when it is to be called again, None when everything was told."""
        if now_s < self._not_before_s:
            return self._not_before_s if self._waiting else None
        subscriber = self._subscriber()
        while self._waiting:
            if subscriber is not None and not subscriber.tell(self._waiting[0]):
                self._not_before_s = now_s + PAUSE_S
                return self._not_before_s
            self._waiting.popleft()
        return None
