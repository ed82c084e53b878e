"""Which token ids a model really saw for a text: provenance of generated history (seed §5.7, I1 and I2).

A sampled reply need not be the canonical encoding of its own text, so the next turn, encoded afresh, would
not begin with the ids that the cache knows. A TokenHistory keeps the ids of finished turns with their text
and gives them back for any later text that begins the same way.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....storage.tokens import ITEM_BYTES, TokenIds
from .seen import seen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from .seen import Offsets, Seen


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
        self._entries: list[Seen] = []  # least recently used first
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
                self._refresh(known, tokens)
                return
        if int(_ids(tokens).max()) >= len(self._pieces):
            self._dropped += 1  # the tokenizer does not know what it says
            return
        self._decoded += 1
        entry = seen(tokens, self._pieces, self._added[_ids(tokens)])
        for known in list(self._entries):
            if _continues(tokens, known.tokens):
                entry = entry.with_cuts_of(known)
                self._remove(known)
            elif known.text == entry.text:
                self._remove(known)  # the same text from other ids: the newest wins
        self._entries.append(entry)
        self._size_bytes += entry.size_bytes
        while self._size_bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._remove(self._entries[0])
            self._dropped += 1

    def _refresh(self, known: Seen, tokens: TokenIds) -> None:
        """Make ``known`` the last used one; where ``tokens``, which it continues, end, it can be cut."""
        self._remove(known)
        if not known.may_be_cut_after(len(tokens)):
            self._decoded += 1
            known = known.with_cuts_of(seen(tokens, self._pieces, self._added[_ids(tokens)]))
        self._entries.append(known)
        self._size_bytes += known.size_bytes

    def _remove(self, entry: Seen) -> None:
        self._entries.remove(entry)
        self._size_bytes -= entry.size_bytes

    def _longest(self, text: str, may_cut: Callable[[int], bool]) -> tuple[Recalled | None, Seen | None]:
        best, owner, length = None, None, 0
        for entry in reversed(self._entries):
            if not entry.may_reach_beyond(text, length):
                continue
            cut = entry.last_cut(text, length, may_cut)
            if cut is not None:
                length, owner = int(entry.cut_chars[cut]), entry
                best = Recalled(entry.tokens[: int(entry.cut_tokens[cut])], length)
        return best, owner


def _ids(tokens: TokenIds) -> NDArray[np.uint32]:
    return np.frombuffer(tokens.to_bytes(), dtype="<u4")


def _continues(longer: TokenIds, shorter: TokenIds) -> bool:
    size = len(shorter)
    return size <= len(longer) and longer[size - 1] == shorter[-1] and longer.starts_with(shorter)
