"""Reads one reply: which of its text is content, which reasoning, which a tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.port import Delta, Finished
from .pieces import ChoiceEnd, Progress, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....actors.stream import StreamEvent
    from ...engine.port import TokenLogprob
    from ...engine.prompt import ReplyFormat
    from ..call import Call


class ReplyReader:
    """Turns the events of one choice into progress. One per choice; loop thread only."""

    def __init__(self, index: int, call: Call, form: ReplyFormat, *, in_reasoning: bool) -> None:
        self._index = index
        self._call = call
        self._form = form
        self._in_reasoning = in_reasoning

    def read(self, events: Sequence[StreamEvent]) -> Progress:
        """Return what ``events`` add; none of them is a failure."""
        text = ""
        logprobs: list[TokenLogprob] = []
        end: ChoiceEnd | None = None
        for event in events:
            if isinstance(event, Delta):
                text += event.text
                logprobs.extend(event.logprobs)
            elif isinstance(event, Finished):
                text += event.text
                end = ChoiceEnd(event.reason, event)
        return Progress(self._index, (Text(text),) if text else (), tuple(logprobs), end)
