"""The items that a request brings: each with an id, references replaced by what they refer to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import orjson

from ..errors import HttpError
from ..schema.base import ApiModel, parse
from ..schema.responses_items import (
    FunctionCallItem,
    FunctionOutputItem,
    Items,
    KnownItem,
    MessageItem,
    OtherItem,
    ReasoningItem,
    ReferenceItem,
)
from .output import item_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..schema.responses_items import InputItem
    from .store import ResponseStore

Json: TypeAlias = dict[str, object]
_PREFIXES = {MessageItem: "msg", FunctionCallItem: "fc", FunctionOutputItem: "fco", ReasoningItem: "rs"}


class _Listed(ApiModel):
    items: Items


@dataclass(frozen=True, slots=True)
class GivenItem:
    """An item of the input: what it means, and how clients see it again."""

    meaning: KnownItem
    shown: Json


def given_items(
    raw: object, items: str | Sequence[InputItem] | None, store: ResponseStore
) -> list[GivenItem]:
    """Return the input as items; ``raw`` is what the client sent. Raises HttpError over lost references."""
    if items is None:
        return []
    if isinstance(items, str):
        parts = [{"type": "input_text", "text": items}]
        return [_said({"type": "message", "role": "user", "status": "completed", "content": parts})]
    sent = cast("list[Json]", raw)
    return [_given(item, sent[index], index, store) for index, item in enumerate(items)]


def known_items(values: Iterable[object]) -> list[KnownItem]:
    """Return what items mean that were validated once, or came from here."""
    listed = parse(_Listed, {"items": list(values)}).items
    return [item for item in listed if not isinstance(item, (ReferenceItem, OtherItem))]


def _said(shown: Json) -> GivenItem:
    (meaning,) = known_items([shown])
    return _with_id(meaning, shown)


def _given(item: InputItem, sent: Json, index: int, store: ResponseStore) -> GivenItem:
    match item:
        case ReferenceItem():
            shown = _stored(item.id, store)
            if shown is None:
                message = f"Item with id {item.id!r} is not, or no longer, stored here."
                raise HttpError(404, "item_not_found", message, param=f"input[{index}].id")
            return _said(shown)
        case OtherItem():  # refused by its validator
            raise TypeError(item.type)
        case _:
            return _with_id(item, sent)


def _with_id(meaning: KnownItem, shown: Json) -> GivenItem:
    named = {"id": meaning.id or item_id(_PREFIXES[type(meaning)]), "type": meaning.type}
    return GivenItem(meaning, shown | named)


def _stored(wanted: str, store: ResponseStore) -> Json | None:
    holder = store.holder(wanted)
    if holder is None:
        return None
    output = cast("Json", orjson.loads(holder.body))["output"]
    candidates = [*cast("list[Json]", output), *cast("list[Json]", orjson.loads(holder.inputs))]
    return next((item for item in candidates if item.get("id") == wanted), None)
