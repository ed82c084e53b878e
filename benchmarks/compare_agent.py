"""Conversations of an agent: the recorded texts of tau-bench, replayed turn by turn.

System prompt, what the user says and what tools return are as recorded; the assistant's turns are what the
server at hand answered, as in a client that sends the history back. Results of tools come as user turns,
since not every template knows another role, and long ones are cut.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .serving_chat import Chat, Messages, Reply

TEXTS = "agent/taubench_airline_gpt4o.jsonl"
TURN_CHARACTERS = 1500
NOTHING_SAID = "(nothing)"


class NoTexts(Exception):
    """The recorded conversations are not here. The message says where they were looked for."""


@dataclass(frozen=True)
class Script:
    """What is said to the assistant: the system prompt, then one text a turn."""

    system: str
    turns: list[str]


def scripts(traces: Path, count: int, turns: int, system_characters: int) -> list[Script]:
    """Return the first ``count`` conversations that have ``turns`` turns. Raises NoTexts."""
    path = traces / TEXTS
    if not path.is_file():
        raise NoTexts(f"no {TEXTS} in the folder of traces (--traces)")
    with path.open() as lines:
        found = _long_enough((json.loads(line)["messages"] for line in lines), turns, system_characters)
        chosen = [script for script, _ in zip(found, range(count), strict=False)]
    if len(chosen) < count:
        raise NoTexts(f"{TEXTS} has {len(chosen)} conversations of {turns} turns, {count} are wanted")
    return chosen


def _long_enough(conversations: Iterator[Any], turns: int, system_characters: int) -> Iterator[Script]:
    for messages in conversations:
        script = script_of(messages, system_characters)
        if len(script.turns) >= turns:
            yield Script(script.system, script.turns[:turns])


def script_of(messages: list[dict[str, Any]], system_characters: int) -> Script:
    """Return what is said to the assistant in a recorded conversation."""
    system = " ".join(str(each.get("content") or "") for each in messages if each["role"] == "system")
    turns = [
        f"Result of {each.get('name', 'a tool')}: {each.get('content')}"[:TURN_CHARACTERS]
        if each["role"] == "tool"
        else str(each.get("content") or NOTHING_SAID)[:TURN_CHARACTERS]
        for each in messages
        if each["role"] in {"user", "tool"}
    ]
    return Script(system[:system_characters], turns)


def replay(chat: Chat, script: Script, reply_tokens: int) -> list[Reply]:
    """Have the conversation; return the replies. Raises ChatFailed."""
    messages: Messages = [{"role": "system", "content": script.system}]
    replies: list[Reply] = []
    for turn in script.turns:
        messages.append({"role": "user", "content": turn})
        reply = chat.ask(messages, reply_tokens)
        messages.append({"role": "assistant", "content": reply.text or NOTHING_SAID})
        replies.append(reply)
    return replies
