"""A model's chat template: conversations to marked text (``controls.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final, cast

import jinja2

from ..errors import PromptError, TemplateError
from .arranging import ARRANGEMENTS, leaves_out
from .call_ids import renamings_for
from .client_text import as_client_text
from .controls import lone_surrogate, strings_of
from .plain_tools import in_plain_text, with_tools_told
from .tool_arguments import WRITINGS, with_arguments
from .turns import next_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..prompt import Conversation, ReplyFormat
    from .arranging import Arrangement, Messages
    from .controls import Controls

_MESSAGE_CHARACTERS: Final = 200
_OURS: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
_TOOL: Final[Mapping[str, object]] = {
    "type": "function",
    "function": {"name": "a_tool", "description": "none", "parameters": {"type": "object", "properties": {}}},
}
_FAILURES: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as marked text, ready for the reply, and how its next turns may begin."""

    text: str
    following: tuple[str, ...]


class ChatTemplate:
    """Renders conversations; any thread.

    What the client sent reaches the template in the form that it takes (``arranging.py``,
    ``tool_arguments.py``, ``call_ids.py``); where the template has no place for tools, they are told in
    plain text (``plain_tools.py``). Control tokens that the client typed stay text (``client_text.py``).
    """

    def __init__(self, wrapper: TokenizerWrapper, controls: Controls, reply: ReplyFormat) -> None:
        self._wrapper = wrapper
        self._controls = controls
        self._reply = reply

    def render(self, conversation: Conversation) -> Rendered:
        """Return the conversation with its next turns.

        A template that refuses those gives none. Raises TemplateError when the model has no template, its
        template refuses the messages however they are arranged, or ``template_kwargs`` names something that
        is not the client's to set; PromptError for text that is not Unicode.
        """
        self._check(conversation)
        one = _One(self._wrapper, self._controls, self._reply, conversation)
        messages = [dict(message) for message in conversation.messages]
        arrangement, text = self._first_taken(one, messages)
        following = next_turns(lambda more: one.attempt(arrangement, [dict(each) for each in more]), messages)
        exchange = self._controls.exchange
        return Rendered(exchange(text), tuple(exchange(other) for other in following))

    def _check(self, conversation: Conversation) -> None:
        if not self._wrapper.has_chat_template:
            raise TemplateError("this model has no chat template; use text completion")
        if taken := sorted(_OURS & conversation.template_kwargs.keys()):
            raise TemplateError(f"chat_template_kwargs may not set {', '.join(taken)}")
        kwargs = conversation.template_kwargs
        for name, value in (
            ("messages", conversation.messages),
            ("tools", conversation.tools),
            ("chat_template_kwargs", kwargs),
        ):
            try:
                broken = any(lone_surrogate(text) is not None for text in strings_of(value))
            except RecursionError as error:
                raise PromptError(f"{name} are nested too deeply") from error
            if broken:
                raise PromptError(f"{name} hold a lone surrogate, which is no character")

    def _first_taken(self, one: _One, messages: Messages) -> tuple[Arrangement, str]:
        """Return the first arrangement that the template takes whole, else the first that it takes."""
        kept: tuple[Arrangement, str] | None = None
        for arrangement in ARRANGEMENTS:
            text = one.attempt(arrangement, messages)
            if text is None:
                continue
            if not leaves_out(text, arrangement(one.sent(messages))):
                return arrangement, text
            kept = kept or (arrangement, text)
        if kept is not None:
            return kept
        assert one.refusal is not None
        raise TemplateError(f"the chat template refused the messages: {_short(one.refusal)}") from one.refusal


class _One:
    """One conversation and the template. ``refusal`` is the first that the template gave."""

    def __init__(
        self, wrapper: TokenizerWrapper, controls: Controls, reply: ReplyFormat, conversation: Conversation
    ) -> None:
        self._apply = cast("Callable[..., str]", wrapper.apply_chat_template)
        self._controls = controls
        self._reply = reply
        self._tools = cast("list[object]", controls.exchange_all(conversation.tools))
        self._kwargs = cast("Mapping[str, object]", controls.exchange_all(dict(conversation.template_kwargs)))
        self._tried: list[Messages] = []
        self._ways = [*product(renamings_for(reply.tools.parser), WRITINGS)]
        self.refusal: Exception | None = None

    def sent(self, messages: Messages) -> Messages:
        """Return the messages as the client's text."""
        return [as_client_text(message, self._controls, self._reply.reasoning) for message in messages]

    def attempt(self, arrangement: Arrangement, messages: Messages) -> str | None:
        """Return the rendered text with the messages arranged so; None where the template refuses."""
        native = self._reply.tools.native
        calls = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
        for rename, writing in self._ways if native and calls else self._ways[:1]:
            written = self.sent(with_arguments(rename(messages), writing) if native else messages)
            told = written if native else self._in_plain_text(written)
            arranged = arrangement(told)
            if arranged in self._tried:
                continue
            try:
                return self._apply(arranged, tokenize=False, add_generation_prompt=True, **self._extras())
            except _FAILURES as error:
                self._tried.append(arranged)
                self.refusal = self.refusal or error
        return None

    def _in_plain_text(self, messages: Messages) -> Messages:
        spoken = in_plain_text(messages)
        return with_tools_told(spoken, self._tools) if self._tools else spoken

    def _extras(self) -> Mapping[str, object]:
        if self._tools and self._reply.tools.native:
            return {**self._kwargs, "tools": self._tools}
        return self._kwargs


def takes_tools(wrapper: TokenizerWrapper) -> bool:
    """Whether the chat template shows the model what tools there are."""
    apply = cast("Callable[..., str]", wrapper.apply_chat_template)
    try:
        text = apply(
            [{"role": "user", "content": "x"}],
            tools=[_TOOL],
            tokenize=False,
            add_generation_prompt=True,
        )
    except _FAILURES:
        return False
    return "a_tool" in text


def _short(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[: _MESSAGE_CHARACTERS - 1]}…"
