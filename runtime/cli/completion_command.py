"""``samovar completion bash|zsh|fish``: a script that completes the command line."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final, cast

from .complaints import OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Mapping

SHELLS: Final = ("bash", "zsh", "fish")
INSTALLING: Final = """to switch it on:
  bash:  samovar completion bash > ~/.local/share/bash-completion/completions/samovar
  zsh:   samovar completion zsh > a folder of $fpath, as _samovar
  fish:  samovar completion fish > ~/.config/fish/completions/samovar.fish
"""
_FILES: Final = ("FILE", "FILE.gguf")
_FOLDERS: Final = ("DIR", "DIR|off")


def run(args: Namespace) -> int:
    """Print the script."""
    import shtab  # noqa: PLC0415 - no other command needs it

    from .parser import build_parser  # noqa: PLC0415 - which imports this module

    parser = build_parser()
    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue] - how shtab is told
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # pyright: ignore[reportAttributeAccessIssue]
    sys.stdout.write(shtab.complete(parser, shell=args.shell))
    return OK


def _actions(parser: ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse shows its arguments nowhere else
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            for each in cast("Mapping[str, ArgumentParser]", action.choices).values():  # pyright: ignore[reportUnknownMemberType]
                yield from _actions(each)
        else:
            yield action
