"""What happened in a run, in order: a hash over all of it, and its last lines for whoever has to read it."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = 400
MOST_AT_ONCE = 100_000
"""Messages at one moment of virtual time; a burst of the largest group is a tenth of that."""


class Spins(KeyboardInterrupt):
    """The clock stands still, and messages are handled without end. Of a kind that stops the loop itself."""


class Journal:
    """``count`` is the number of lines so far; ``digest`` is the same for the same run."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._hash = hashlib.blake2b(digest_size=16)
        self._moment_s, self._at_once = -1.0, 0
        self.count = 0
        self.last: deque[str] = deque(maxlen=KEPT)
        self.told: list[str] = []

    def message(self, path: str, message: Any) -> None:
        """Note that an actor is about to handle a message."""
        if path != "monitor":
            self._note(f"{path} {type(message).__name__}")
        now_s = self._now_s()
        self._at_once = self._at_once + 1 if now_s == self._moment_s else 0
        self._moment_s = now_s
        if self._at_once > MOST_AT_ONCE:
            raise Spins(f"{self._at_once} messages at {now_s:.6f} s, the last of them {self.last[-1]}")

    def say(self, text: str) -> None:
        """Note what happened otherwise; kept to the end."""
        self._note(text)
        self.told.append(self.last[-1])

    def _note(self, text: str) -> None:
        line = f"{self._now_s():.6f} {text}"
        self.count += 1
        self.last.append(line)
        self._hash.update(line.encode())

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
