"""What a client may say to the chat template: arguments of its own, and how much the model shall think.

An effort goes to the template as ``reasoning_effort``, ``none`` and ``minimal`` as ``enable_thinking`` false
too; what ``chat_template_kwargs`` says of either wins.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import field_validator

from .base import ApiModel, invalid
from .kinds import Entries

_MAX_KWARGS = 64
# What the server itself passes to a chat template; a client may not replace it.
_RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tools",
        "truncation",
    }
)
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# Templates that know efforts know three; those that can only switch thinking off have a switch for it.
_EFFORTS: Mapping[Effort, Mapping[str, object]] = {
    "none": {"enable_thinking": False},
    "minimal": {"enable_thinking": False, "reasoning_effort": "low"},
    "low": {"reasoning_effort": "low"},
    "medium": {"reasoning_effort": "medium"},
    "high": {"reasoning_effort": "high"},
    "xhigh": {"reasoning_effort": "high"},
    "max": {"reasoning_effort": "high"},
}


class TemplateFields(ApiModel):
    """Arguments for the chat template, by name."""

    chat_template_kwargs: Annotated[dict[str, object], Entries(_MAX_KWARGS)] | None = None

    @field_validator("chat_template_kwargs", mode="after")
    @classmethod
    def _none_of_ours(cls, given: dict[str, object] | None) -> dict[str, object] | None:
        for name in given or ():
            if name in _RESERVED_KWARGS:
                raise invalid("is set by the server.", name)
        return given


def template_kwargs_of(fields: TemplateFields, effort: Effort | None) -> dict[str, object]:
    """Return what the client has to say to the chat template."""
    given = fields.chat_template_kwargs or {}
    return given if effort is None else {**_EFFORTS[effort], **given}
