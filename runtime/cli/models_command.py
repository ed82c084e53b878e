"""``samovar models ls|pull|convert|rm``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ..progress import shown_progress

if TYPE_CHECKING:
    from argparse import Namespace

    from ..engine.models.store import ModelStore, StoredModel

MB = 10**6


class NoGgufFile(Exception):
    """``models convert`` was given something that is no .gguf file."""

    code = "model_source_invalid"
    retryable = False


def ls(args: Namespace) -> int:
    """Print the converted models."""
    models = _store().list()
    if args.json:
        sys.stdout.write(json.dumps([_facts(model) for model in models], indent=2) + "\n")
        return 0
    for model in models:
        aliases = f" ({', '.join(model.aliases)})" if model.aliases else ""
        sys.stdout.write(
            f"{model.name}{aliases}  {model.manifest.size_bytes / MB:.1f} MB  {model.manifest.source}\n"
        )
    return 0


def pull(args: Namespace) -> int:
    """Make a model ready and print its folder."""
    return _make_ready(args.source)


def convert(args: Namespace) -> int:
    """Convert a .gguf file and print the folder of the result."""
    if not args.source.lower().endswith(".gguf") or args.source.startswith("pypi:"):
        raise NoGgufFile(f"{args.source!r} is no .gguf file")
    return _make_ready(args.source)


def rm(args: Namespace) -> int:
    """Remove a converted model."""
    _store().remove(args.name)
    return 0


def _make_ready(text: str) -> int:
    from ..engine.models.sources import parse_source  # noqa: PLC0415 - see _store

    with shown_progress(sys.stderr) as progress:
        path = _store().resolve(parse_source(text), progress)
    sys.stdout.write(f"{path}\n")
    return 0


def _store() -> ModelStore:
    from ..engine.models.store import ModelStore  # noqa: PLC0415 - the engine package loads OpenBLAS

    return ModelStore()


def _facts(model: StoredModel) -> dict[str, object]:
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "path": str(model.path),
        "size_bytes": model.manifest.size_bytes,
        "source": model.manifest.source,
        "created_s": model.manifest.created_s,
    }
