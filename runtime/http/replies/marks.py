"""Cuts a reply's text at the marks that a model puts around reasoning and tool calls. Pure.

Reasoning opens at the beginning of a reply or right behind a block, white space aside: a mark amid content is
text that the model wrote, in a JSON string for instance. A tool block opens anywhere in content, and in
reasoning nowhere. Where a block closes depends on the text alone, never on how it was cut into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...engine.prompt import ReplyFormat

Kind: TypeAlias = Literal["content", "reasoning", "mark", "call"]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the raw text; the texts of all parts join to the reply as the model wrote it.

    ``mark`` is a mark around reasoning; ``call`` is a whole tool block with its marks, and ``body`` what is
    between them. ``closed``: its end mark was there.
    """

    kind: Kind
    text: str
    body: str = ""
    closed: bool = True


class Splitter:
    """Cuts one reply. Text that may still become a mark is held back, and no other.

    ``form.tools`` count only with ``may_call``. ``goes_on(body)`` says that an end mark behind ``body``
    belongs to the call, within a string of it. Not thread-safe.
    """

    def __init__(
        self, form: ReplyFormat, *, may_call: bool, in_reasoning: bool, goes_on: Callable[[str], bool]
    ) -> None:
        self._opens, self._closes = form.reasoning or ("", "")
        self._call = form.tools.start if may_call else ""
        self._ends = form.tools.end
        self._goes_on = goes_on
        self._held = ""
        self._block: list[str] = []
        self._grown = 0
        self._fresh = True
        self._state: Kind = "reasoning" if in_reasoning and self._closes else "content"

    @property
    def idle(self) -> bool:
        """Whether all that comes is content, whatever it is."""
        return self._state == "content" and not (self.may_open or self._held)

    @property
    def may_open(self) -> bool:
        """Whether a block may follow what was read."""
        return bool(self._call or (self._opens and self._fresh))

    def add(self, text: str) -> list[Part]:
        """Return what is certain now."""
        self._held += text
        parts: list[Part] = []
        while self._held and self._cut(parts):
            pass
        return parts

    def flush(self) -> list[Part]:
        """Return the rest: the text has ended. A block without an end mark is not ``closed``."""
        held, self._held = self._held, ""
        if self._state == "call":
            body = "".join(self._block) + held
            return [Part("call", self._call + body, body, closed=False)]
        return [Part(self._state, held)] if held else []

    def grown(self) -> str:
        """Return what was added to the body of the block that is open, since the last call for it."""
        added, self._grown = self._block[self._grown :], len(self._block)
        return "".join(added)

    def _cut(self, parts: list[Part]) -> bool:
        """Move one step through what is held; False when no more can be said."""
        if self._state == "call":
            return self._cut_call(parts)
        if self._fresh and self._opens and not self._cut_opening(parts):
            return False
        if self._state == "reasoning":
            return self._cut_at(self._closes, "content", parts)
        return self._cut_at(self._call, "call", parts)

    def _cut_opening(self, parts: list[Part]) -> bool:
        """Look for the mark that opens reasoning; False while that is open."""
        found = self._held.lstrip()
        self._give(len(self._held) - len(found), parts)
        if found.startswith(self._opens):
            self._state = "reasoning"
            self._mark(self._opens, parts)
        elif self._opens.startswith(found):
            return False
        self._fresh = False
        return bool(self._held)

    def _cut_at(self, mark: str, behind: Kind, parts: list[Part]) -> bool:
        """Give out text up to ``mark``, or what cannot be a part of it."""
        at = self._held.find(mark) if mark else -1
        if at < 0:
            self._give(len(self._held) - undecided(self._held, mark), parts)
            return False
        self._give(at, parts)
        self._state, self._fresh = behind, True
        if behind == "call":
            self._held = self._held[len(mark) :]
        else:
            self._mark(mark, parts)
        return True

    def _cut_call(self, parts: list[Part]) -> bool:
        at = self._held.find(self._ends) if self._ends else -1
        if at < 0:
            settled = len(self._held) - undecided(self._held, self._ends)
            self._block.append(self._held[:settled])
            self._held = self._held[settled:]
            return False
        self._block.append(self._held[:at])
        self._held = self._held[at + len(self._ends) :]
        body = "".join(self._block)
        if self._goes_on(body):
            self._block.append(self._ends)
            return True
        self._block.clear()
        self._grown = 0
        self._state = "content"
        parts.append(Part("call", self._call + body + self._ends, body))
        return True

    def _give(self, size: int, parts: list[Part]) -> None:
        if size:
            parts.append(Part(self._state, self._held[:size]))
            self._held = self._held[size:]

    def _mark(self, mark: str, parts: list[Part]) -> None:
        parts.append(Part("mark", mark))
        self._held = self._held[len(mark) :]


def undecided(text: str, mark: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``mark`` and is not all of it."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
