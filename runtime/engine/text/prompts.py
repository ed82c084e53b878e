"""From rendered text to a RenderedPrompt: ids as the model saw them, and how many of them will stay.

Texts are marked ones (``controls.py``): a control token is one lone surrogate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ....storage.tokens import TokenIds
from ..prompt import RenderedPrompt
from .seen import text_of, utf8
from .turns import common_items, settled_tokens, shared_chars, tails

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from .history import HistoryFigures, TokenHistory

    Offsets: TypeAlias = NDArray[np.int64]

_CUT_CHARS = 48


class Encoder(Protocol):
    """The tokenizer as it is needed here. Any thread."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of ``text`` alone."""
        ...

    def encode_with_ends(self, text: str) -> tuple[Sequence[int], Offsets | None]:
        """Return the ids and where each ends, in characters; None where the tokenizer cannot tell."""
        ...


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A text with its ids. ``ends`` counts items of ``raw``: bytes or characters; None when unknown."""

    tokens: TokenIds
    raw: bytes | str
    ends: Offsets | None

    def count_within(self, limit: int) -> int:
        """Return how many tokens lie in the first ``limit`` items whole."""
        assert self.ends is not None
        beyond = self.ends > limit
        return int(beyond.argmax()) if beyond.any() else len(self.tokens)

    def text_of(self, start: int, stop: int) -> str:
        """Return the text of some tokens."""
        assert self.ends is not None
        part = self.raw[int(self.ends[start - 1]) if start else 0 : int(self.ends[stop - 1])]
        return part if isinstance(part, str) else text_of(part)


class PromptEncoder:
    """Encodes prompts and remembers what was seen. Any thread; several at once.

    With a ``history`` (byte-level tokenizers: there bytes say exactly which text ids stand for) a prompt
    that begins as an earlier turn did keeps that turn's ids, if the whole then spells the text exactly;
    otherwise it is encoded canonically. ``added`` are the ids of added tokens, special or not.
    """

    def __init__(self, encoder: Encoder, history: TokenHistory | None, added: Collection[int]) -> None:
        self._encoder = encoder
        self._history = history
        self._added = added

    def prompt(self, text: str, following: Sequence[str]) -> RenderedPrompt:
        """Return ``text`` as ids; the boundary is what they share with every one of ``following``."""
        encoded = self._encode(text)
        shared = shared_chars(text, following)
        if encoded.ends is None:
            return RenderedPrompt(encoded.tokens, self._compared(encoded.tokens, shared, following))
        limit = len(utf8(text[:shared])) if isinstance(encoded.raw, bytes) else shared
        boundary = settled_tokens(
            encoded.tokens,
            encoded.count_within(limit),
            window=encoded.text_of,
            encode=self._encoder.encode,
            added=self._added,
            endings=tails(following, shared),
        )
        return RenderedPrompt(encoded.tokens, boundary)

    def remember(self, tokens: TokenIds) -> None:
        """Note what a model saw. Cheap."""
        if self._history is not None:
            self._history.remember(tokens)

    def seed(self, sequences: Sequence[TokenIds]) -> None:
        """Remember what is known from earlier, the most useful last. May take seconds."""
        if self._history is not None:
            self._history.seed(sequences)

    def figures(self) -> HistoryFigures | None:
        """Return what is remembered; None without a history."""
        return None if self._history is None else self._history.figures()

    def _encode(self, text: str) -> _Encoded:
        if self._history is not None:
            raw = utf8(text)
            recalled = self._recalled(text, self._history)
            tokens = recalled or TokenIds.of(self._encoder.encode(text))
            if self._history.decode(tokens) == raw:
                return _Encoded(tokens, raw, self._history.ends(tokens))
            if recalled is not None:  # a character was cut in two, and the client sent its replacement
                return _Encoded(recalled, text, None)
        ids, offsets = self._encoder.encode_with_ends(text)
        return _Encoded(TokenIds.of(ids), text, offsets)

    def _recalled(self, text: str, history: TokenHistory) -> TokenIds | None:
        """Return ids that begin as they were seen and spell ``text`` exactly, if there are such."""
        found = history.recall(text, lambda position: self._may_cut(text, position, history))
        if found is None:
            return None
        rest = text[found.chars :]
        ids = self._encoder.encode(rest)
        if history.decode(ids) != utf8(rest):
            return None
        return TokenIds.from_bytes(found.tokens.to_bytes() + TokenIds.of(ids).to_bytes())

    def _may_cut(self, text: str, position: int, history: TokenHistory) -> bool:
        """Whether canonical tokens of ``text`` meet at ``position`` too, as far as its surroundings say."""
        after = self._encoder.encode(text[position : position + _CUT_CHARS])
        if not after or after[0] in self._added:
            return True
        start = max(0, position - _CUT_CHARS)
        around = TokenIds.of(self._encoder.encode(text[start : position + _CUT_CHARS]))
        return len(utf8(text[start:position])) in history.ends(around)

    def _compared(self, tokens: TokenIds, shared: int, following: Sequence[str]) -> int:
        """Return the boundary for a tokenizer that tells no offsets: what longer texts begin with too."""
        texts = [other[: shared + _CUT_CHARS] for other in following]
        return min((common_items(tokens, self._encoder.encode(other)) for other in texts), default=0)
