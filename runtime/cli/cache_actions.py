"""The commands of ``samovar cache``: from arguments to output and an exit code."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Final

from ...storage.container import read_header
from ...storage.entry import BASE_FOLDER
from ...storage.fs import OsFilesystem
from ...storage.room import Limits
from ...storage.scan import Tally
from ..config.units import parse_size
from ..progress import shown_progress
from . import cache_listing, cache_outcome, cache_text, cache_usage
from .cache_survey import survey
from .cache_upkeep import clear, collect, entries_of, held, is_cache
from .cache_verify import verify
from .complaints import FAILED, OK
from .options import load_config

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from .cache_survey import Survey
    from .cache_upkeep import Swept

FS: Final = OsFilesystem()


class BadCacheRequest(Exception):
    """The command line asks for what cannot be."""

    code = "bad_cache_request"
    retryable = False
    usage = True


# -- reading


def _ls(args: Namespace) -> int:
    seen = survey(FS, _root(args))
    _print(args, cache_listing.listing(seen), cache_listing.listing_lines(seen, time.time()))
    return FAILED if seen.failures else OK


def _show(args: Namespace) -> int:
    seen = survey(FS, _root(args))
    found = cache_listing.entry_with(seen, args.id)
    stored = read_header(FS, found.entry.path)
    lines = cache_listing.details_lines(seen, found, stored, time.time())
    _print(args, cache_listing.details(seen, found, stored), lines)
    return OK


def _du(args: Namespace) -> int:
    seen = survey(FS, _root(args))
    space = FS.space(next(folder for folder in (seen.root, *seen.root.parents) if folder.is_dir()))
    _print(args, cache_usage.usage(seen, space), cache_usage.usage_lines(seen, space))
    return FAILED if seen.failures else OK


def _verify(args: Namespace) -> int:
    root, bound = _root(args), None
    repair = args.repair and is_cache(FS, root)
    if repair:
        bound = Limits(load_config(args).config.cache.ssd.max).quarantine_bytes
    with held(FS, root) if repair else contextlib.nullcontext(), shown_progress(sys.stderr) as report:
        verdict = verify(FS, root, report, bound)
    _print(args, cache_outcome.verdict(root, verdict), cache_outcome.verdict_lines(root, verdict))
    return OK if verdict.passed else FAILED


# -- changing


def _gc(args: Namespace) -> int:
    root, max_bytes = _root(args), _size(args.max)
    if not is_cache(FS, root):
        return _nothing(args, root)
    with held(FS, root):
        swept = collect(FS, root, max_bytes, everything=args.all)
    return _swept(args, root, swept)


def _clear(args: Namespace) -> int:
    root = _root(args)
    if not is_cache(FS, root):
        return _nothing(args, root)
    namespace = "" if args.namespace == BASE_FOLDER else args.namespace
    with held(FS, root):
        seen = survey(FS, root)
        identity = None if args.identity is None else _identity(seen, args.identity)
        if not args.yes and not _agreed(seen, identity, namespace):
            raise BadCacheRequest(f"nothing was removed from {root}; --yes says that you mean it")
        swept = clear(FS, seen, identity, namespace)
    return _swept(args, root, swept)


def _identity(seen: Survey, given: str) -> str:
    """Return the id that ``given`` is, or that it alone begins."""
    ids = [one.identity.id for one in seen.identities]
    named = [given] if given in ids else [each for each in ids if given and each.startswith(given)]
    if len(named) != 1:
        known = ", ".join(ids) or "none"
        raise BadCacheRequest(
            f"{len(named)} identities in {seen.root} are called {given!r}; there are: {known}"
        )
    return named[0]


def _agreed(seen: Survey, identity: str | None, namespace: str | None) -> bool:
    """Ask whoever sits at the terminal; False where nobody does."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sizes = [found.entry.file_bytes for found in entries_of(seen, identity, namespace)]
    what = cache_text.tally("entry/entries", Tally(len(sizes), sum(sizes)))
    sys.stderr.write(f"Remove {what} from {seen.root}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _size(given: str | None) -> int | None:
    try:
        return None if given is None else parse_size(given)
    except ValueError as error:
        raise BadCacheRequest(f'--max: found "{given}"; expected a size like 8GiB: {error}') from error


def _nothing(args: Namespace, root: Path) -> int:
    _print(args, cache_outcome.nothing(root), [f"nothing to do: no cache in {root}"])
    return OK


def _swept(args: Namespace, root: Path, swept: Swept) -> int:
    _print(args, cache_outcome.swept(root, swept), cache_outcome.swept_lines(root, swept))
    return FAILED if swept.failures else OK


# -- all of them


def _root(args: Namespace) -> Path:
    """Return the folder: ``--dir``, or what is configured. Raises BadCacheRequest and ConfigError."""
    if args.dir is not None:
        if not args.dir.is_dir():
            raise BadCacheRequest(f"--dir: {args.dir} is no folder")
        return args.dir
    folder = load_config(args).config.cache.ssd.folder()
    if folder is None:
        raise BadCacheRequest("cache.ssd.dir is off; --dir names a folder")
    return folder


def _print(args: Namespace, document: dict[str, object], lines: Iterable[str]) -> None:
    if args.json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)


ACTIONS: Final[dict[str, Callable[[Namespace], int]]] = {
    "ls": _ls,
    "show": _show,
    "du": _du,
    "verify": _verify,
    "gc": _gc,
    "clear": _clear,
}
