"""What was answered before and must be answered again: the expected state, kept outside the server.

The caveat of DESIGN §7.9: rows in company are computed in another order than alone, which may turn a choice
between two tokens that are as good as equal. So every reply is recorded with how far the likeliest token was
ahead of the second at each place, and a reply may part from its record only where that is below ``NEAR``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

    from .profile import Profile

NEAR = 1e-3
"""Nats. Reordered float32 sums differ by some 1e-5."""
SLACK = 4
"""Characters: the other token may begin with the one that was recorded."""
DEEPEST = 6
WORDS = (
    *(
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "while",
        "seven",
        "wizards",
        "mix",
    ),
    *("potions", "in", "their", "old", "copper", "samovar", "and", "nobody", "asks", "why", "tea", "tastes"),
    *("better", "from", "small", "glass", "than", "any", "cup", "of", "the", "king", "who", "never", "slept"),
)


@dataclass(frozen=True)
class Reply:
    """A reply as a client got it. ``near``: from and to which character the second token was as good."""

    text: str
    finish: str
    prompt_tokens: int
    cached_tokens: int
    tier: str
    near: tuple[tuple[int, int], ...] = ()
    miss_reason: str | None = None


@dataclass(eq=False)
class Talk:
    """A prompt, messages or one text, and its greedy reply once there was one."""

    messages: tuple[dict[str, str], ...]
    max_tokens: int
    text: str = ""
    depth: int = 1
    reply: Reply | None = None
    grown: Talk | None = None

    @property
    def fields(self) -> dict[str, Any]:
        prompt = {"messages": list(self.messages)} if self.messages else {"prompt": self.text}
        return {**prompt, "max_tokens": self.max_tokens, "temperature": 0}

    @property
    def speakable(self) -> bool:
        """Whether every API takes it: an empty turn is not for all."""
        return bool(self.messages) and all(message["content"].strip() for message in self.messages)


def parted(recorded: Reply, text: str) -> int | None:
    """Return where ``text`` parts from its record; None where it does not, or may."""
    if text == recorded.text:
        return None
    at = next(
        (n for n, (a, b) in enumerate(zip(recorded.text, text, strict=False)) if a != b),
        min(len(recorded.text), len(text)),
    )
    return None if any(start <= at <= end + SLACK for start, end in recorded.near) else at


@dataclass
class Book:
    """All talks, and those whose state is acknowledged to be on disk. Any thread."""

    profile: Profile
    talks: list[Talk] = field(default_factory=list[Talk])
    durable: dict[Talk, None] = field(default_factory=dict[Talk, None])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fresh(self, chance: random.Random) -> Talk:
        """Invent a prompt; two of three conversations begin with one of three system prompts."""
        if chance.random() < 0.2:
            return Talk((), self._limit(chance), text=self._turn(chance))
        system = chance.choice(("tea", "milk", "lemon", "", ""))
        head = (
            ()
            if not system
            else (
                {
                    "role": "system",
                    "content": f"Serve {system}. " + " ".join(WORDS[: self.profile.system_words]),
                },
            )
        )
        return Talk((*head, {"role": "user", "content": self._turn(chance)}), self._limit(chance))

    def further(self, talk: Talk, chance: random.Random) -> Talk:
        """Return the next turn of a talk: one and the same for all who ask."""
        assert talk.reply is not None
        said = {"role": "assistant", "content": talk.reply.text}
        turn = {"role": "user", "content": self._turn(chance)}
        with self.lock:
            if talk.grown is None:
                talk.grown = Talk((*talk.messages, said, turn), self._limit(chance), depth=talk.depth + 1)
            return talk.grown

    def record(self, talk: Talk, reply: Reply) -> Reply:
        """Take down the first reply to a talk; return the one that counts."""
        with self.lock:
            if talk.reply is None:
                talk.reply = reply
                self.talks.append(talk)
            return talk.reply

    def draw(self, chance: random.Random) -> Talk | None:
        """Return a talk with a reply, mostly one of the last thirty."""
        with self.lock:
            known = self.talks if chance.random() < 0.2 else self.talks[-30:]
            return chance.choice(known) if known else None

    def newest(self, count: int) -> list[Talk]:
        with self.lock:
            return self.talks[-count:]

    def _turn(self, chance: random.Random) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(*self.profile.turn_words))) + "?"

    def _limit(self, chance: random.Random) -> int:
        return chance.randint(*self.profile.max_tokens)
