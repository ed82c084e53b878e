"""The items of a Responses request's ``input``: what was said, called, returned and thought so far.

Items are history that clients carry along, mostly as this server gave it to them, so fields that have no
place in a prompt (status, phase, annotations, logprobs) are dropped. An item or part of a kind that cannot be
shown to the model is refused by its type: what it holds would be missing from the prompt.
"""

from typing import Annotated, Final, Literal, Self, TypeAlias, cast

from pydantic import AfterValidator, Discriminator, Tag, model_validator

from .base import OpenModel, not_supported, unsupported_part
from .kinds import LIST, TEXT, Chars, by_kind
from .kinds import Items as ListOf

MAX_ITEMS: Final = 4096
MAX_PARTS: Final = 256
_MAX_ID_CHARS: Final = 256
_SHOWN_CHARS: Final = 64

ItemId: TypeAlias = Annotated[str, Chars(1, _MAX_ID_CHARS)]


def _refuse_item(kind: str) -> str:
    raise not_supported(f"items of type {kind[:_SHOWN_CHARS]!r} do not exist here.")


class TextPart(OpenModel):
    """A part of a text."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(OpenModel):
    """A model's refusal in an earlier reply; a part of its text."""

    type: Literal["refusal"]
    refusal: str


class OtherPart(OpenModel):
    """A part that cannot be put into a prompt: images, files, audio."""

    type: str

    @model_validator(mode="after")
    def _refused(self) -> Self:
        raise unsupported_part(self.type)


def type_of(value: object) -> str | None:
    """Return the ``type`` of an object, sent or already parsed; None where it has none, "" for no string."""
    if isinstance(value, dict):
        found = cast("dict[str, object]", value).get("type")
    else:
        found = getattr(value, "type", None)
    return found if found is None or isinstance(found, str) else ""


def _part_tag(value: object) -> str:
    kind = type_of(value)
    return "<text part>" if kind in _TEXTS else "<refusal>" if kind == "refusal" else "<other>"


def _item_tag(value: object) -> str:
    kind = type_of(value)
    if kind is None:  # OpenAI's easy forms: a message by its role, a reference by its id alone
        easy = isinstance(value, dict) and "id" in value and "role" not in value
        kind = "item_reference" if easy else "message"
    return f"<{kind}>" if kind in _KINDS else "<other>"


_TEXTS: Final = frozenset({"input_text", "output_text", "text"})
_KINDS: Final = frozenset({"message", "function_call", "function_call_output", "reasoning", "item_reference"})

Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("<text part>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | Annotated[OtherPart, Tag("<other>")],
    Discriminator(_part_tag),
]
Parts: TypeAlias = Annotated[list[Part], ListOf(0, MAX_PARTS)]
Content: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[Parts, LIST], by_kind("a string or a list of parts")
]


class MessageItem(OpenModel):
    """Something said; ``type`` may be left out."""

    type: Literal["message"] = "message"
    id: ItemId | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(OpenModel):
    """A call that the model made. ``arguments`` are carried as they stand, also where they are no JSON."""

    type: Literal["function_call"]
    id: ItemId | None = None
    call_id: ItemId
    name: Annotated[str, Chars(1, _MAX_ID_CHARS)]
    arguments: str


class FunctionOutputItem(OpenModel):
    """What the client's function gave."""

    type: Literal["function_call_output"]
    id: ItemId | None = None
    call_id: ItemId
    output: Content


class ReasoningPart(OpenModel):
    """A part of the model's thoughts."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(OpenModel):
    """What the model thought. Goes back to it where the text is there, in ``content`` or as sealed here.

    Summaries are dropped: they are not what it thought. So is what another server encrypted.
    """

    type: Literal["reasoning"]
    id: ItemId | None = None
    content: Annotated[list[ReasoningPart], ListOf(0, MAX_PARTS)] | None = None
    encrypted_content: str | None = None


class ReferenceItem(OpenModel):
    """An item of a stored response by its id; ``type`` may be left out."""

    type: Literal["item_reference"] = "item_reference"
    id: ItemId


class OtherItem(OpenModel):
    """An item of a tool or feature that is not here."""

    type: Annotated[str, AfterValidator(_refuse_item)]


KnownItem: TypeAlias = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
InputItem: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ReferenceItem, Tag("<item_reference>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_item_tag),
]
Items: TypeAlias = Annotated[list[InputItem], ListOf(0, MAX_ITEMS)]
Input: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[Items, LIST], by_kind("a string or a list of items")
]


def text_of(content: str | list[TextPart | RefusalPart | OtherPart]) -> str:
    """Return a content's text; parts are joined with nothing between them, as in chat completions."""
    if isinstance(content, str):
        return content
    return "".join(
        part.text if isinstance(part, TextPart) else part.refusal
        for part in content
        if not isinstance(part, OtherPart)
    )
