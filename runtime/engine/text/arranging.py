"""Other ways to say the same conversation, for templates that refuse it as it is.

A template gets the turns as the client sent them. Only where it refuses them, or leaves a system turn out,
are they arranged otherwise, from the least change to the most, until it takes them:

1. system turns at the beginning become one; a later one becomes a user turn where it stands;
2. also, neighbouring turns of one role become one, and an empty user turn precedes a first assistant turn;
3. also, the system turn goes in front of the first user turn's text;
4. also, tool calls and results become text (``plain_tools.py``).

Every rule looks at a turn and what comes before it only, so a longer conversation begins as a shorter one
did, and what is cached of the one serves the other. Texts are joined by an empty line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, cast

from .plain_tools import in_plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Message: TypeAlias = dict[str, object]
    Messages: TypeAlias = list[Message]
    Arrangement: TypeAlias = Callable[[Messages], Messages]

_BETWEEN: Final = "\n\n"
_JOINED_ROLES: Final = frozenset({"user", "assistant"})


def as_sent(messages: Messages) -> Messages:
    """Return them unchanged."""
    return messages


def one_system_turn(messages: Messages) -> Messages:
    """Join the system turns at the beginning; make user turns of the others."""
    count = _leading_systems(messages)
    leading = [_joined(messages[:count])] if count > 1 else messages[:count]
    return leading + [
        each | {"role": "user"} if each["role"] == "system" else each for each in messages[count:]
    ]


def alternating(messages: Messages) -> Messages:
    """Join neighbours of one role, and let no assistant turn come first."""
    turns: Messages = []
    for message in one_system_turn(messages):
        role, before = message["role"], turns[-1]["role"] if turns else "system"
        if role in _JOINED_ROLES and role == before:
            turns[-1] = _joined([turns[-1], message])
            continue
        if role in {"assistant", "tool"} and before == "system":
            turns.append({"role": "user", "content": ""})
        turns.append(message)
    return turns


def without_system_turn(messages: Messages) -> Messages:
    """Put the system turn's text in front of the first user turn's."""
    turns = alternating(messages)
    if not turns or turns[0]["role"] != "system":
        return turns
    return alternating([turns[0] | {"role": "user"}, *turns[1:]])


def without_tool_turns(messages: Messages) -> Messages:
    """Tell tool calls and their results as text."""
    return without_system_turn(in_plain_text(messages))


ARRANGEMENTS: Final[tuple[Arrangement, ...]] = (
    as_sent,
    one_system_turn,
    alternating,
    without_system_turn,
    without_tool_turns,
)


def leaves_out(text: str, messages: Messages) -> bool:
    """Whether ``text`` leaves out one of several system turns, one that is not first, or one that is alone.

    Some templates keep the last of them only, or the first, or show one with a user turn only.
    """
    systems = [place for place, each in enumerate(messages) if each["role"] == "system"]
    if not systems or (systems == [0] and len(messages) > 1):
        return False
    return any(content_of(messages[place]).strip() not in text for place in systems)


def content_of(message: Message) -> str:
    """Return a message's text."""
    return cast("str", message.get("content") or "")


def _leading_systems(messages: Messages) -> int:
    roles = (count for count, each in enumerate(messages) if each["role"] != "system")
    return next(roles, len(messages))


def _joined(messages: Sequence[Message]) -> Message:
    """Return several messages of one role as one."""
    joined: Message = {}
    for message in messages:
        joined |= message
    joined["content"] = _BETWEEN.join(filter(None, map(content_of, messages)))
    if calls := [call for each in messages for call in cast("list[object]", each.get("tool_calls") or [])]:
        joined["tool_calls"] = calls
    return joined
