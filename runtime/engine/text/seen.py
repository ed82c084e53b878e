"""One remembered sequence: token ids, the text that they spell, and where it may be cut.

Texts are marked ones (``controls.py``): a control token is one lone surrogate.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ....storage.tokens import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ....storage.tokens import TokenIds

    Offsets: TypeAlias = NDArray[np.int64]

_CUT_BYTES = 17
_WINDOW_CHARS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A sequence as a model saw it. Cut ``i`` follows ``cut_tokens[i]`` tokens, ``cut_chars[i]`` characters.

    ``cut_safe[i]``: the token before is an added one, which no canonical token spans. Any other cut stands
    before an added token or where a remembered sequence ended, and is safe if the text goes on suitably.
    """

    tokens: TokenIds
    text: str
    cut_chars: Offsets
    cut_tokens: Offsets
    cut_safe: NDArray[np.bool_]

    @property
    def size_bytes(self) -> int:
        """Memory that it takes."""
        return len(self.tokens) * ITEM_BYTES + sys.getsizeof(self.text) + len(self.cut_chars) * _CUT_BYTES

    def may_reach_beyond(self, text: str, length: int) -> bool:
        """Whether there may be a cut beyond ``length`` up to which ``text`` is the same. A few comparisons.

        Most sequences that share only a beginning (one system prompt) differ just before their next cut.
        """
        cut = int(np.searchsorted(self.cut_chars, length, side="right"))
        if cut == len(self.cut_chars):
            return False
        end = int(self.cut_chars[cut])
        start = max(0, end - _WINDOW_CHARS)
        return text.startswith(self.text[start:end], start)

    def last_cut(self, text: str, beyond: int, may_cut: Callable[[int], bool]) -> int | None:
        """Return the last cut after more than ``beyond`` characters, all of ``text``, that can be used."""
        common = common_chars(self.text, text)
        cut = int(np.searchsorted(self.cut_chars, common, side="right")) - 1
        while cut >= 0 and self.cut_chars[cut] > beyond:
            if self.cut_safe[cut] or may_cut(int(self.cut_chars[cut])):
                return cut
            cut -= 1
        return None

    def may_be_cut_after(self, tokens: int) -> bool:
        """Whether there is a cut after that many tokens."""
        return bool(np.isin(tokens, self.cut_tokens))

    def with_cuts_of(self, shorter: Seen) -> Seen:
        """Return this with the places to cut of a sequence that it continues, its end among them."""
        if not self.text.startswith(shorter.text):
            return self  # it ended within a character
        tokens = np.concatenate([self.cut_tokens, shorter.cut_tokens])
        cut_tokens, first = np.unique(tokens, return_index=True)
        chars = np.concatenate([self.cut_chars, shorter.cut_chars])[first]
        safe = np.concatenate([self.cut_safe, shorter.cut_safe])[first]
        return replace(self, cut_chars=chars, cut_tokens=cut_tokens, cut_safe=safe)


def seen(tokens: TokenIds, pieces: Sequence[bytes], added: NDArray[np.bool_]) -> Seen:
    """Return ``tokens`` with their text. ``added`` says of each whether it is an added token.

    Bytes that are no character come out as U+FFFD. IndexError for an id without bytes.
    """
    ids = tokens.tolist()
    spots = np.flatnonzero(added)
    cuts = np.unique(np.concatenate([spots, spots + 1, [len(ids)]]))
    cuts = cuts[cuts > 0]
    texts, start = list[str](), 0
    for cut in cuts.tolist():
        piece = b"".join([pieces[token] for token in ids[start:cut]])
        # Only an added token may be a mark; bytes that a model made look like one are no character.
        texts.append(text_of(piece) if added[start] else piece.decode(errors="replace"))
        start = cut
    chars = np.cumsum([len(text) for text in texts])
    return Seen(tokens, "".join(texts), chars, cuts, added[cuts - 1])


def utf8(text: str) -> bytes:
    """Return the bytes of a marked text: lone surrogates take three as if they were characters."""
    return text.encode("utf-8", "surrogatepass")


def text_of(data: bytes) -> str:
    """Return the marked text of bytes; where they are no characters, U+FFFD stands for those."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode(errors="replace")


def common_chars(first: str, second: str) -> int:
    """Return how many characters both begin with. Cost grows with the common part."""
    end = min(len(first), len(second))
    low, step = 0, 64
    while low < end:  # the first ``low`` are equal
        high = min(low + step, end)
        if first[low:high] != second[low:high]:
            break
        low, step = high, step * 4
    else:
        return end
    while step > 1:
        step = (step + 1) // 2
        high = min(low + step, end)
        if first[low:high] == second[low:high]:
            low = high
    return low
