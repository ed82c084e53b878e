"""Tools for models whose template knows none: told in a system turn, called and answered in plain text.

The format is Hermes': calls are JSON objects between ``<tool_call>`` and ``</tool_call>``, results stand
between ``<tool_response>`` and ``</tool_response>`` in a user turn. Many models have seen it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from .tool_arguments import arguments_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .arranging import Message, Messages

_INTRODUCTION: Final = """\
You can call functions to help with the request. Here they are, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as a JSON object, like this:
<tool_call>
{{"name": "the_function", "arguments": {{"argument": "value"}}}}
</tool_call>
Write one such block for every call. Results come back between <tool_response> and </tool_response>."""


def with_tools_told(messages: Messages, tools: Sequence[object]) -> Messages:
    """Return the conversation with a system turn that tells of ``tools``, behind what it says already."""
    lines = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
    told = _INTRODUCTION.format(tools=lines)
    if messages and messages[0]["role"] == "system":
        said = cast("str", messages[0].get("content") or "")
        return [messages[0] | {"content": f"{said}\n\n{told}" if said else told}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def in_plain_text(messages: Messages) -> Messages:
    """Return the conversation with tool calls and results as text; results in a row share one user turn."""
    turns: Messages = []
    results: list[str] = []
    for message in [*messages, None]:
        if message is not None and message["role"] == "tool":
            results.append(f"<tool_response>\n{message.get('content') or ''}\n</tool_response>")
            continue
        if results:
            turns.append({"role": "user", "content": "\n".join(results)})
            results = []
        if message is not None:
            turns.append(_spoken(message))
    return turns


def _spoken(message: Message) -> Message:
    calls = cast("list[dict[str, object]]", message.get("tool_calls") or [])
    if not calls:
        return message
    said = cast("str", message.get("content") or "")
    parts = [said] if said else []
    parts += [f"<tool_call>\n{_call(call)}\n</tool_call>" for call in calls]
    return {key: value for key, value in message.items() if key != "tool_calls"} | {
        "content": "\n".join(parts)
    }


def _call(call: dict[str, object]) -> str:
    function = cast("dict[str, object]", call["function"])
    name = json.dumps(function.get("name"), ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {arguments_text(function.get("arguments"))}}}'


def _function(tool: object) -> object:
    described = cast("dict[str, object]", tool)
    return described.get("function", described)
