"""A server with one defect put in on purpose: ``python -m tests.soak.planted DEFECT serve …``.

For proof.py, which shows that a soak finds each of them. Everything else is the real thing.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING, Any

from samovar.runtime import cli
from samovar.runtime.requestlog import LineLog
from samovar.runtime.serving import TreeServing
from samovar.storage.fs import OsFilesystem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PAGE_BYTES = 256 << 10


def wrong_prefix() -> None:
    """Lend the state of another prefix, as long as the one that was asked for, now and then."""
    from samovar.runtime.engine.state.snapshots import MlxCheckpoint  # noqa: PLC0415 - loads MLX

    right, calls, lent = MlxCheckpoint.lend, itertools.count(1), list[Any]()

    def lend(self: MlxCheckpoint, length: int) -> Any:
        lent[:] = [*lent[-8:], self]
        others = [each for each in lent if each is not self and len(each.spec.tokens) >= length]
        return right(others[0] if others and next(calls) % 3 == 0 else self, length)

    MlxCheckpoint.lend = lend


def after_requests(defect: Callable[[], object]) -> None:
    ended = LineLog.request_ended

    def request_ended(self: LineLog, record: Any) -> None:
        ended(self, record)
        if record.path.startswith("/v1/"):
            defect()

    LineLog.request_ended = request_ended


def leaks_descriptors() -> None:
    after_requests(lambda: os.open(os.devnull, os.O_RDONLY))


def leaks_memory() -> None:
    hoard: list[bytes] = []
    after_requests(lambda: hoard.append(os.urandom(PAGE_BYTES)))


def counts_backwards() -> None:
    right, calls = TreeServing.stats, itertools.count(1)

    async def stats(self: TreeServing) -> Mapping[str, object]:
        told: dict[str, Any] = dict(await right(self))
        if next(calls) % 7 == 0 and told["prompt_cache"]:
            told["prompt_cache"] = {**told["prompt_cache"], "misses": 0}
        return told

    TreeServing.stats = stats


def after_renames(defect: Callable[[Path], object]) -> None:
    right, calls = OsFilesystem.rename, itertools.count(1)

    def rename(self: OsFilesystem, source: Path, target: Path) -> None:
        right(self, source, target)
        if target.suffix == ".kv" and next(calls) % 3 == 0:
            defect(target)

    OsFilesystem.rename = rename


def loses_files() -> None:
    """Tell of files as durable that are not there."""
    after_renames(os.unlink)


def tears_files() -> None:
    after_renames(lambda path: os.truncate(path, path.stat().st_size - 100))


def leaves_files() -> None:
    after_renames(lambda path: (path.parent.parent / "tmp" / f"{path.stem}.tmp").touch())


def fails_requests() -> None:
    from samovar.runtime.http.replies.choices import Generation  # noqa: PLC0415 - loads aiohttp

    right, calls = Generation.__aenter__, itertools.count(1)

    async def enter(self: Generation) -> Generation:
        if next(calls) % 40 == 0:
            raise RuntimeError("planted")
        return await right(self)

    Generation.__aenter__ = enter


DEFECTS = {
    "wrong-prefix": wrong_prefix,
    "leaks-descriptors": leaks_descriptors,
    "leaks-memory": leaks_memory,
    "counts-backwards": counts_backwards,
    "loses-files": loses_files,
    "tears-files": tears_files,
    "leaves-files": leaves_files,
    "fails-requests": fails_requests,
}

if __name__ == "__main__":
    DEFECTS[sys.argv[1]]()
    sys.exit(cli.main(sys.argv[2:]))
