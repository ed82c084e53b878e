"""Anthropic's turns as a chat template knows them.

Rules (all documented for clients):

- blocks of text in a user's turn and in the system prompt are passages of their own: a line break lies
  between them. An assistant's are pieces of one reply and join as they are.
- a tool's result becomes a turn of the role ``tool``, in its place among the user's text. Where
  ``is_error`` is set its text begins with ``Error: ``: templates have no other place for it.
- an assistant's thoughts become ``reasoning_content``; redacted ones are dropped.
- turns of one role that follow each other are one turn, as Anthropic has it.
- Claude Code begins its system prompt with a line ``x-anthropic-billing-header: …`` that is meant for
  Anthropic's accounting and differs in every request. It is dropped: it tells a model nothing, and with it no
  prompt would begin as the one before (case B100).
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from ..errors import bad_value
from ..schema.anthropic_blocks import (
    OtherBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from .texts import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..schema.anthropic import Turn
    from ..schema.anthropic_blocks import ContentBlock, TextBlocks

    _Message: TypeAlias = dict[str, object]

_BILLING = "x-anthropic-billing-header:"
_BETWEEN = "\n"
_ERROR = "Error: "
_ALLOWED: Mapping[str, tuple[type, ...]] = {
    "system": (TextBlock,),
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
}


def chat_messages(system: str | TextBlocks | None, turns: Sequence[Turn]) -> tuple[Mapping[str, object], ...]:
    """Return the conversation as chat messages, every content a string.

    Raises HttpError 400 for a block that has no place in a turn of its role.
    """
    messages: list[_Message] = []
    instructions = _without_billing(_joined(system))
    if instructions:
        messages.append({"role": "system", "content": instructions})
    names: dict[str, str] = {}
    for role, blocks in _turns(turns):
        if role == "assistant":
            names.update((block.id, block.name) for block in blocks if isinstance(block, ToolUseBlock))
            messages.append(_reply(blocks))
        else:
            messages.extend(_spoken(role, blocks, names))
    return tuple(messages)


def _turns(turns: Sequence[Turn]) -> Iterator[tuple[str, list[ContentBlock]]]:
    """Yield each role's blocks, as long as the role does not change."""
    for role, following in groupby(enumerate(turns), key=lambda numbered: numbered[1].role):
        yield role, [block for index, turn in following for block in _blocks(index, turn)]


def _blocks(index: int, turn: Turn) -> list[ContentBlock]:
    if isinstance(turn.content, str):
        return [TextBlock(type="text", text=turn.content)]
    for place, block in enumerate(turn.content):
        if not isinstance(block, _ALLOWED[turn.role]):
            path = f"messages[{index}].content[{place}]"
            raise bad_value(path, f"{path}: a turn of role {turn.role} has no blocks of type {block.type}.")
    return turn.content


def _spoken(role: str, blocks: Sequence[ContentBlock], names: Mapping[str, str]) -> Iterator[_Message]:
    """Yield what the user and the tools said, in their order. ``names``: of the tools, by the calls' ids."""
    texts: list[str] = []
    results = False
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            results = True
            if texts:
                yield {"role": role, "content": _BETWEEN.join(texts)}
                texts = []
            yield _result(block, names)
        elif isinstance(block, TextBlock):
            texts.append(block.text)
    if texts or not results:
        yield {"role": role, "content": _BETWEEN.join(texts)}


def _result(block: ToolResultBlock, names: Mapping[str, str]) -> _Message:
    text = _joined(block.content)
    message: _Message = {"role": "tool", "content": _ERROR + text if block.is_error else text}
    if name := names.get(block.tool_use_id):
        message["name"] = name
    return message | {"tool_call_id": block.tool_use_id}


def _reply(blocks: Sequence[ContentBlock]) -> _Message:
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock) and block.thinking]
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    message: _Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = _BETWEEN.join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: ToolUseBlock) -> _Message:
    arguments = json_text(block.input, "messages")
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


def _joined(content: str | TextBlocks | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return _BETWEEN.join(block.text for block in content if not isinstance(block, OtherBlock))


def _without_billing(text: str) -> str:
    if not text.startswith(_BILLING):
        return text
    _, _, rest = text.partition("\n")
    return rest
