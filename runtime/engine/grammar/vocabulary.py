"""A model's tokenizer as llguidance sees it, and how marks of a reply are written in its grammars."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from llguidance import LLTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenizers import Tokenizer

_TOKENIZER_ERRORS: Final = (ValueError, RuntimeError, TypeError, LookupError)


class UnusableTokenizer(Exception):
    """Replies of a model with this tokenizer cannot be constrained. The text says why."""


class Vocabulary:
    """One tokenizer, made ready for grammars once (0.3 s for 50,000 tokens). Immutable; any thread.

    ``end_tokens`` are allowed where a grammar is complete. Raises UnusableTokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, end_tokens: Iterable[int]) -> None:
        ends = sorted(end_tokens)
        if not ends:
            raise UnusableTokenizer("this model has no end token, so a constrained reply could never end")
        try:
            self.tokens = LLTokenizer(tokenizer.to_str(), eos_token=ends)
        except _TOKENIZER_ERRORS as error:
            raise UnusableTokenizer(f"replies of this model cannot be constrained: {error}") from error
        self.end_tokens = frozenset(ends)
        self._added = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items()}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def token_of(self, mark: str) -> int | None:
        """Return the added token that spells all of ``mark``, if there is one."""
        return self._added.get(mark)

    def is_special(self, mark: str) -> bool:
        """Whether ``mark`` is a special token: ordinary tokens cannot spell it."""
        token = self._added.get(mark)
        return token is not None and self.tokens.is_special_token(token)

    def parts(self, text: str) -> list[str]:
        """Cut ``text`` into added tokens and what is between them."""
        parts: list[str] = []
        at = 0
        for found in self._marks.finditer(text):
            parts += [text[at : found.start()], found.group()]
            at = found.end()
        return [part for part in (*parts, text[at:]) if part]

    def literal(self, text: str) -> str:
        """Return ``text`` as a sequence of Lark items; added tokens in it must come as those tokens."""
        return " ".join(self._item(part) for part in self.parts(text)) or '""'

    def _item(self, part: str) -> str:
        token = self._added.get(part)
        return quoted(part) if token is None else f"<[{token}]>"


def quoted(text: str) -> str:
    """Return ``text`` as a string of Lark."""
    return json.dumps(text, ensure_ascii=False)
