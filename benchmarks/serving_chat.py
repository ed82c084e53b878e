"""The client of the serving benchmark: prompts that no server has seen, and one streamed chat, timed.

A prompt differs from every other one from the first words of its system message on, so that no prefix cache
helps anybody, and asks for a story, which the default model tells for longer than any reply here.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = (
    *("river", "stone", "garden", "lantern", "winter", "market", "window", "copper", "music", "paper"),
    *("harbor", "shadow", "silver", "morning", "bridge", "forest", "candle", "letter", "orchard", "thunder"),
    *("village", "mirror", "blanket", "compass", "meadow", "kettle", "signal", "velvet"),
)

Messages = list[dict[str, str]]


class ChatFailed(Exception):
    """A request did not end in a reply: the message says how. ``hung``: the server no longer answers."""

    def __init__(self, message: str, *, hung: bool = False) -> None:
        super().__init__(message)
        self.hung = hung


class Prompts:
    """Makes prompts from one seed: the same for every server that is given the same seed."""

    def __init__(self, seed: int, model: Path) -> None:
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def short(self) -> Messages:
        """Return a prompt of about 40 tokens."""
        return self._messages(" ".join(self._chance.choices(WORDS, k=3)))

    def long(self, tokens: int) -> Messages:
        """Return a prompt of ``tokens`` tokens of text, the template's few not counted."""
        words: list[str] = []
        messages = self._messages("")
        missing = tokens - self._length(messages)
        while missing > 0:
            words += self._chance.choices(WORDS, k=max(1, missing * 3 // 4))
            missing = tokens - self._length(messages) - self._count(" ".join(words))
        messages[-1]["content"] += " ".join(words)
        return messages

    def _messages(self, subject: str) -> Messages:
        start = " ".join(self._chance.choices(WORDS, k=4))
        return [
            {"role": "system", "content": f"{start} {next(self._numbers)}: you tell stories."},
            {"role": "user", "content": f"Tell a very long story about these things: {subject}"},
        ]

    def _length(self, messages: Messages) -> int:
        return sum(self._count(message["content"]) for message in messages)

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass
class Reply:
    """One streamed reply: when it was asked for and when each piece of text came (s, one clock).

    ``cached_tokens``: how much of the prompt the server says it had; None where it does not say.
    """

    asked_s: float
    pieces_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    tokens: int = 0
    text: str = ""

    @property
    def ttft_s(self) -> float:
        """Seconds from asking to the first piece of text, or to the end where there was none."""
        return self.pieces_s[0] - self.asked_s

    @property
    def tokens_per_piece(self) -> float:
        """1 where the server sends every token by itself and says how many there were."""
        return self.tokens / len(self.pieces_s)

    @property
    def pauses(self) -> list[tuple[float, float]]:
        """The pauses between pieces: when each began and ended."""
        return list(itertools.pairwise(self.pieces_s))


@dataclass(frozen=True)
class Chat:
    """How to reach one server. Any thread."""

    port: int
    model: str
    timeout_s: float

    def ask(self, messages: Messages, tokens: int, on_piece: Callable[[int], None] | None = None) -> Reply:
        """Stream a greedy reply of ``tokens`` tokens; ``on_piece`` hears the number of each piece.

        Raises ChatFailed: an error status, an error event, nothing for ``timeout_s``, or no text at all.
        """
        try:
            return self._ask(messages, tokens, on_piece)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ChatFailed(f"{type(error).__name__}: {error}", hung=True) from error

    def _ask(self, messages: Messages, tokens: int, on_piece: Callable[[int], None] | None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
        reply = Reply(time.perf_counter())
        try:
            body = json.dumps(self._body(messages, tokens))
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise ChatFailed(f"{response.status}: {response.read()[:300]!r}")
            while line := response.readline():
                if line.startswith(b"data: {") and _note(reply, json.loads(line[6:])) and on_piece:
                    on_piece(len(reply.pieces_s))
                if time.perf_counter() - reply.asked_s > self.timeout_s:
                    raise ChatFailed(f"not at an end in {self.timeout_s:.0f} s", hung=True)
        finally:
            connection.close()
        reply.ended_s = time.perf_counter()
        if not reply.pieces_s:
            raise ChatFailed("no text came")
        reply.tokens = reply.tokens or len(reply.pieces_s)
        return reply

    def _body(self, messages: Messages, tokens: int) -> dict[str, object]:
        return {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": tokens,
            "temperature": 0.0,
        }


def _note(reply: Reply, event: dict[str, Any]) -> bool:
    """Take in one event; True when it brought text.

    A reply that ends without any has its first sign of life there: the model's first token was its end.
    """
    if error := event.get("error"):
        raise ChatFailed(f"error event: {str(error)[:300]}")
    if usage := event.get("usage"):
        reply.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        reply.tokens = int(usage.get("completion_tokens") or 0)
        reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    choices = event.get("choices")
    delta: dict[str, Any] = (choices[0].get("delta") or {}) if choices else {}
    text = delta.get("content")
    ended = bool(choices) and choices[0].get("finish_reason") is not None
    if not text and not (ended and not reply.pieces_s):
        return False
    reply.pieces_s.append(time.perf_counter())
    reply.text += text or ""
    return True
