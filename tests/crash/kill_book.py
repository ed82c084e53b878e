"""What a client was answered and what it was told is durable: the expected state, kept outside the server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from samovar.storage.tokens import TokenIds

from .kill_serve import digest_of

if TYPE_CHECKING:
    import random

MAX_TOKENS = 3
REPLY = "\x01\x02"
"""What the scripted model feeds of its own reply: all ids but the last one's."""
ROOT_CHARACTERS = 8
LONGEST = 900


class Book:
    """Prompts by what may be expected of them. Any thread.

    ``answered``: since the last acknowledgement. ``acknowledged``: durable, said a flush or an orderly end.
    ``forgone``: answered, then killed before anybody said that they are durable.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._lock = threading.Lock()
        self._number = 0
        self.answered: dict[str, None] = {}
        self.acknowledged: dict[str, None] = {}
        self.forgone: dict[str, None] = {}

    def next_prompt(self) -> str:
        """Invent a prompt: a fresh one, or a further turn of one that was answered."""
        with self._lock:
            known = [*self.acknowledged, *self.answered]
        self._number += 1
        root = f"{self._number:0{ROOT_CHARACTERS}d}"[::-1]  # no two share as much as is worth keeping
        turn = root + self._words(self._chance.choice((0, 12, 150, 400)))
        earlier = self._chance.choice(known) if known and self._chance.random() < 0.5 else ""
        if not earlier or len(earlier) + len(turn) > LONGEST:
            return turn
        return earlier + REPLY + turn

    def _words(self, most: int) -> str:
        return "".join(self._chance.choices("abcdefgh ", k=self._chance.randint(most // 3, most)))

    def note_answer(self, prompt: str) -> None:
        with self._lock:
            if prompt not in self.acknowledged:
                self.answered[prompt] = None
                self.forgone.pop(prompt, None)

    def note_durable(self, prompts: list[str]) -> None:
        """Take an acknowledgement of what was answered before it was asked for."""
        with self._lock:
            for prompt in prompts:
                self.acknowledged[prompt] = None
                self.answered.pop(prompt, None)

    def note_death(self) -> None:
        """Expect nothing of what was answered and not acknowledged, but that it is right."""
        with self._lock:
            self.forgone |= self.answered
            self.answered = {}

    def so_far(self) -> list[str]:
        """Return what an acknowledgement asked for now will be about."""
        with self._lock:
            return list(self.answered)


def right_text(prompt: str) -> str:
    digest = digest_of(TokenIds.of(map(ord, prompt)))
    return "".join(f"{digest}.{n} " for n in range(MAX_TOKENS))


def root_of(prompt: str) -> str:
    """Return what all turns of a conversation, and no other prompt, begin with."""
    return prompt[:ROOT_CHARACTERS]


def check_answer(prompt: str, status: int, answer: Any) -> tuple[str, int]:
    """Check that a chat was answered as its prompt alone says; return tier and tokens not prefilled."""
    assert status == 200, f"a prompt of {len(prompt)} was answered {status}: {answer}"
    assert answer["choices"][0]["message"]["content"] == right_text(prompt), f"wrong text for {prompt!r}"
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    reuse = answer["usage"]["samovar"]
    assert reuse["cached_tokens"] < len(prompt)
    return reuse["tier"], reuse["cached_tokens"]
