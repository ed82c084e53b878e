"""How large a client's schema or grammar may be: llguidance descends into them by recursion.

Some 5,000 definitions that refer to each other in a chain overflow a stack of 8 MB, which ends the process.
What these limits let through needs an eighth of the stack that grammars are compiled on (``STACK_BYTES``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | float | bool | None"

STACK_BYTES: Final = 64 << 20
MOST_CHARACTERS: Final = 200_000
MOST_CHOICES: Final = 2_000
MOST_SCHEMA_DEPTH: Final = 64
MOST_CHAINED: Final = 5_000
"""Levels that a path through all references of a schema may have."""
MOST_GRAMMAR_LEVELS: Final = 4_000
"""Rules and brackets of a grammar."""

_LEVELS = re.compile(r"[(\[{]|^[^\S\n]*[?!]?[A-Za-z_][\w.{}-]*[^:\n\"/]*:", re.MULTILINE)


class TooLarge(Exception):
    """A schema or grammar is beyond a limit; the text says which."""


def check_length(source: str) -> None:
    """Refuse a source of too many characters."""
    if len(source) > MOST_CHARACTERS:
        raise TooLarge(f"it has {len(source)} characters; at most {MOST_CHARACTERS} are taken")


def check_grammar(source: str) -> None:
    """Refuse a Lark grammar that may nest too deeply."""
    levels = len(_LEVELS.findall(source))
    if levels > MOST_GRAMMAR_LEVELS:
        raise TooLarge(f"it has {levels} rules and brackets; at most {MOST_GRAMMAR_LEVELS} are taken")


def check_schema(schema: object) -> None:
    """Refuse a schema that nests too deeply, by itself or through its references."""
    deepest, references = 0, set[str]()
    pending = [(cast("Json", schema), 1)]
    while pending:
        value, depth = pending.pop()
        deepest = max(deepest, depth)
        if isinstance(value, str) or value is None:
            continue
        if isinstance(value, list):
            pending += [(each, depth + 1) for each in value]
        elif not isinstance(value, int | float):
            pending += [(each, depth + 1) for each in value.values()]
            if isinstance(reference := value.get("$ref"), str):
                references.add(reference)
    if deepest > MOST_SCHEMA_DEPTH:
        raise TooLarge(f"it nests {deepest} levels deep; at most {MOST_SCHEMA_DEPTH} are taken")
    if deepest * (len(references) + 1) > MOST_CHAINED:
        raise TooLarge(f"{len(references)} references over {deepest} levels are more than can be followed")
