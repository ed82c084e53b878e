"""The tool calls of one choice: made when their block is complete, or told while they are written.

A call that is told cannot be taken back, so only one that a grammar holds to its form is told as it comes:
then the raw text of its arguments is one JSON object for sure, unless the reply's limit cuts it, which the
choice's end says. Every other call is made once its block has been read and understood.
"""

from __future__ import annotations

import json
import re
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from ...logs import get_logger
from ..errors import unknown_tool
from .pieces import ToolArguments, ToolCallOpened
from .tool_parsing import JSON_PARSER, BadCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....actors.requests import GenerationRequest
    from .marks import Part
    from .pieces import Piece
    from .tool_parsing import ToolText

_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_log: Final = get_logger("samovar.replies")


class Calls:
    """Makes calls and hands their pieces to ``put``; with ``one_call`` only the first. Loop thread only."""

    def __init__(
        self, request: GenerationRequest, tools: ToolText, put: Callable[[Piece], None], *, one_call: bool
    ) -> None:
        self._request = request
        self._tools = tools
        self._put = put
        self._one_call = one_call
        constraint = request.constraint
        self._told_early = bool(constraint) and constraint.kind == "tools" and tools.parser == JSON_PARSER
        self._writing = _Writing()
        self.made = 0

    @property
    def complete(self) -> bool:
        """Whether no further call is wanted."""
        return self._one_call and self.made > 0 and not self._writing.begun

    def grow(self, text: str) -> None:
        """Tell what was added to the block that is being written, where that is safe."""
        if not self._told_early or not text or self.complete:
            return
        opened, arguments = self._writing.add(text)
        if opened is not None:
            self._open(opened)
        if arguments:
            self._put(ToolArguments(self.made - 1, arguments))

    def close(self, part: Part, *, cut_short: bool) -> bool:
        """Take a whole block, or all there is of the last one; return whether it is one or more calls.

        ``cut_short``: the reply ended in it, and not by itself. Raises HttpError over an unknown tool.
        """
        writing = self._writing
        self.grow(part.body[writing.size :])
        self._writing = _Writing()
        if writing.begun:
            return True
        return not cut_short and self._make_all(part.body)

    def _make_all(self, body: str) -> bool:
        try:
            calls = self._tools.read(body)
        except BadCallError as error:
            generation_id = self._request.id
            _log.warning("tool_call_unreadable", generation_id=generation_id, reason=str(error))
            return False
        for call in calls[: 1 if self._one_call else None]:
            self._open(call.name)
            self._put(ToolArguments(self.made - 1, call.arguments))
        return True

    def _open(self, name: str) -> None:
        if name not in self._tools.names:
            raise unknown_tool(name, self._tools.names, again=_by_chance(self._request))
        self._put(ToolCallOpened(self.made, f"call_{token_hex(12)}", name))
        self.made += 1


class _Writing:
    """A call as it is written: ``{"name": …, "arguments": {…}}``. ``size`` characters were read."""

    def __init__(self) -> None:
        self.size = 0
        self.begun = False
        self._head = ""
        self._depth = 0
        self._in_string = self._escaped = self._over = False

    def add(self, text: str) -> tuple[str | None, str]:
        """Return the name once it and all before the arguments is there, and what text of those was added."""
        self.size += len(text)
        if self.begun:
            return None, self._arguments(text)
        self._head += text
        found = _HEAD.match(self._head)
        if found is None:
            return None, ""
        self.begun = True
        return json.loads(found[1]), self._arguments(self._head[found.end() :])

    def _arguments(self, text: str) -> str:
        """Return the beginning of ``text`` that belongs to the object."""
        if self._over:
            return ""
        for at, character in enumerate(text):
            self._read(character)
            if not self._depth:
                self._over = True
                return text[: at + 1]
        return text

    def _read(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = self._in_string
        elif character == '"':
            self._in_string = not self._in_string
        elif not self._in_string:
            self._depth += (character in "{[") - (character in "}]")


def _by_chance(request: GenerationRequest) -> bool:
    sampling = request.sampling
    return sampling.seed is None and (sampling.temperature > 0 or not request.temperature_given)
