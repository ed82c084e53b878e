"""Prompts as the fakes read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samovar.runtime.engine.prompt import Conversation, GivenIds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from samovar.runtime.engine.prompt import Prompt


def chat(*texts: str) -> Conversation:
    """Return a conversation of user turns."""
    return Conversation(tuple({"role": "user", "content": text} for text in texts))


def messages_of(prompt: Prompt) -> Sequence[Mapping[str, object]]:
    """Return the messages of a prompt; one user turn for plain text."""
    if isinstance(prompt, Conversation):
        return prompt.messages
    assert not isinstance(prompt, GivenIds), "this fake has no ids of its own"
    return [{"role": "user", "content": prompt.text}]
