"""Clients in threads of their own, let in and asked to wait outside."""

from __future__ import annotations

import random
import threading
import time
import traceback
from typing import TYPE_CHECKING, Self

from .server import Setback
from .visits import visit

if TYPE_CHECKING:
    from .book import Book
    from .server import Server

CLIENTS = 4
LONGEST_S = 150.0
BREATH_S = 0.1


class Floor:
    """The clients of one life. What each draws follows from ``seed``; how they interleave does not."""

    def __init__(self, server: Server, book: Book, seed: str) -> None:
        self._server, self._book = server, book
        self._changed = threading.Condition()
        self._open = self._over = False
        self._inside = 0
        self._clients = [
            threading.Thread(target=self._come, args=(random.Random(f"{seed} client {number}"),), daemon=True)
            for number in range(CLIENTS)
        ]

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for client in self._clients:
            client.join(LONGEST_S)

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more and wait for those inside."""
        with self._changed:
            self._open = False
            if not self._changed.wait_for(lambda: not self._inside, LONGEST_S):
                self._server.tally.wrong(f"{self._inside} requests have not ended in {LONGEST_S:.0f} s")

    def _come(self, chance: random.Random) -> None:
        while self._enter():
            try:
                visit(self._server, self._book, chance)
            except Setback:
                time.sleep(BREATH_S)
            except Exception:  # noqa: BLE001 - whatever is wrong with an answer is a finding
                self._server.tally.wrong(f"an answer that cannot be read: {traceback.format_exc(limit=-3)}")
            finally:
                self._leave()

    def _enter(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._over)
            self._inside += not self._over
            return not self._over

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
