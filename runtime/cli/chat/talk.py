"""The two ways to talk: one question with its answer, or a conversation."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from .screen import figures
from .slash import Slash
from .speech import Done, GaveUp, ReplyFailed, Said, Thought

if TYPE_CHECKING:
    from .dialogue import Dialogue
    from .lines import Lines
    from .loop_thread import Flow, LoopThread
    from .screen import Screen
    from .speech import Piece, Speaker, Wish


def answer_once(loop: LoopThread, speaker: Speaker, dialogue: Dialogue, wish: Wish, screen: Screen) -> None:
    """Print the reply to the dialogue, and nothing else. Raises ReplyFailed; main thread only."""
    flow = loop.flow(speaker.reply(dialogue.messages, wish))
    try:
        for piece in flow:
            if isinstance(piece, Said):
                screen.say(piece.text)
    finally:
        flow.close()
        screen.part()


class Conversation:
    """Turn after turn until the user leaves. A reply that fails costs its turn and nothing else.

    Main thread only: Ctrl-C stops the reply that is under way.
    """

    def __init__(
        self,
        loop: LoopThread,
        speaker: Speaker,
        lines: Lines,
        *,
        dialogue: Dialogue,
        wish: Wish,
        screen: Screen,
    ) -> None:
        self._loop = loop
        self._speaker = speaker
        self._lines = lines
        self._dialogue = dialogue
        self._wish = wish
        self._screen = screen
        self._slash = Slash(dialogue, screen)
        self._flow: Flow[Piece] | None = None
        self._asking = False

    def run(self) -> None:
        """Talk."""
        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            self._talk()
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self, _number: int, _frame: object) -> None:
        """Stop the reply under way, or give up the line that is being typed; else nothing."""
        if self._flow is not None:
            self._flow.stop()
        elif self._asking:
            raise KeyboardInterrupt

    def _ask(self) -> str | None:
        try:
            self._asking = True
            line = self._lines.ask()
            self._asking = False
        except KeyboardInterrupt:
            self._asking = False
            self._screen.remark("\n(Ctrl-D or /quit leaves)")
            return ""
        return line

    def _talk(self) -> None:
        while True:
            line = self._ask()
            if line is None:
                self._screen.say("\n")
                return
            if line.startswith("/") and not line.startswith("//"):
                if not self._slash.run(line):
                    return
            elif line.strip():
                self._turn(line.removeprefix("/") if line.startswith("//") else line)

    def _turn(self, text: str) -> None:
        self._dialogue.ask(text)
        said: list[str] = []
        flow = self._loop.flow(self._speaker.reply(self._dialogue.messages, self._wish))
        self._flow = flow
        try:
            for piece in flow:
                self._show(piece, said)
            if flow.stopped:
                self._screen.remark("(stopped)")
        except GaveUp:
            raise
        except ReplyFailed as error:
            self._screen.remark(f"error: {error}")
        finally:
            flow.close()
            self._flow = None
            self._screen.part()
            self._dialogue.answer("".join(said))

    def _show(self, piece: Piece, said: list[str]) -> None:
        match piece:
            case Said(text):
                if not said:
                    self._screen.part()  # reasoning came before
                said.append(text)
                self._screen.say(text)
            case Thought(text):
                self._screen.think(text)
            case Done():
                if line := figures(piece):
                    self._screen.remark(line)
