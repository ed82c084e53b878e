"""Which tokens of a reply were content and which reasoning, though text may settle long after its tokens."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from ...engine.port import TokenLogprob

Fate: TypeAlias = Literal["content", "reasoning", "other"]
"""What became of a stretch of text. Marks and white space around reasoning count as reasoning."""


class Attribution:
    """Follows one reply. The rule: a token is what the last character that came with it became.

    A token that came without text (the lane held it back) is what the next character becomes; behind the
    last one, what the last became. Loop thread only.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, tuple[TokenLogprob, ...]]] = deque()
        self._read = 0
        self._settled = 0
        self._last: Fate = "content"
        self._shown: list[TokenLogprob] = []
        self.reasoning_tokens = 0

    @property
    def settled(self) -> bool:
        """Whether nothing waits for its text's fate."""
        return not self._waiting

    def came(self, text: str, tokens: int, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Note what came together."""
        self._read += len(text)
        self._waiting.append((self._read + (not text), tokens, logprobs))

    def skip(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Note content that needs no following, once nothing waits: ``came`` and ``became`` in one."""
        self._read += len(text)
        self._settled += len(text)
        if logprobs:
            self._shown += logprobs

    def became(self, fate: Fate, size: int) -> None:
        """Say what the next ``size`` characters are."""
        self._settled += size
        self._last = fate
        self._pass(self._settled)

    def end(self) -> None:
        """Note that no text follows."""
        self._pass(self._settled + 1)

    def shown(self) -> tuple[TokenLogprob, ...]:
        """Return the logprobs of content that settled since the last call."""
        shown, self._shown = tuple(self._shown), []
        return shown

    def _pass(self, end: int) -> None:
        while self._waiting and self._waiting[0][0] <= end:
            _, tokens, logprobs = self._waiting.popleft()
            if self._last == "content":
                self._shown += logprobs
            elif self._last == "reasoning":
                self.reasoning_tokens += tokens
