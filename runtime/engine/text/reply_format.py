"""How a model marks up its replies, and which of its tokens are control tokens: read off its tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..prompt import PLAIN_TOOLS, ReplyFormat, ToolFormat
from .controls import Control, Controls
from .templates import takes_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from tokenizers import AddedToken


def reply_format(wrapper: TokenizerWrapper) -> ReplyFormat:
    """Return the model's format as mlx-lm knows it; tools in plain text where its template takes none."""
    reasoning = None
    if wrapper.has_thinking:
        reasoning = cast("str", wrapper.think_start), cast("str", wrapper.think_end)
    return ReplyFormat(_tool_format(wrapper), reasoning)


def controls_of(wrapper: TokenizerWrapper, added: Mapping[int, AddedToken], reply: ReplyFormat) -> Controls:
    """Return the control tokens: special ones, and added ones that the template or the reply's marks name.

    Other added tokens (line feeds in a row, HTML tags) are ordinary text that has an id of its own. Those
    that the template names come first.
    """
    source = _source(wrapper) + "".join(marks_of(reply))
    named = {token for token, each in added.items() if each.content.strip() and each.content in source}
    wanted = [token for token, each in added.items() if each.content.strip() and each.special]
    ordered = [*sorted(named), *sorted(set(wanted) - named)]
    unknown = cast("int | None", wrapper.unk_token_id)  # pyright: ignore[reportUnknownMemberType]
    return Controls([_control(token, added[token]) for token in ordered], unknown)


def marks_of(reply: ReplyFormat) -> tuple[str, ...]:
    """Return the texts that mark tool calls and reasoning in a reply."""
    return tuple(filter(None, (reply.tools.start, reply.tools.end, *(reply.reasoning or ()))))


def _tool_format(wrapper: TokenizerWrapper) -> ToolFormat:
    if not (wrapper.has_tool_calling and wrapper.has_chat_template and takes_tools(wrapper)):
        return PLAIN_TOOLS
    parser = cast("Callable[..., object]", wrapper.tool_parser).__module__.rpartition(".")[2]
    start, end = cast("str", wrapper.tool_call_start), cast("str", wrapper.tool_call_end)
    return ToolFormat(start, end, parser, native=True)


def _control(token: int, added: AddedToken) -> Control:
    return Control(token, added.content, lstrip=added.lstrip, rstrip=added.rstrip)


def _source(wrapper: TokenizerWrapper) -> str:
    """Return the text of the chat template; of all where there are several, nothing where it is code."""
    template = cast("object", wrapper.chat_template)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(template, str):
        return template
    if isinstance(template, dict):
        return "".join(map(str, cast("dict[str, object]", template).values()))
    return ""
