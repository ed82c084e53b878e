"""Which token ids a model really saw for a text: provenance of generated history (seed §5.7, I1 and I2).

A sampled reply need not be the canonical encoding of its own text, so the next turn, encoded afresh, would
not begin with the ids that the cache knows. A TokenHistory keeps the ids of finished turns with their text
and gives them back for any later text that begins the same way.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ...storage.tokens import ITEM_BYTES, TokenIds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from numpy.typing import NDArray

    Offsets: TypeAlias = NDArray[np.int64]

_ITEM_BYTES = 8
_WINDOW_CHARS = 16


@dataclass(frozen=True, slots=True)
class Recalled:
    """The first ``chars`` characters of a text were seen as ``tokens``."""

    tokens: TokenIds
    chars: int


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """What a history holds. ``decoded`` counts sequences turned into text, ``dropped`` those let go."""

    entries: int
    size_bytes: int
    pending: int
    decoded: int
    dropped: int


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """One sequence. It may be cut after ``cut_tokens[i]`` tokens, which are ``cut_chars[i]`` characters.

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
        cuts = len(self.cut_chars) * (2 * _ITEM_BYTES + 1)
        return len(self.tokens) * ITEM_BYTES + sys.getsizeof(self.text) + cuts


class TokenHistory:
    """Ids and text of what was generated, within limits, least recently used first to go.

    ``pieces`` are the bytes of every id, special tokens spelled out; ``added`` are the ids that the tokenizer
    looks for before anything else, so that text on either side of them is encoded apart. ``remember`` may be
    called from any thread and never waits; the rest is done by whoever calls ``recall`` or ``seed`` next.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        added: Collection[int],
        *,
        max_bytes: int = 64 << 20,
        max_entries: int = 512,
    ) -> None:
        self._pieces = pieces
        self._added = np.zeros(len(pieces), dtype=np.bool_)
        self._added[[token for token in added if token < len(pieces)]] = True
        self._sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._pending: deque[TokenIds] = deque(maxlen=max_entries)
        self._entries: list[_Entry] = []  # least recently used first
        self._size_bytes = 0
        self._decoded = 0
        self._dropped = 0

    def remember(self, tokens: TokenIds) -> None:
        """Note a prompt with its reply. Cheap; of more than ``max_entries`` waiting the oldest go."""
        self._pending.append(tokens)

    def seed(self, sequences: Iterable[TokenIds]) -> None:
        """Remember many sequences, the most useful last, and take them in at once.

        Of more than fits only the last are looked at. Takes about half a second for a million tokens.
        """
        chosen, room = list[TokenIds](), self._max_bytes
        for tokens in reversed([*sequences]):
            room -= 2 * ITEM_BYTES * len(tokens)  # text takes about as much as ids
            if room < 0 or len(chosen) == self._max_entries:
                break
            chosen.append(tokens)
        for tokens in reversed(chosen):
            with self._lock:
                self._take_in(tokens)

    def recall(self, text: str, may_cut: Callable[[int], bool]) -> Recalled | None:
        """Return the longest remembered beginning of ``text``; None where nothing is known.

        It ends where an added token ends, or where ``may_cut(position)`` says that ``text`` can be encoded
        alone from there on.
        """
        with self._lock:
            self._settle()
            best, entry = self._longest(text, may_cut)
            if entry is None or best is None:
                return None
            self._entries.remove(entry)
            self._entries.append(entry)
            return best

    def figures(self) -> HistoryFigures:
        """Return the present figures."""
        with self._lock:
            pending = len(self._pending)
            return HistoryFigures(len(self._entries), self._size_bytes, pending, self._decoded, self._dropped)

    def decode(self, tokens: Sequence[int]) -> bytes | None:
        """Return the bytes of ``tokens``, special tokens spelled out; None for an id without bytes."""
        ids = tokens.tolist() if isinstance(tokens, TokenIds) else tokens
        try:
            return b"".join([self._pieces[token] for token in ids])
        except IndexError:
            return None

    def ends(self, tokens: TokenIds) -> Offsets:
        """Return where every token ends, in bytes. Call with ids that ``decode`` knows."""
        return np.cumsum(self._sizes[_ids(tokens)])

    # -- under the lock -------------------------------------------------------------------------------

    def _settle(self) -> None:
        while True:
            try:
                tokens = self._pending.popleft()
            except IndexError:
                return
            self._take_in(tokens)

    def _take_in(self, tokens: TokenIds) -> None:
        """Keep ``tokens`` in place of every sequence that they continue, unless they are known already."""
        if not tokens:
            return
        for known in reversed(self._entries):
            if _continues(known.tokens, tokens):
                self._entries.remove(known)
                self._entries.append(known)
                return
        entry = self._decode_entry(tokens)
        if entry is None:
            return
        for known in list(self._entries):
            if _continues(tokens, known.tokens):
                entry = _with_cuts_of(entry, known)
                self._remove(known)
            elif known.text == entry.text:
                self._remove(known)  # the same text from other ids: the newest wins
        self._entries.append(entry)
        self._size_bytes += entry.size_bytes
        while self._size_bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._remove(self._entries[0])
            self._dropped += 1

    def _remove(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._size_bytes -= entry.size_bytes

    def _mask(self, tokens: TokenIds) -> NDArray[np.bool_]:
        return self._added[_ids(tokens)]

    def _decode_entry(self, tokens: TokenIds) -> _Entry | None:
        """Return the entry of ``tokens``; None for ids that the tokenizer does not know."""
        ids = tokens.tolist()
        if max(ids) >= len(self._pieces):
            self._dropped += 1
            return None
        self._decoded += 1
        added = self._mask(tokens)
        spots = np.flatnonzero(added)
        cuts = np.unique(np.concatenate([spots, spots + 1, [len(ids)]]))
        cuts = cuts[cuts > 0]
        texts, start = list[str](), 0
        for cut in cuts.tolist():
            texts.append(b"".join([self._pieces[token] for token in ids[start:cut]]).decode(errors="replace"))
            start = cut
        chars = np.cumsum([len(text) for text in texts])
        return _Entry(tokens, "".join(texts), chars, cuts, added[cuts - 1])

    def _longest(self, text: str, may_cut: Callable[[int], bool]) -> tuple[Recalled | None, _Entry | None]:
        best, owner, length = None, None, 0
        for entry in reversed(self._entries):
            if not _may_reach_beyond(entry, text, length):
                continue
            common = common_chars(entry.text, text)
            cut = _last_cut(entry, common, length, may_cut)
            if cut is not None:
                length, owner = int(entry.cut_chars[cut]), entry
                best = Recalled(entry.tokens[: int(entry.cut_tokens[cut])], length)
        return best, owner


def _ids(tokens: TokenIds) -> NDArray[np.uint32]:
    return np.frombuffer(tokens.to_bytes(), dtype="<u4")


def _continues(longer: TokenIds, shorter: TokenIds) -> bool:
    size = len(shorter)
    return size <= len(longer) and longer[size - 1] == shorter[-1] and longer.starts_with(shorter)


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


def _may_reach_beyond(entry: _Entry, text: str, length: int) -> bool:
    """Whether the entry may have a cut beyond ``length`` that it shares with ``text``. A few comparisons.

    Most of those that share only a beginning (one system prompt) differ just before their next cut.
    """
    cut = int(np.searchsorted(entry.cut_chars, length, side="right"))
    if cut == len(entry.cut_chars):
        return False
    end = int(entry.cut_chars[cut])
    return text.startswith(entry.text[max(0, end - _WINDOW_CHARS) : end], max(0, end - _WINDOW_CHARS))


def _last_cut(entry: _Entry, common: int, beyond: int, may_cut: Callable[[int], bool]) -> int | None:
    """Return the last cut of ``entry`` that can be used, longer than ``beyond`` characters."""
    cut = int(np.searchsorted(entry.cut_chars, common, side="right")) - 1
    while cut >= 0 and entry.cut_chars[cut] > beyond:
        if entry.cut_safe[cut] or may_cut(int(entry.cut_chars[cut])):
            return cut
        cut -= 1
    return None


def _with_cuts_of(entry: _Entry, shorter: _Entry) -> _Entry:
    """Return ``entry`` with the places to cut of a sequence that it continues, its end among them."""
    if not entry.text.startswith(shorter.text):
        return entry  # it ended within a character
    tokens = np.concatenate([entry.cut_tokens, shorter.cut_tokens])
    cut_tokens, first = np.unique(tokens, return_index=True)
    chars = np.concatenate([entry.cut_chars, shorter.cut_chars])[first]
    safe = np.concatenate([entry.cut_safe, shorter.cut_safe])[first]
    return replace(entry, cut_chars=chars, cut_tokens=cut_tokens, cut_safe=safe)
