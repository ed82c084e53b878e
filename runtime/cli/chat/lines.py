"""Reading what a person types, with line editing and a history."""

from __future__ import annotations

import readline
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .history import History

PROMPT, MORE = "> ", ". "


class Lines(Protocol):
    """Where the user's lines come from."""

    def ask(self) -> str | None:
        """Return what is typed next, None at the end of input. Raises KeyboardInterrupt at Ctrl-C."""
        ...


class TerminalLines:
    """Lines of the terminal through readline. A backslash at the end of a line goes on in the next one.

    Main thread only; takes over the process's one readline.
    """

    def __init__(self, history: History | None, commands: Sequence[str]) -> None:
        self._history = history
        self._commands = commands
        readline.set_auto_history(False)
        readline.set_completer_delims(" \n")
        readline.set_completer(self._complete)
        bsd = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if bsd else "tab: complete")
        for entry in history.load() if history is not None else ():
            readline.add_history(entry)

    def ask(self) -> str | None:
        """Read one entry and remember it."""
        try:
            text = input(PROMPT)
            while text.endswith("\\"):
                text = f"{text[:-1]}\n{input(MORE)}"
        except EOFError:
            return None
        if text.strip():
            readline.add_history(text.encode("utf-8", "replace").decode())
            if self._history is not None:
                self._history.add(text)
        return text

    def _complete(self, text: str, state: int) -> str | None:
        known = [name for name in self._commands if text.startswith("/") and name.startswith(text)]
        return known[state] if state < len(known) else None
