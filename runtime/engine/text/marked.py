"""Marked text to ids: marks become control tokens, everything else becomes text, whatever it spells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .controls import Controls
    from .prompts import Offsets
    from .tokenizing import BlindTokenizing, Tokenizing


class MarkedEncoder:
    """Encodes marked texts (``controls.py``). Any thread.

    Guarantee: the control tokens among the ids are the marks of the text, no more and no fewer. A text that
    spells none is encoded by the tokenizer as ever; one that does is encoded between its marks by a copy of
    the tokenizer which does not see them. That copy is made by the first such text.
    """

    def __init__(self, tokenizing: Tokenizing, controls: Controls) -> None:
        self._tokenizing = tokenizing
        self._controls = controls
        self._lock = threading.Lock()
        self._blind: BlindTokenizing | None = None
        self._made = False

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of ``text``, without special tokens added."""
        if not self._controls.spelled_in(text):
            ids = self._tokenizing.encode(self._controls.unmarked(text))
            if self._exact(text, ids):
                return ids
        return self._between_marks(text)[0]

    def encode_with_ends(self, text: str) -> tuple[Sequence[int], Offsets | None]:
        """Return the ids and where each ends, in characters; None where the tokenizer cannot tell."""
        if not self._controls.spelled_in(text):
            ids, ends = self._tokenizing.encode_with_ends(self._controls.unmarked(text))
            if self._exact(text, ids):
                if ends is None:
                    return ids, None
                return ids, ends - self._controls.shortened_by(np.array(ids, dtype=np.int64))
        return self._between_marks(text)

    def _exact(self, text: str, ids: Sequence[int]) -> bool:
        """Whether the marks became control tokens and nothing else did (a normalizer may make one)."""
        return self._controls.among(np.array(ids, dtype=np.int64)) == self._controls.marked_ids(text)

    def _between_marks(self, text: str) -> tuple[list[int], Offsets | None]:
        ids, place = list[int](), 0
        ends: list[Offsets] = []
        known, swallows = True, False
        for part, control in self._controls.parts(text):
            body = part.lstrip() if swallows else part
            body_start = place + len(part) - len(body)
            if control is not None and control.lstrip:
                body = body.rstrip()
            some, their_ends = self._as_text(body, first=place == 0)
            ids.extend(some)
            place += len(part)
            if their_ends is None:
                known = False
            else:
                ends.append(their_ends + body_start)
            if control is not None:
                place += 1
                ids.append(control.id)
                ends.append(np.array([place], dtype=np.int64))
                swallows = control.rstrip
        return ids, np.concatenate(ends) if known else None

    def _as_text(self, text: str, *, first: bool) -> tuple[Sequence[int], Offsets | None]:
        if not text:
            return [], np.zeros(0, dtype=np.int64)
        blind = self._unseeing()
        if blind is not None:
            return blind.encode_with_ends(text, first=first)
        parts = [self._tokenizing.encode(part) for part in self._controls.in_two(text)]
        return [token for part in parts for token in part], None

    def _unseeing(self) -> BlindTokenizing | None:
        with self._lock:
            if not self._made:
                self._blind, self._made = self._tokenizing.blind_to(self._controls), True
            return self._blind
