"""Replies in deltas, for tests: what a scripted lane says, and a reader over it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from samovar.actors.requests import GenerationRequest
from samovar.runtime.engine.port import Delta, Finished, Sampling, TokenLogprob
from samovar.runtime.engine.prompt import Constraint, Conversation, ReplyFormat, ToolFormat
from samovar.runtime.http.call import Call
from samovar.runtime.http.replies.pieces import Reasoning, Text, ToolArguments, ToolCallOpened
from samovar.runtime.http.replies.reader import ReplyReader

from .fakes import finished

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from samovar.actors.stream import RequestStream, StreamEvent
    from samovar.runtime.engine.prompt import Prompt
    from samovar.runtime.http.replies.pieces import ChoiceEnd, Progress

THINK = ("<think>", "</think>")
HERMES = ToolFormat("<tool_call>", "</tool_call>", "json_tools", native=True)
MISTRAL = ToolFormat("[TOOL_CALLS]", "", "mistral", native=True)


def tool(name: str, **properties: Mapping[str, object]) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = (tool("f", p={"type": "string"}), tool("get_weather", city={"type": "string"}))


def say(*texts: str, reason: Any = "stop", last: str = "") -> Callable[..., Awaitable[None]]:
    """A script: the texts one token each, in turns of the loop of their own."""

    async def script(stream: RequestStream, request: GenerationRequest) -> None:
        for token, text in enumerate(texts):
            shown = (TokenLogprob(token, text, -0.5),) if request.top_logprobs is not None else ()
            stream.push(Delta(request.id, text, (token,), shown))
            await asyncio.sleep(0)
        stream.push(finished(request.id, len(texts), reason, last))

    return script


@dataclass
class Read:
    """What a reader made of a reply."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    logprobs: list[str] = field(default_factory=list[str])
    pieces: list[str] = field(default_factory=list[str])
    end: ChoiceEnd | None = None

    @property
    def said(self) -> tuple[object, ...]:
        """What the client gets in the end."""
        assert self.end is not None
        return self.content, self.reasoning, self.calls, self.end.reason

    def add(self, progress: Progress) -> None:
        self.logprobs += [entry.text for entry in progress.logprobs]
        self.end = progress.end
        for piece in progress.pieces:
            match piece:
                case Text():
                    assert piece.text
                    self.content += piece.text
                    self.pieces.append(piece.text)
                case Reasoning():
                    assert piece.text
                    self.reasoning += piece.text
                case ToolCallOpened():
                    assert piece.index == len(self.calls)
                    assert len(piece.id) == 29
                    self.calls.append((piece.name, ""))
                case ToolArguments():
                    name, arguments = self.calls[piece.index]
                    assert piece.text
                    self.calls[piece.index] = (name, arguments + piece.text)
                    self.pieces.append(piece.text)


def reader(
    form: ReplyFormat,
    *,
    in_reasoning: bool = False,
    sampling: Sampling | None = None,
    forced: bool = False,
    prompt: Prompt | None = None,
    **call: Any,
) -> ReplyReader:
    constraint = Constraint("tools", tools=TOOLS, many=True) if forced else None
    request = GenerationRequest(
        "c", prompt or Conversation((), TOOLS), sampling or Sampling(), constraint=constraint
    )
    return ReplyReader(0, Call("c", (request,), "m", **call), form, in_reasoning=in_reasoning)


def read(
    form: ReplyFormat,
    texts: Sequence[str],
    *,
    reason: Any = "stop",
    last: str = "",
    at_once: bool = False,
    **how: Any,
) -> Read:
    """Read deltas of one token each, event by event or all ``at_once``."""
    found, reading = Read(), reader(form, **how)
    events: list[StreamEvent] = [
        Delta("c", text, (token,), (TokenLogprob(token, text, -0.5),)) for token, text in enumerate(texts)
    ]
    events.append(Finished("c", reason, last, 7, len(texts), 1.0, 1.0))
    for some in [events] if at_once else [[event] for event in events]:
        found.add(reading.read(some))
    return found
