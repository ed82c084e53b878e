"""The commands within a conversation: lines that begin with a slash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....storage.fs import write_atomically

if TYPE_CHECKING:
    from .dialogue import Dialogue
    from .screen import Screen

COMMANDS: Final = {
    "/clear": "forget the conversation; the system text stays",
    "/system": "TEXT sets the system text, - removes it; alone it shows it",
    "/save": "FILE writes the conversation, as JSON where the name ends in .json, else as Markdown",
    "/quit": "leave, as Ctrl-D does",
    "/help": "show this",
}
_MORE: Final = (
    "Ctrl-C stops a reply. A backslash at the end of a line continues it. // begins a line with a slash."
)


class Slash:
    """Runs commands on a dialogue."""

    def __init__(self, dialogue: Dialogue, screen: Screen) -> None:
        self._dialogue = dialogue
        self._screen = screen
        self._saved: set[Path] = set()

    def run(self, line: str) -> bool:
        """Run a command; False when it was the last one."""
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match name:
            case "/quit" | "/exit":
                return False
            case "/clear":
                self._dialogue.clear()
                self._screen.remark("the conversation begins anew")
            case "/system":
                self._system(rest)
            case "/save":
                self._save(rest)
            case "/help" | "/?":
                for command, what in COMMANDS.items():
                    self._screen.remark(f"{command:<8} {what}")
                self._screen.remark(_MORE)
            case _:
                self._screen.remark(f"there is no {name}; /help names the commands")
        return True

    def _system(self, text: str) -> None:
        if text:
            self._dialogue.direct("" if text == "-" else text)
        self._screen.remark(f"system: {self._dialogue.system or '(none)'}")

    def _save(self, name: str) -> None:
        if not name:
            self._screen.remark("/save needs the name of a file")
            return
        try:
            path = Path(name).expanduser().absolute()
            if path.exists() and path not in self._saved:
                self._screen.remark(f"{path} is there already; choose another name")
                return
            write_atomically(path, self._dialogue.document(path))
        except (OSError, RuntimeError, ValueError) as error:
            self._screen.remark(f"not saved: {error}")
            return
        self._saved.add(path)
        self._screen.remark(f"saved {path}")
