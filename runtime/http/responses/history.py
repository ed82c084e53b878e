"""From the items of a conversation to the messages of a chat.

Rules (documented for clients):

- Reasoning, then an assistant's message, then its function calls are one turn of the assistant; what comes
  out of that order begins another one.
- Reasoning goes along as ``reasoning_content``; the chat template decides what of it is shown again.
- A call that was cut short has no place in a conversation and is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..schema.responses_items import (
    FunctionCallItem,
    FunctionOutputItem,
    KnownItem,
    MessageItem,
    ReasoningItem,
    text_of,
)
from .reasoning import unsealed

if TYPE_CHECKING:
    from collections.abc import Iterable

Message: TypeAlias = dict[str, object]


def messages_of(items: Iterable[KnownItem]) -> list[Message]:
    """Return the chat that ``items`` tell, ready for a template: every content a string."""
    turns = _Turns()
    for item in items:
        turns.add(item)
    turns.close()
    return turns.messages


def thought_of(item: ReasoningItem) -> str:
    """Return the text of a reasoning item; empty where it came without or cannot be read here."""
    if item.content:
        return "".join(part.text for part in item.content)
    return unsealed(item.encrypted_content or "") or ""


class _Turns:
    """The messages so far and the assistant's turn that is still open."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._thought = ""
        self._text: str | None = None
        self._calls: list[Message] = []

    def add(self, item: KnownItem) -> None:
        match item:
            case ReasoningItem():
                self._begin_unless(free=self._text is None and not self._calls)
                self._thought += thought_of(item)
            case MessageItem(role="assistant"):
                self._begin_unless(free=self._text is None and not self._calls)
                self._text = text_of(item.content)
            case FunctionCallItem():
                self._calls.append(_call(item))
            case FunctionOutputItem():
                self.close()
                content = text_of(item.output)
                self.messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
            case MessageItem():
                self.close()
                role = "system" if item.role == "developer" else item.role
                self.messages.append({"role": role, "content": text_of(item.content)})

    def close(self) -> None:
        """End the assistant's turn, if there is one."""
        if self._text is not None or self._thought or self._calls:
            message: Message = {"role": "assistant", "content": self._text or ""}
            if self._thought:
                message["reasoning_content"] = self._thought
            if self._calls:
                message["tool_calls"] = self._calls
            self.messages.append(message)
        self._thought, self._text, self._calls = "", None, []

    def _begin_unless(self, *, free: bool) -> None:
        if not free:
            self.close()


def _call(item: FunctionCallItem) -> Message:
    function = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": function}
