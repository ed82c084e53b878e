"""Ids of the tool calls in a history, as templates want them.

Clients send back the ids that they were given, here or elsewhere, or none. Most templates do not look at
them. Mistral's refuse all but nine letters and digits. Kimi's write them, and its model knows one form alone,
``functions.NAME:NUMBER``, counted through the conversation. What becomes of an id depends on the turns
before it only, so a longer conversation begins as a shorter one did.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Callable

    from .arranging import Message, Messages

    Renaming: TypeAlias = Callable[[Messages], Messages]

_NINE: Final = re.compile(r"[A-Za-z0-9]{9}")


def ids_as_sent(messages: Messages) -> Messages:
    """Return them unchanged."""
    return messages


def ids_of_nine(messages: Messages) -> Messages:
    """Return the messages with ids of nine letters and digits; those that are such stay."""

    def nine(sent: str, number: int) -> str:
        return sent if _NINE.fullmatch(sent) else blake3((sent or str(number)).encode()).hexdigest()[:9]

    return _renamed(messages, lambda call, number: nine(_id_of(call), number), lambda sent: nine(sent, 0))


def ids_of_kimi(messages: Messages) -> Messages:
    """Return the messages with ids as Kimi's models write them; that of a result without a call stays."""

    def name(call: Message, number: int) -> str:
        function = cast("Message", call.get("function") or {})
        return f"functions.{function.get('name')}:{number}"

    return _renamed(messages, name, lambda sent: sent)


def renamings_for(parser: str) -> tuple[Renaming, ...]:
    """Return what to try in turn for a model whose calls are read by that parser."""
    return (ids_of_kimi,) if parser == "kimi_k2" else (ids_as_sent, ids_of_nine)


def _renamed(
    messages: Messages, call_name: Callable[[Message, int], str], other_name: Callable[[str], str]
) -> Messages:
    """Rename calls, and results by the id of their call; one without an id answers the oldest open call."""
    names: dict[str, str] = {}
    open_calls: deque[str] = deque()
    number = 0
    turns: Messages = []
    for message in messages:
        if calls := cast("list[Message]", message.get("tool_calls") or []):
            given = [call_name(call, number + place) for place, call in enumerate(calls)]
            number += len(calls)
            names.update(zip(map(_id_of, calls), given, strict=True))
            open_calls = deque(given)
            renamed = [call | {"id": new} for call, new in zip(calls, given, strict=True)]
            turns.append(message | {"tool_calls": renamed})
        elif message["role"] == "tool":
            sent = cast("str", message.get("tool_call_id") or "")
            oldest = open_calls.popleft() if open_calls else other_name(sent)
            turns.append(message | {"tool_call_id": names.get(sent, other_name(sent)) if sent else oldest})
        else:
            turns.append(message)
    return turns


def _id_of(call: Message) -> str:
    return cast("str", call.get("id") or "")
