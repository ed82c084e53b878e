"""The arguments of ``samovar chat``."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from .options import add_config_options

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from .free_order import FreeOrderParser

MAX_WORDS = 2
KEY_VARIABLE = "SAMOVAR_API_KEY"
_MOST_TOKENS = 2**31 - 1
_MOST_TEMPERATURE = 2.0


class _Words(argparse.Action):
    """Takes MODEL and PROMPT; more is a prompt that was not quoted."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        del option_string
        words = [] if values is None else list(values)
        if len(words) > MAX_WORDS:
            parser.error(f"at most MODEL and PROMPT are taken, not {len(words)} words; quote the prompt")
        setattr(namespace, self.dest, words)


def add_chat_options(parser: FreeOrderParser) -> None:
    """Let the parser take them."""
    parser.usage = "%(prog)s [MODEL] [--url URL] [PROMPT] [options]"
    parser.words = parser.add_argument(
        "words",
        nargs="*",
        action=_Words,
        metavar="MODEL PROMPT",
        help="a model as for serve, or with --url a name that the server knows; and what to say to it: "
        "the reply is then all that is printed, as it is when something is piped in; "
        "behind -- a prompt may begin with a dash",
    )
    parser.add_argument("--url", metavar="URL", help="talk to the server there, like http://127.0.0.1:8080")
    key = f"the server's key; better in the variable {KEY_VARIABLE}, where other users cannot read it"
    parser.add_argument("--api-key", metavar="KEY", help=key)
    parser.add_argument("--system", metavar="TEXT", help="system text")
    parser.add_argument("--max-tokens", type=_tokens, metavar="N", help="longest reply")
    parser.add_argument(
        "--temperature", type=_temperature, metavar="T", help="0 to 2; 0 always takes the likeliest"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed draws the same reply")
    parser.add_argument("--no-history", action="store_true", help="do not remember what is typed")
    add_config_options(parser)


def words_for_server(words: Sequence[str], *, word_first: bool) -> tuple[str | None, str | None]:
    """Return model and prompt where a server has the models.

    A word alone is the model only if it stands before all options and has no space in it.
    """
    if len(words) == 1 and (not word_first or any(map(str.isspace, words[0]))):
        return None, words[0]
    return (words[0] if words else None), (words[1] if len(words) > 1 else None)


def _tokens(text: str) -> int:
    count = int(text)
    if not 1 <= count <= _MOST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {_MOST_TOKENS}")
    return count


def _temperature(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0.0 <= value <= _MOST_TEMPERATURE):
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {_MOST_TEMPERATURE:g}")
    return value
