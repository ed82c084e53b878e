"""An argument parser that takes positionals on both sides of an option."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class FreeOrderParser(ArgumentParser):
    """With ``free_order`` set, ``chat MODEL --url U PROMPT`` works, which argparse of Python 3.11 refuses.

    Parsed arguments then tell as ``word_first`` whether a positional stood first.
    """

    free_order = False

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - one of its overloads
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse; see the class."""
        into = Namespace() if namespace is None else namespace
        if not self.free_order or args is None:
            return super().parse_known_args(args, into)
        self.free_order = False  # parse_known_intermixed_args comes back to this method
        try:
            found, rest = self.parse_known_intermixed_args(args, into)
        finally:
            self.free_order = True
        found.word_first = bool(args) and not args[0].startswith("-")
        return found, rest
