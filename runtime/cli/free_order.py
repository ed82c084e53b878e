"""An argument parser that takes positionals on both sides of an option."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Sequence

_WORDS_FOLLOW = "--"


class FreeOrderParser(ArgumentParser):
    """With ``words`` set to an argument of ``nargs="*"``, ``chat MODEL --url U PROMPT`` works.

    argparse of Python 3.11 refuses that, and what begins with a dash behind ``--``, too. Parsed arguments
    then tell as ``word_first`` whether a positional stood first.
    """

    words: Action | None = None

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - one of its overloads
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse; see the class."""
        into = Namespace() if namespace is None else namespace
        words = self.words
        if words is None or args is None:
            return super().parse_known_args(args, into)
        before, behind = _parted(args)
        self.words = None  # parse_known_intermixed_args comes back to this method
        try:
            found, rest = self.parse_known_intermixed_args(before, into)
        finally:
            self.words = words
        if behind:
            words(self, found, [*getattr(found, words.dest), *behind])
        found.word_first = bool(before) and not before[0].startswith("-")
        return found, rest


def _parted(args: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return what stands before the first ``--``, and what behind it: words alone."""
    if _WORDS_FOLLOW not in args:
        return args, ()
    place = args.index(_WORDS_FOLLOW)
    return args[:place], args[place + 1 :]
