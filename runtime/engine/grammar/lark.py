"""A Lark grammar, put together rule by rule, over the tokens of one model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .sources import JSON_STYLE
from .vocabulary import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .vocabulary import Vocabulary

PLAIN_ESCAPES = 'nrbtf\\"'
"""What may follow a backslash in JSON that others than JSON parsers read: no ``\\u``."""


SPACE = '" "?'
"""Allow one space."""


class Lark:
    """Rules of a grammar under way. Its methods return items, to be joined by spaces into rules.

    Where a text holds tokens of the tokenizer's own (marks, control tokens), items demand just those.
    ``lenient``: what llguidance does not know in a schema is left out of account.
    """

    def __init__(self, vocabulary: Vocabulary, *, lenient: bool) -> None:
        self._vocabulary = vocabulary
        self._lenient = lenient
        self._rules: list[str] = []

    def has(self, mark: str) -> bool:
        """Whether the tokenizer has a token for ``mark``."""
        return self._vocabulary.token_of(mark) is not None

    def literal(self, text: str) -> str:
        """Demand ``text``."""
        return self._vocabulary.literal(text)

    def json(self, schema: Mapping[str, object], *, escapes: str | None = None) -> str:
        """Demand JSON by ``schema``."""
        options: dict[str, object] = {**JSON_STYLE, "lenient": self._lenient}
        if escapes is not None:
            options["json_allowed_escapes"] = escapes
        return self._rule("%json " + json.dumps({**schema, "x-guidance": options}))

    def either(self, items: Iterable[str]) -> str:
        """Demand one of several."""
        return "(" + " | ".join([self._rule(item) for item in items]) + ")"

    def until(self, end: str) -> str:
        """Allow any text up to ``end``, and demand that. An ``end`` of "" is the end of the reply."""
        parts = self._vocabulary.parts(end)
        plain = 0
        while plain < len(parts) and not self._vocabulary.is_special(parts[plain]):
            plain += 1
        rest = self.literal("".join(parts[plain:])) if plain < len(parts) else ""
        if not plain:
            return f"/(?s:.*)/ {rest}".strip()
        words = self._rule(f"/(?s:.*){_escaped(''.join(parts[:plain]))}/", "[lazy]")
        return f"{words} {rest}".strip()

    def holding(self, texts: Iterable[str], within: int) -> str:
        """Demand one of ``texts`` behind at most ``within`` other characters."""
        names = "|".join(map(_escaped, texts))
        return self._rule(f"/(?s:.{{0,{within}}})({names})/", "[lazy]")

    def grammar(self, start: str) -> str:
        """Return the whole grammar, whose replies are what ``start`` demands."""
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name


def text(value: str) -> str:
    """Demand a text in which no marks are looked for."""
    return quoted(value)


def _escaped(value: str) -> str:
    """Return ``value`` as part of a regular expression between slashes."""
    return "".join(each if each.isalnum() or not each.isascii() else f"\\x{ord(each):02x}" for each in value)
