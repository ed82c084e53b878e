"""The three kinds of items that a reply consists of, each with the events of its life, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from .reasoning import sealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...engine.port import TokenLogprob

Event: TypeAlias = tuple[str, Mapping[str, object]]
"""A kind without its ``response.`` and the fields of its own."""
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]
_REPLACEMENT: Final = "\ufffd"


class MessageItem:
    """Text for the client: one message with one part."""

    def __init__(self, item_id: str, output_index: int) -> None:
        self.id = item_id
        self.status: Status = "in_progress"
        self._item: dict[str, object] = {"item_id": item_id, "output_index": output_index}
        self._part = self._item | {"content_index": 0}
        self._texts: list[str] = []
        self._logprobs: list[object] = []

    @property
    def text(self) -> str:
        """All of the text so far."""
        return "".join(self._texts)

    def opening(self) -> list[Event]:
        """Return the events before the first text."""
        empty: dict[str, object] = {**self.value(), "content": []}
        return [_added(self._item, empty), ("content_part.added", self._part | {"part": self._content()})]

    def add(self, text: str, entries: Sequence[TokenLogprob]) -> Event:
        """Take more text; either may be empty."""
        logprobs = [logprob_json(entry) for entry in entries]
        self._texts.append(text)
        self._logprobs.extend(logprobs)
        return "output_text.delta", self._part | {"delta": text, "logprobs": logprobs}

    def closing(self) -> list[Event]:
        """Return the events behind the last text, once ``status`` is final."""
        done = self._part | {"text": self.text, "logprobs": self._logprobs}
        part = self._part | {"part": self._content()}
        return [("output_text.done", done), ("content_part.done", part), _done(self._item, self.value())]

    def value(self) -> dict[str, object]:
        """Return the item as it stands."""
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": [self._content()],
        }

    def _content(self) -> dict[str, object]:
        return {"type": "output_text", "annotations": [], "logprobs": list(self._logprobs), "text": self.text}


class ReasoningItem:
    """The model's thoughts, whole, as content; there is nobody to summarise them.

    ``portable``: the final item also carries them as ``encrypted_content``, for clients that keep only that.
    """

    def __init__(self, item_id: str, output_index: int, *, portable: bool) -> None:
        self.id = item_id
        self.status: Status = "in_progress"
        self._item: dict[str, object] = {"item_id": item_id, "output_index": output_index}
        self._part = self._item | {"content_index": 0}
        self._portable = portable
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All of the reasoning so far."""
        return "".join(self._texts)

    def opening(self) -> list[Event]:
        """Return the events before the first text."""
        empty: dict[str, object] = {**self.value(), "content": []}
        return [_added(self._item, empty), ("content_part.added", self._part | {"part": self._content()})]

    def add(self, text: str) -> Event:
        """Take more reasoning."""
        self._texts.append(text)
        return "reasoning_text.delta", self._part | {"delta": text}

    def closing(self) -> list[Event]:
        """Return the events behind the last text, once ``status`` is final."""
        part = self._part | {"part": self._content()}
        done = ("reasoning_text.done", self._part | {"text": self.text})
        return [done, ("content_part.done", part), _done(self._item, self.value())]

    def value(self) -> dict[str, object]:
        """Return the item as it stands."""
        carried = self._portable and self.status != "in_progress"
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": [],
            "content": [self._content()],
            "encrypted_content": sealed(self.text) if carried else None,
        }

    def _content(self) -> dict[str, object]:
        return {"type": "reasoning_text", "text": self.text}


class CallItem:
    """A call of one of the client's functions."""

    def __init__(self, item_id: str, output_index: int, call_id: str, name: str) -> None:
        self.id = item_id
        self.status: Status = "in_progress"
        self.call_id = call_id
        self.name = name
        self._item: dict[str, object] = {"item_id": item_id, "output_index": output_index}
        self._texts: list[str] = []

    @property
    def arguments(self) -> str:
        """The JSON text of the arguments so far."""
        return "".join(self._texts)

    def opening(self) -> list[Event]:
        """Return the event before the first piece of the arguments."""
        return [_added(self._item, self.value())]

    def add(self, text: str) -> Event:
        """Take more of the arguments."""
        self._texts.append(text)
        return "function_call_arguments.delta", self._item | {"delta": text}

    def closing(self) -> list[Event]:
        """Return the events behind the last piece, once ``status`` is final."""
        done = self._item | {"name": self.name, "arguments": self.arguments}
        return [("function_call_arguments.done", done), _done(self._item, self.value())]

    def value(self) -> dict[str, object]:
        """Return the item as it stands."""
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


def logprob_json(entry: TokenLogprob) -> dict[str, object]:
    """Return a token's probability as this API writes it: bytes are always a list, empty where unknown."""
    top = [_token_json(text, logprob) for _, text, logprob in entry.top]
    return _token_json(entry.text, entry.logprob) | {"top_logprobs": top}


def _token_json(text: str, logprob: float) -> dict[str, object]:
    known = _REPLACEMENT not in text  # a token may be a part of a character
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else []}


def _added(item: dict[str, object], value: dict[str, object]) -> Event:
    return "output_item.added", {"output_index": item["output_index"], "item": value}


def _done(item: dict[str, object], value: dict[str, object]) -> Event:
    return "output_item.done", {"output_index": item["output_index"], "item": value}
