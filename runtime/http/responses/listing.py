"""Pages of a response's input items, as OpenAI lists things."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import bad_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .inputs import Json

MAX_PAGE: Final = 100
_PAGE: Final = 20
_ORDERS: Final = ("desc", "asc")


def page_of(items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """Return the page that ``limit``, ``order`` and ``after`` ask for. Raises HttpError 400 over bad ones."""
    order = query.get("order", "desc")
    if order not in _ORDERS:
        raise bad_value("order", "order must be asc or desc.")
    ordered = [*items] if order == "asc" else [*reversed(items)]
    start = _behind(ordered, query.get("after"))
    end = start + _limit(query.get("limit"))
    page = ordered[start:end]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": end < len(ordered),
    }


def _limit(given: str | None) -> int:
    if given is None:
        return _PAGE
    limit = int(given) if given.isascii() and given.isdigit() and len(given) <= len(str(MAX_PAGE)) else 0
    if not 1 <= limit <= MAX_PAGE:
        raise bad_value("limit", f"limit must be an integer from 1 to {MAX_PAGE}.")
    return limit


def _behind(items: Sequence[Json], after: str | None) -> int:
    if after is None:
        return 0
    found = next((index for index, item in enumerate(items) if item["id"] == after), None)
    if found is None:
        raise bad_value("after", "after must be the id of an item of this response.")
    return found + 1
