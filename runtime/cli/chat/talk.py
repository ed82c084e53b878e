"""The two ways to talk: one question with its answer, or a conversation."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from .screen import figures
from .slash import Slash
from .speech import Done, GaveUp, ReplyFailed, Said, Thought

if TYPE_CHECKING:
    from collections.abc import Generator

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

    def run(self) -> None:
        """Talk."""
        while True:
            try:
                line = self._lines.ask()
            except KeyboardInterrupt:
                self._screen.remark("\n(Ctrl-D or /quit leaves)")
                continue
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
        try:
            with _stopped_by_interrupt(flow):
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


@contextlib.contextmanager
def _stopped_by_interrupt(flow: Flow[Any]) -> Generator[None]:
    """Let Ctrl-C stop ``flow`` instead of the program, within the block."""

    def stop(_number: int, _frame: object) -> None:
        flow.stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
