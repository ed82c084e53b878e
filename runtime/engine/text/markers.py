"""Reply markup in streamed text: special tokens are left out of it, but for those that mark up the reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reply_format import marks_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tokenizers import AddedToken

    from ..port import Detokenizer
    from ..prompt import ReplyFormat


@dataclass(frozen=True, slots=True)
class Markup:
    """Special tokens that are text in a reply: ``shown`` always, ``inner`` within a tool call.

    A call opens with one of ``opening`` and closes with one of ``closing``; its parser needs all that stands
    between, and some models have special tokens there. Tokens that end a reply are in none.
    """

    shown: Mapping[int, str]
    inner: Mapping[int, str]
    opening: Collection[int]
    closing: Collection[int]


def markup_of(added: Mapping[int, AddedToken], reply: ReplyFormat, ends: Collection[int]) -> Markup | None:
    """Return what is to be shown; None where no special token marks up replies."""
    marks = marks_of(reply)
    inner = {token: each.content for token, each in added.items() if each.special and token not in ends}
    shown = {token: text for token, text in inner.items() if any(text in mark for mark in marks)}
    if not shown:
        return None
    opening = frozenset(token for token, text in shown.items() if text == reply.tools.start)
    closing = frozenset(token for token, text in shown.items() if text == reply.tools.end)
    return Markup(shown, inner, opening, closing)


class MarkupDetokenizer:
    """A detokenizer that spells out reply markup; one per row, not thread-safe."""

    __slots__ = ("_inside", "_markup", "_text")

    def __init__(self, text: Detokenizer, markup: Markup) -> None:
        self._text = text
        self._markup = markup
        self._inside = False

    def add(self, token: int) -> str:
        """Return the text that ``token`` settled, possibly empty; never an incomplete character."""
        markup = self._markup
        if token not in markup.inner:
            return self._text.add(token)
        spelled = (markup.inner if self._inside else markup.shown).get(token)
        self._inside = token in markup.opening or (self._inside and token not in markup.closing)
        return self._text.add(token) if spelled is None else self._text.flush() + spelled

    def flush(self) -> str:
        """Return what is still held back; incomplete UTF-8 comes out as U+FFFD."""
        return self._text.flush()
