"""Reads one reply: which of its text is content, which reasoning, which a tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.port import Delta, Finished
from ...engine.prompt import PLAIN_REPLIES, Conversation
from .composing import Composer
from .marks import Splitter
from .pieces import ChoiceEnd, Progress
from .tool_parsing import ToolText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....actors.stream import StreamEvent
    from ...engine.prompt import ReplyFormat
    from ..call import Call


class ReplyReader:
    """Turns the events of one choice into progress, the same pieces however the text was cut into deltas.

    Rules: ``marks`` for where reasoning and calls begin and end, ``composing`` for white space and for text
    that is no call, ``attribution`` for logprobs and reasoning tokens, ``graphemes`` for where pieces end.
    One per choice; loop thread only.
    """

    def __init__(self, index: int, call: Call, form: ReplyFormat, *, in_reasoning: bool) -> None:
        request = call.requests[index]
        if not isinstance(request.prompt, Conversation):
            form = PLAIN_REPLIES  # text that goes on from text has no parts
        tools = ToolText(form.tools.parser, call.tools)
        in_reasoning = in_reasoning and form.reasoning is not None
        self._index = index
        self._splitter = Splitter(
            form, may_call=call.may_call, in_reasoning=in_reasoning, goes_on=tools.goes_on
        )
        self._composer = Composer(request, tools, one_call=call.one_call, in_reasoning=in_reasoning)
        self._plain = self._splitter.idle
        self.tokens = 0

    @property
    def complete(self) -> bool:
        """Whether no more is wanted of the choice than what was read, though it may go on."""
        return self._composer.calls.complete

    def read(self, events: Sequence[StreamEvent]) -> Progress:
        """Return what ``events`` add; none of them is a failure. Raises HttpError over an unknown tool."""
        end: ChoiceEnd | None = None
        for event in events:
            if isinstance(event, Delta):
                self.tokens += len(event.tokens)
                self._text(event)
            elif isinstance(event, Finished):
                end = self._end(event)
            if self._composer.calls.complete:
                break
        return self._progress(end)

    def ending(self, finished: Finished) -> ChoiceEnd:
        """Return the end of a choice that was read up to ``finished``, or that is ``complete`` before."""
        called = finished.reason == "stop" and self._composer.calls.made > 0
        reasoning_tokens = self._composer.attribution.reasoning_tokens
        return ChoiceEnd("tool_calls" if called else finished.reason, finished, reasoning_tokens)

    def _text(self, delta: Delta) -> None:
        composer, attribution = self._composer, self._composer.attribution
        if self._plain:
            attribution.skip(delta.text, delta.logprobs)
            composer.say(delta.text)
            return
        attribution.came(delta.text, len(delta.tokens), delta.logprobs)
        parts = self._splitter.add(delta.text)
        composer.add(parts, may_open=self._splitter.may_open)
        composer.calls.grow(self._splitter.grown())
        self._plain = self._splitter.idle and composer.settled

    def _end(self, finished: Finished) -> ChoiceEnd:
        attribution = self._composer.attribution
        attribution.came(finished.text, 0, ())
        parts = [*self._splitter.add(finished.text), *self._splitter.flush()]
        self._composer.end(parts, cut_short=finished.reason == "length")
        return self.ending(finished)

    def _progress(self, end: ChoiceEnd | None) -> Progress:
        pieces = self._composer.take(last=end is not None)
        return Progress(self._index, pieces, self._composer.attribution.shown(), end)
