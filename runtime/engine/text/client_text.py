"""Which spellings of control tokens in a message are only text, and which are the model's own marks.

The rule: whatever a client sends is text: contents, reasoning, names, arguments, results, tools, in every
role. One exception: where an assistant turn begins with the model's reasoning, as replies do, the marks
around that reasoning (the first opening one, and the first closing one behind it) reach the template as they
are, since templates look for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .arranging import Message
    from .controls import Controls


def as_client_text(message: Message, controls: Controls, reasoning: tuple[str, str] | None) -> Message:
    """Return a message whose spellings of control tokens are exchanged for marks, by the rule above."""
    exchanged = cast("Message", controls.exchange_all(message))
    content = message.get("content")
    if reasoning is not None and message.get("role") == "assistant" and isinstance(content, str):
        exchanged["content"] = _reply(content, controls, reasoning)
    return exchanged


def _reply(content: str, controls: Controls, reasoning: tuple[str, str]) -> str:
    start, end = reasoning
    before, opening, rest = content.partition(start)
    if not opening or before.strip():
        return controls.exchange(content)
    thoughts, closing, answer = rest.partition(end)
    return before + opening + controls.exchange(thoughts) + closing + controls.exchange(answer)
