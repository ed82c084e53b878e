"""``samovar models ls|pull|convert|rm``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ..progress import shown_progress
from .cache_text import size
from .complaints import OK, printable

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from ..engine.models.hub import HubModel
    from ..engine.models.store import ModelStore, StoredModel


class BadModelRequest(Exception):
    """The command line asks for what cannot be done with models."""

    code = "bad_model_request"
    retryable = False
    usage = True


class NoGgufFile(BadModelRequest):
    """``models convert`` was given something that is no .gguf file."""

    code = "model_source_invalid"


def ls(args: Namespace) -> int:
    """Print the models of this machine: converted ones, and what the hub's client has fetched."""
    from ..engine.models.hub import cached_hub_models  # noqa: PLC0415 - see _store

    converted, fetched = _store().list(), cached_hub_models()
    if args.json:
        facts = [*map(_facts, converted), *map(_hub_facts, fetched)]
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return OK
    for model in converted:
        aliases = f" ({', '.join(model.aliases)})" if model.aliases else ""
        _line(f"{model.name}{aliases}", model.manifest.size_bytes, model.manifest.source)
    for repository in fetched:
        _line(repository.repository, repository.size_bytes, "Hugging Face")
    return OK


def pull(args: Namespace) -> int:
    """Make a model ready and print its folder."""
    return _make_ready(args.source)


def convert(args: Namespace) -> int:
    """Convert a .gguf file and print the folder of the result."""
    if not args.source.lower().endswith(".gguf") or args.source.startswith("pypi:"):
        raise NoGgufFile(f"{args.source!r} is no .gguf file")
    return _make_ready(args.source) if args.to is None else _convert_to(args.source, args.to)


def rm(args: Namespace) -> int:
    """Remove a converted model, after asking. Nothing outside of the folder for models is ever removed."""
    store = _store()
    if "/" in args.name and not args.name.startswith((".", "/", "~")):
        raise BadModelRequest(f"{args.name} belongs to the hub's client: hf cache rm model/{args.name}")
    path = store.folder_of(args.name)
    if not args.yes and not _agreed(path):
        raise BadModelRequest(f"{path} was not removed; --yes says that you mean it")
    store.remove(args.name)
    return OK


def _make_ready(text: str) -> int:
    from ..engine.models.sources import parse_source  # noqa: PLC0415 - see _store

    with shown_progress(sys.stderr) as progress:
        path = _store().resolve(parse_source(text), progress)
    sys.stdout.write(f"{path}\n")
    return OK


def _convert_to(source: str, target: Path) -> int:
    from ..engine.models.gguf import convert_gguf  # noqa: PLC0415 - see _store
    from ..engine.models.sources import GgufFile, parse_source  # noqa: PLC0415

    file, folder = parse_source(source), target.expanduser().absolute()
    assert isinstance(file, GgufFile)
    if folder.exists() or folder.is_symlink():
        raise BadModelRequest(f"--to: {folder} is there already")
    with shown_progress(sys.stderr) as progress:
        convert_gguf(file.path, folder, source=str(file.path), progress=progress)
    sys.stdout.write(f"{folder}\n")
    return OK


def _agreed(path: Path) -> bool:
    """Ask whoever sits at the terminal; False where nobody does."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    size_bytes = sum(file.lstat().st_size for file in path.rglob("*"))
    sys.stderr.write(f"Remove {path} ({size(size_bytes)})? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _store() -> ModelStore:
    from ..engine.models.store import ModelStore  # noqa: PLC0415 - the engine package loads OpenBLAS

    return ModelStore()


def _line(name: str, size_bytes: int, source: str) -> None:
    sys.stdout.write(f"{printable(name)}  {size(size_bytes)}  {printable(source)}\n")


def _facts(model: StoredModel) -> dict[str, object]:
    return {
        "name": model.name,
        "kind": "converted",
        "aliases": list(model.aliases),
        "path": str(model.path),
        "size_bytes": model.manifest.size_bytes,
        "source": model.manifest.source,
        "created_s": model.manifest.created_s,
    }


def _hub_facts(model: HubModel) -> dict[str, object]:
    return {
        "name": model.repository,
        "kind": "hub",
        "aliases": [],
        "path": str(model.path),
        "size_bytes": model.size_bytes,
        "source": model.repository,
        "created_s": None,
    }
