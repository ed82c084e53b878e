"""The ``messages`` of a chat request, and what chat templates get of them.

Rules (all documented for clients):

- content is a string, or a list of text parts that are joined in order with nothing between them, so
  that the split and the whole give the same prompt; null or absent is allowed for assistant and tool
  turns and means empty text.
- ``developer`` becomes ``system``; a later system turn stays where it is.
- ``tool_calls`` and ``tool_call_id`` pass through unchanged, arguments included, be they a string, a
  broken string or an object: a bad call in the history must not poison the session.
- other keys of a message are history that clients carry along (ids, annotations, timestamps); they have
  no place in a template and are dropped. Keys that ask for something (``prefix``) are refused.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from .base import OpenModel, absent, invalid, unsupported_part
from .kinds import LIST, OBJECT, TEXT, Chars, Items, Only, by_kind

MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_TOOL_CALLS = 128
_NAME_CHARS = 256
_NULL_CONTENT_ROLES = frozenset({"assistant", "tool"})

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
Name: TypeAlias = Annotated[str, Chars(1, _NAME_CHARS)]


class ContentPart(OpenModel):
    """A piece of text; ``refusal`` in an assistant's turn alone. Other types are refused by name."""

    type: Annotated[str, Field(json_schema_extra={"enum": ["text", "refusal"]})]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _has_words(self) -> Self:
        if self.type not in {"text", "refusal"}:
            raise unsupported_part(self.type)
        if (self.refusal if self.type == "refusal" else self.text) is None:
            raise absent(self.type)
        return self

    @property
    def words(self) -> str:
        """The text of the part."""
        return (self.refusal if self.type == "refusal" else self.text) or ""


class HistoryFunction(OpenModel):
    """A function that was called, with whatever the model gave it."""

    name: Name
    arguments: (
        Annotated[
            Annotated[str, TEXT] | Annotated[dict[str, object], OBJECT], by_kind("a string or an object")
        ]
        | None
    ) = None


class HistoryCall(OpenModel):
    """A tool call of an earlier reply."""

    id: str | None = None
    function: HistoryFunction


Parts: TypeAlias = Annotated[list[ContentPart], Items(0, MAX_PARTS)]
Content: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[Parts, LIST], by_kind("a string or a list of text parts")
]
_NO_PREFILL = "replies cannot be prefilled."
_NO_LEGACY_CALLS = "it was replaced by tool_calls."
_OFF = False


class ChatMessage(OpenModel):
    """A turn of a conversation."""

    role: Role
    content: Content | None = None
    name: Name | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[HistoryCall], Items(0, MAX_TOOL_CALLS)] | None = None
    function_call: Annotated[object, Only(_NO_LEGACY_CALLS)] = None
    prefix: Annotated[object, Only(_NO_PREFILL, _OFF)] = None
    partial: Annotated[object, Only(_NO_PREFILL, _OFF)] = None

    @model_validator(mode="after")
    def _content_fits_role(self) -> Self:
        if self.content is None and self.role not in _NULL_CONTENT_ROLES:
            raise absent("content")
        if isinstance(self.content, list):
            self._check_parts(self.content)
        return self

    def _check_parts(self, parts: list[ContentPart]) -> None:
        if not parts and self.role not in _NULL_CONTENT_ROLES:
            raise invalid("must hold at least one part.", "content")
        if self.role != "assistant":
            for index, part in enumerate(parts):
                if part.type == "refusal":
                    raise unsupported_part(part.type, "content", index)

    @property
    def words(self) -> str:
        """The whole content as one string."""
        if isinstance(self.content, list):
            return "".join(part.words for part in self.content)
        return self.content or ""


Messages: TypeAlias = Annotated[list[ChatMessage], Items(1, MAX_MESSAGES)]


def template_ready(messages: Sequence[ChatMessage]) -> tuple[Mapping[str, object], ...]:
    """Return the turns as ``prompt.Conversation`` takes them, every content a string."""
    return tuple(_ready(message) for message in messages)


def _ready(message: ChatMessage) -> Mapping[str, object]:
    ready: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.words,
    }
    if message.name is not None:
        ready["name"] = message.name
    if message.tool_call_id is not None:
        ready["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        ready["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        ready["tool_calls"] = [_call(call) for call in message.tool_calls]
    return ready


def _call(call: HistoryCall) -> dict[str, object]:
    function: dict[str, object] = {"name": call.function.name}
    if call.function.arguments is not None:
        function["arguments"] = call.function.arguments
    named: dict[str, object] = {} if call.id is None else {"id": call.id}
    return named | {"type": "function", "function": function}
