"""Decoded tokens on their way out: through the row's text to its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import ConstraintFailed
from ..port import Delta, TokenLogprob
from .rows import DETOKENIZER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..models.batchable import EndingCodec
    from ..port import RowEvent
    from .batch import Decoded
    from .groups import DecodeGroups
    from .logprobs import RawLogprobs
    from .publishing import Publisher
    from .suspects import Suspects

_TEXTS_KEPT: Final = 65_536


class Delivery:
    """Turns a step's tokens into events. Lane thread only.

    A row that ends is handed to the publisher first; where that keeps its state, the row's end is the
    publisher's to report, after the state. A token without text fails its row alone, and so does a constraint
    that lets it take no further one.
    """

    def __init__(self, codec: EndingCodec, publisher: Publisher, suspects: Suspects) -> None:
        self._codec = codec
        self._publisher = publisher
        self._suspects = suspects
        self._texts: dict[int, str] = {}
        self.delivered = 0

    def events(self, batch: DecodeGroups, decoded: Decoded, now_s: float) -> Iterator[RowEvent]:
        """Return what one token of one row, which has not ended, brings about."""
        row, token, raw = decoded
        self._suspects.note("decode", (row,))
        if row.astray is not None:  # from its first token on
            yield row.failed(ConstraintFailed.code, row.astray, shown=True)
            return
        self.delivered += 1
        try:
            logprobs = () if raw is None else (self._named(token, raw),)
            events = row.accept(token, logprobs, self._codec.end_tokens, now_s)
        except DETOKENIZER_ERRORS as error:
            yield row.failed("detokenizer_error", f"token {token} has no text: {error}")
            return
        for event in events:
            if isinstance(event, Delta) or not self._publisher.leave(batch, row, event):
                yield event
        if row.astray is not None and not row.ended:
            yield row.failed(ConstraintFailed.code, row.astray, shown=True)

    def _named(self, token: int, raw: RawLogprobs) -> TokenLogprob:
        top = tuple((other, self._text_of(other), value) for other, value in raw.top)
        return TokenLogprob(token, self._text_of(token), raw.chosen, top)

    def _text_of(self, token: int) -> str:
        """Return a token's text on its own, as logprobs show it."""
        text = self._texts.get(token)
        if text is None:
            alone = self._codec.detokenizer()
            text = alone.add(token) + alone.flush()
            if len(self._texts) < _TEXTS_KEPT:
                self._texts[token] = text
        return text
