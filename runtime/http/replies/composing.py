"""From the parts of a reply to its pieces: white space at the borders of blocks, and calls that are none.

White space right before and right behind a block (reasoning, a tool call) is dropped, and so is that at the
ends of reasoning; all else is exact. A block that is no call is content with its marks and the white space
around it: nothing of it is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .attribution import Attribution
from .calls import Calls
from .graphemes import settled
from .pieces import Reasoning, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....actors.requests import GenerationRequest
    from .attribution import Fate
    from .marks import Part
    from .pieces import Piece
    from .tool_parsing import ToolText


class Composer:
    """Composes one choice. ``one_call``: what follows the first call is left out. Loop thread only."""

    def __init__(
        self, request: GenerationRequest, tools: ToolText, *, one_call: bool, in_reasoning: bool
    ) -> None:
        self.calls = Calls(request, tools, self._put, one_call=one_call)
        self._behind_block = in_reasoning
        self._blank = ""
        self._blank_kind: type[Text | Reasoning] = Text
        self._pieces: list[Piece] = []
        self._kind: type[Text | Reasoning] = Text
        self._words: list[str] = []
        self.attribution = Attribution()

    @property
    def settled(self) -> bool:
        """Whether content may be passed to ``say`` from now on."""
        return not (self._blank or self._behind_block) and self.attribution.settled

    def say(self, text: str, kind: type[Text | Reasoning] = Text) -> None:
        """Add text as it is."""
        if kind is not self._kind:
            self._close_words()
            self._kind = kind
        self._words.append(text)

    def add(self, parts: Sequence[Part], *, may_open: bool) -> None:
        """Add parts; ``may_open``: another block may follow them. Raises HttpError over an unknown tool."""
        for part in parts:
            if self.calls.complete:
                return
            match part.kind:
                case "content":
                    self._flow(part.text, Text, hold=may_open or part is not parts[-1])
                case "reasoning":
                    self._flow(part.text, Reasoning, hold=True)
                case "mark":
                    self._border("reasoning", len(part.text))
                case "call":
                    self._call(part)

    def end(self, parts: Sequence[Part], *, cut_short: bool) -> None:
        """Add the last parts. A block without an end is a call only if the model ended there by itself."""
        for part in parts:
            if part.kind == "call" and not self.calls.complete:
                self._call(part, cut_short=cut_short and not part.closed)
            else:
                self.add([part], may_open=True)
        if self._blank and self._blank_kind is Text:
            self._exactly("")
        elif self._blank:
            self._drop_blank()
        self.attribution.end()

    def take(self, *, last: bool) -> tuple[Piece, ...]:
        """Return the pieces since the last call; a grapheme cluster that may grow waits unless ``last``."""
        words = "".join(self._words)
        self._words.clear()
        cut = len(words) if last else settled(words)
        if cut:
            self._pieces.append(self._kind(words[:cut]))
        if cut < len(words):
            self._words.append(words[cut:])
        pieces = tuple(self._pieces)
        self._pieces.clear()
        return pieces

    def _flow(self, text: str, kind: type[Text | Reasoning], *, hold: bool) -> None:
        """Add text but for white space at a border, as far as that is known."""
        fate = _fate(kind)
        if self._behind_block:
            words = text.lstrip()
            self.attribution.became("other" if kind is Text else fate, len(text) - len(words))
            text = words
            self._behind_block = not words
        text, self._blank = self._blank + text, ""
        if hold:
            self._blank = text[len(text.rstrip()) :]
            self._blank_kind = kind
            text = text[: len(text) - len(self._blank)]
        if text:
            self.say(text, kind)
            self.attribution.became(fate, len(text))

    def _border(self, fate: Fate, size: int) -> None:
        self._drop_blank()
        self._behind_block = True
        self.attribution.became(fate, size)

    def _drop_blank(self) -> None:
        self.attribution.became("other" if self._blank_kind is Text else "reasoning", len(self._blank))
        self._blank = ""

    def _call(self, part: Part, *, cut_short: bool = False) -> None:
        if self.calls.close(part, cut_short=cut_short):
            self._border("other", len(part.text))
        else:
            self._exactly(part.text)

    def _put(self, piece: Piece) -> None:
        self._close_words()
        self._pieces.append(piece)

    def _exactly(self, text: str) -> None:
        text, self._blank = self._blank + text, ""
        self._behind_block = False
        self.say(text)
        self.attribution.became("content", len(text))

    def _close_words(self) -> None:
        if words := "".join(self._words):
            self._pieces.append(self._kind(words))
        self._words.clear()


def _fate(kind: type[Text | Reasoning]) -> Fate:
    return "content" if kind is Text else "reasoning"
