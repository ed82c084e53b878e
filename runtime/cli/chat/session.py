"""One run of ``samovar chat``: from arguments to one answer or a whole conversation."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING, Final

from ...config import state_folder
from .dialogue import Dialogue
from .loop_thread import LoopThread
from .screen import Screen, is_styled
from .slash import COMMANDS
from .speech import ReplyFailed, Wish
from .talk import Conversation, answer_once

if TYPE_CHECKING:
    from argparse import Namespace
    from contextlib import AbstractContextManager

    from .speech import Speaker

MAX_PIPED_BYTES: Final = 16 << 20
HISTORY_NAME: Final = "chat-history"


class Session:
    """Talks with a speaker as the arguments say: one answer for a prompt or piped text, else a conversation.

    Raises ReplyFailed at once where there is nothing to say. Main thread only.
    """

    def __init__(self, args: Namespace, prompt: str | None) -> None:
        self._interactive = prompt is None and sys.stdin.isatty() and sys.stdout.isatty()
        self._wish = Wish(args.max_tokens, args.temperature, args.seed)
        self._dialogue = Dialogue(args.system)
        self._remember = not args.no_history
        if not self._interactive:
            self._dialogue.ask(_piped() if prompt is None else _something(prompt))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        remarks = sys.stdout if self._interactive else sys.stderr
        self._screen = Screen(sys.stdout, remarks, styled=is_styled(remarks))
        self._late: list[str] = []

    def remark(self, text: str) -> None:
        """Keep a line for the user until the speaker is open. Any thread."""
        self._late.append(text)

    def hold(self, speaker: Speaker) -> None:
        """Open the speaker, talk, close it. Raises ReplyFailed, and what the speaker's ``open`` raises."""
        with LoopThread() as loop:
            try:
                with self._waiting():
                    loop.call(speaker.open())
                for text in self._late:
                    self._screen.remark(text)
                if self._interactive:
                    self._converse(loop, speaker)
                else:
                    answer_once(loop, speaker, self._dialogue, self._wish, self._screen)
            finally:
                loop.call(speaker.close())

    def _converse(self, loop: LoopThread, speaker: Speaker) -> None:
        from .history import History  # noqa: PLC0415 - one answer needs no line editing
        from .lines import TerminalLines  # noqa: PLC0415

        self._screen.remark(f"{loop.call(speaker.introduce())} · /help for help, Ctrl-D leaves")
        history = History(state_folder() / HISTORY_NAME) if self._remember else None
        lines = TerminalLines(history, tuple(COMMANDS))
        if history is not None and history.failed:
            self._screen.remark("the history of earlier input cannot be read")
        Conversation(
            loop, speaker, lines, dialogue=self._dialogue, wish=self._wish, screen=self._screen
        ).run()

    def _waiting(self) -> AbstractContextManager[object]:
        """Show that something is going on, where somebody sits and waits."""
        if not (self._interactive and is_styled(sys.stderr)):
            return contextlib.nullcontext()
        from rich.console import Console  # noqa: PLC0415 - costs more than a question to a server

        return Console(file=sys.stderr).status("getting ready")


def _piped() -> str:
    data = sys.stdin.buffer.read(MAX_PIPED_BYTES + 1)
    if len(data) > MAX_PIPED_BYTES:
        message = f"more than {MAX_PIPED_BYTES} bytes were piped in"
        raise ReplyFailed(message, "prompt_too_large", usage=True)
    return _something(data.decode("utf-8", "replace").rstrip("\n"))


def _something(prompt: str) -> str:
    if not prompt.strip():
        raise ReplyFailed("the prompt is empty", "empty_prompt", usage=True)
    return prompt
