"""Which of the words on the command line is the model and which the prompt."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from ...engine.errors import ModelNotFound, ModelSourceInvalid
from ...engine.models.sources import ALIASES, parse_source

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIKE: Final = 0.75


def split_words(words: Sequence[str]) -> tuple[str | None, str | None]:
    """Return model and prompt out of at most two words.

    A word alone is the model where it has the form of one, or is nearly an alias (a slip then is told as
    such); else it is the prompt. Looks at the file system.
    """
    match words:
        case []:
            return None, None
        case [word]:
            return (word, None) if _is_model(word) else (None, word)
        case [model, prompt, *_]:
            return model, prompt
        case _:
            raise AssertionError(words)


def _is_model(word: str) -> bool:
    try:
        parse_source(word)
    except ModelNotFound:
        return True
    except ModelSourceInvalid:
        return word.startswith("pypi:") or bool(get_close_matches(word, ALIASES, 1, _ALIKE))
    return True
