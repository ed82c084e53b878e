"""Compiled constraints at work: which tokens a row may take next (``prompt.Guide``, ``prompt.RowGuide``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConstraintFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLMatcher
    from numpy.typing import NDArray

    from .vocabulary import Vocabulary


class MatcherGuide:
    """A grammar that replies must match, behind the model's reasoning. Immutable; any thread.

    ``matcher`` is at the grammar's start and is only ever copied. ``reasoning`` are the marks of the model's
    thoughts, if it has any; ``in_reasoning`` says that the reply begins inside them. Otherwise the grammar
    binds from the first token on, which may also be the one that opens the thoughts.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary: Vocabulary,
        reasoning: tuple[str, str] | None,
        *,
        in_reasoning: bool,
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._reasoning = reasoning
        self._in_reasoning = in_reasoning

    def start(self, emitted: Sequence[int]) -> MatchedRow:
        """Return the guide of a row which has emitted those tokens. Raises ConstraintFailed over others."""
        thoughts = None if self._reasoning is None else Thoughts(self._vocabulary, *self._reasoning)
        if thoughts is not None:
            thoughts.running = self._in_reasoning
        row = MatchedRow(self._matcher.deep_copy(), self._vocabulary, thoughts)
        for token in emitted:
            row.advance(token)
        return row


class MatchedRow:
    """One row's place in its grammar. One thread at a time.

    Both methods raise ConstraintFailed when the grammar went beyond a limit, or met a token that it does not
    allow; all later calls then do as well.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, thoughts: Thoughts | None) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._thoughts = thoughts
        self._begun = False

    def allowed(self, vocab: int) -> NDArray[np.bool_] | None:
        """Return which of ``vocab`` ids may come next; None, for all, while the model reasons.

        End tokens are among them exactly where the grammar is complete. Ids beyond the tokenizer's never are.
        """
        if self._thoughts is not None and self._thoughts.running:
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        known = np.unpackbits(bits, count=min(vocab, bits.size * 8), bitorder="little").astype(np.bool_)
        known[self._vocabulary.tokens.vocab_size :] = False
        allowed = np.zeros(vocab, dtype=np.bool_)
        allowed[: known.size] = known
        opening = self._opening
        if opening is not None and opening < vocab:
            allowed[opening] = True
        return allowed

    def advance(self, token: int) -> None:
        """Note the token that was taken."""
        thoughts = self._thoughts
        if thoughts is not None and thoughts.running:
            rest = thoughts.add(token)
            if rest:
                self._consume(self._vocabulary.tokens.tokenize_bytes(rest))
        elif thoughts is not None and token == self._opening:
            thoughts.running = True
        else:
            self._consume([token])
        self._begun = True

    @property
    def _opening(self) -> int | None:
        """The token that may open the model's thoughts here, if one may."""
        return None if self._thoughts is None or self._begun else self._thoughts.opening

    def _consume(self, tokens: list[int]) -> None:
        self._matcher.consume_tokens(tokens)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().splitlines()[0]
            raise ConstraintFailed(f"the reply cannot go on under its constraint: {reason}")


class Thoughts:
    """A reply's reasoning, up to the mark that ends it. ``opening`` is the token that begins it, if any."""

    def __init__(self, vocabulary: Vocabulary, start: str, end: str) -> None:
        self._tokens = vocabulary.tokens
        self._end_token = vocabulary.token_of(end)
        self._end = end.encode()
        self._tail = b""
        self.opening = vocabulary.token_of(start)
        self.running = False

    def add(self, token: int) -> bytes:
        """Take a token; return what it says behind the end mark, leading whitespace left out."""
        if token == self._end_token:
            self.running = False
            return b""
        if self._tokens.is_special_token(token) or token >= self._tokens.vocab_size:
            self._tail = b""
            return b""
        text = self._tail + self._tokens.decode_bytes([token])
        _, found, rest = text.partition(self._end)
        if not found:
            self._tail = text[-(len(self._end) - 1) :] if len(self._end) > 1 else b""
            return b""
        self.running = False
        return rest.lstrip()
