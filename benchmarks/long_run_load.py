"""The load of the long run: seeded requests of mixed sizes, some with a shared beginning, some given up."""

from __future__ import annotations

import asyncio
import random
import string
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import aiohttp

TEMPLATE_TOKENS = 18
"""What the tiny models' template adds to a message; every character is one token there."""

REPLY_S = 60.0


@dataclass(frozen=True)
class Ask:
    """One request. ``give_up_after``: pieces of the reply after which its client leaves; None: it stays."""

    content: str
    max_tokens: int
    temperature: float
    seed: int
    give_up_after: int | None
    session: str | None

    def body(self) -> dict[str, Any]:
        """Return the request's body."""
        session = {} if self.session is None else {"session_id": self.session}
        return {
            "messages": [{"role": "user", "content": self.content}],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
            **session,
        }


def asks(count: int, seed: int) -> Iterator[Ask]:
    """Yield ``count`` requests: prompts of 5 (the template alone is 18) to 300 tokens, replies of 1 to 40.

    Four of ten begin like one of eight texts, one of ten repeats an earlier one whole, one of seven is given
    up, one of four names one of twelve sessions.
    """
    chance = random.Random(seed)
    shared = [_text(chance, chance.randint(40, 180)) for _ in range(8)]
    recent: list[str] = []
    for _ in range(count):
        content = _content(chance, shared, recent)
        recent = [*recent[-20:], content]
        yield Ask(
            content,
            max_tokens=chance.randint(1, 40),
            temperature=chance.choice((0.0, 0.0, 0.8)),
            seed=chance.randrange(2**31),
            give_up_after=chance.randint(0, 6) if chance.random() < 1 / 7 else None,
            session=f"s{chance.randrange(12)}" if chance.random() < 1 / 4 else None,
        )


def _content(chance: random.Random, shared: Sequence[str], recent: Sequence[str]) -> str:
    longest = 300 - TEMPLATE_TOKENS
    draw = chance.random()
    if draw < 0.1 and recent:
        return chance.choice(recent)
    if draw < 0.5:
        start = chance.choice(shared)
        return start + _text(chance, chance.randint(1, longest - len(start)))
    return _text(chance, chance.randint(1, longest))


def _text(chance: random.Random, length: int) -> str:
    return "".join(chance.choices(string.ascii_lowercase + " ", k=length))


@dataclass
class Outcomes:
    """How requests ended: every one of them in one of these."""

    finished: int = 0
    given_up: int = 0
    failed: int = 0


class Clients:
    """Asks for replies over HTTP, ``at_once`` at a time. Loop thread only."""

    def __init__(self, session: aiohttp.ClientSession, url: str, at_once: int) -> None:
        self._session = session
        self._url = url
        self._at_once = at_once
        self.outcomes = Outcomes()

    async def ask_all(self, waiting: Sequence[Ask]) -> None:
        """Return when every request has ended, one way or another."""
        pending = iter(waiting)

        async def client() -> None:
            for ask in pending:
                async with asyncio.timeout(REPLY_S):
                    await self._ask(ask)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(client())

    async def _ask(self, ask: Ask) -> None:
        async with self._session.post(f"{self._url}/v1/chat/completions", json=ask.body()) as response:
            if response.status != HTTPStatus.OK:
                self.outcomes.failed += 1
                return
            pieces = 0
            last = b""
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                if ask.give_up_after is not None and pieces >= ask.give_up_after:
                    response.close()
                    self.outcomes.given_up += 1
                    return
                pieces += 1
                last = line[6:].strip()
            if last == b"[DONE]":
                self.outcomes.finished += 1
            else:
                self.outcomes.failed += 1
