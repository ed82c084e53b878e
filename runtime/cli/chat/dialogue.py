"""A conversation as it is sent, shown and saved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .speech import Message


class Dialogue:
    """System text and turns. Text is always valid Unicode, whatever bytes were typed."""

    def __init__(self, system: str | None = None) -> None:
        self.system = _valid(system) if system else None
        self._turns: list[Message] = []

    def ask(self, text: str) -> None:
        """Add the user's turn."""
        self._turns.append({"role": "user", "content": _valid(text)})

    def answer(self, text: str) -> None:
        """Add the reply to the last turn; where there was none, that turn is taken back too."""
        if text:
            self._turns.append({"role": "assistant", "content": _valid(text)})
        else:
            self._turns.pop()

    def direct(self, text: str) -> None:
        """Replace the system text; "" for none."""
        self.system = _valid(text) or None

    def clear(self) -> None:
        """Forget the turns; the system text stays."""
        self._turns.clear()

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, as APIs take it."""
        first: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self._turns]

    def document(self, path: Path) -> bytes:
        """Return the file to be saved: JSON where the path says so, else Markdown."""
        if path.suffix == ".json":
            text = json.dumps({"messages": self.messages}, indent=2, ensure_ascii=False) + "\n"
        else:
            parts = (
                f"## {turn['role'].capitalize()}\n\n{turn['content'].strip()}\n" for turn in self.messages
            )
            text = "\n".join(parts)
        return text.encode()


def _valid(text: str) -> str:
    """Replace lone surrogates: what the terminal sent was no UTF-8."""
    return text.encode("utf-8", "replace").decode()
