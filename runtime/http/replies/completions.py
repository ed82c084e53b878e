"""What legacy completions are answered with: ``text_completion`` objects, whole and in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from .pieces import Reasoning, Text
from .reply import WholeReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....actors.requests import Admitted
    from ...engine.port import TokenLogprob
    from ..schema.completions import CompletionCall
    from .pieces import Piece, Progress
    from .reply import Gathered
    from .usage import Usage

_DONE = b"data: [DONE]\n\n"


class TokenLists:
    """OpenAI's four lists about the tokens of one choice, all of equal length.

    ``text_offset`` counts characters of the tokens' own texts. ``top_logprobs`` has the token that was taken
    also where it is none of the likeliest; alternatives of one text are shown once, by the likelier.
    """

    def __init__(self) -> None:
        self._offset = 0

    def of(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        """Return the lists for the next tokens of the choice."""
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry.text)
        return {
            "tokens": [entry.text for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [_top(entry) for entry in entries],
            "text_offset": offsets,
        }


class CompletionChunks:
    """Encodes the stream of a call; the echoed prompt comes with a choice's first chunk. Loop thread only."""

    def __init__(self, completion: CompletionCall, created_s: int) -> None:
        call = completion.call
        about = {"id": call.id, "object": "text_completion", "created": created_s, "model": call.model}
        self._call = call
        self._head = b"data: " + orjson.dumps(about)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if call.include_usage else b"]}\n\n"
        self._echoes = dict(enumerate(completion.echoes))
        self._lists = [TokenLists() for _ in call.requests]

    def start(self, _: Admitted) -> bytes:
        """Return nothing: the first chunk is one of text."""
        return b""

    def progress(self, progress: Progress) -> bytes:
        """Return the chunk of what was added to a choice; nothing where there is nothing to tell."""
        text = self._echoes.pop(progress.index, "") + _text(progress.pieces)
        shown = progress.logprobs if self._call.logprobs else ()
        if not (text or shown or progress.end):
            return b""
        choice = {
            "index": progress.index,
            "text": text,
            "logprobs": self._lists[progress.index].of(shown) if shown else None,
            "finish_reason": progress.end and progress.end.reason,
        }
        return self._head + orjson.dumps(choice) + self._tail

    def done(self, usage: Usage) -> bytes:
        """Return what follows the last choice's end."""
        if not self._call.include_usage:
            return _DONE
        return self._head + b'],"usage":' + orjson.dumps(usage.openai()) + b"}\n\n" + _DONE


class WholeCompletion(WholeReply):
    """Gathers a completion that is answered in one piece."""

    kind = "text_completion"

    def __init__(self, completion: CompletionCall, created_s: int) -> None:
        super().__init__(completion.call, created_s)
        self._echoes = completion.echoes

    def _choice(self, choice: Gathered) -> dict[str, object]:
        return {
            "text": self._echoes[choice.index] + _text(choice.pieces),
            "logprobs": TokenLists().of(choice.logprobs) if self._call.logprobs else None,
        }


def _text(pieces: Sequence[Piece]) -> str:
    """Return a completion's text: what a chat would call its reasoning is part of it."""
    return "".join(piece.text for piece in pieces if isinstance(piece, (Text, Reasoning)))


def _top(entry: TokenLogprob) -> dict[str, float]:
    top = {entry.text: entry.logprob}
    for _, text, logprob in entry.top:
        top.setdefault(text, logprob)
    return top
