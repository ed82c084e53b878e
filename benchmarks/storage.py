"""What the storage layer costs: restores, durable writes, verification, lookups, start-up, loop lag.

    python -m benchmarks.storage [--quick] [--only transfer,mlx,lookup,scan,lag] [--mlx] [--size-mb 512]
                                 [--files 10000] [--rounds 7] [--patience SECONDS] [--dir DIR]
                                 [--drop-caches] [--json PATH]

Contenders run in turns within each round; a ratio is the median of the ratios of the rounds. "cold" means
dropped from the page cache before each read, "warm" that it is there. "others" is the largest share of the
machine that other processes had during any turn that counts: with more than a few percent, look at "best"
too, the ratio of the best times. Works in a folder of its own beneath ``--dir`` (the system's folder for
temporary files), which must be on the disk that is to be measured. Takes about ten minutes, and with
``--quick`` one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from .storage_figures import PATIENCE
from .storage_lag import measure_lag
from .storage_lookup import measure_lookups
from .storage_scan import measure_scan
from .storage_transfer import make_state, measure_restore, measure_write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .storage_figures import Figure

PARTS = ("transfer", "mlx", "lookup", "scan", "lag")
MB = 10**6


def measure_transfer(options: argparse.Namespace) -> list[Figure]:
    """Return restores and writes with plain buffers."""
    state = make_state(options.size_mb * MB)
    with folder(options) as place:
        figures = measure_restore(place, state, state, options.rounds)
    with folder(options) as place:
        return figures + measure_write(place, state, options.rounds)


def measure_mlx(options: argparse.Namespace) -> list[Figure]:
    """Return restores and writes with the engine's buffers."""
    from .storage_mlx import Engine, State, measure_whole_restore  # noqa: PLC0415 - needs MLX

    engine = Engine()
    source = engine.checkpoint(options.size_mb * MB)
    with folder(options) as place:
        figures = measure_whole_restore(place, engine, source, options.rounds)
        target = State(source.spec, engine.allocate(source).segments())
        figures += measure_restore(place, source, target, options.rounds)
    with folder(options) as place:
        return figures + measure_write(place, source, options.rounds)


def measure_index(options: argparse.Namespace) -> list[Figure]:
    """Return lookups."""
    return measure_lookups(options.files, options.tokens, options.lookups)


def measure_start(options: argparse.Namespace) -> list[Figure]:
    """Return start-up scans."""
    with folder(options) as place:
        rounds = max(1, options.rounds // 2)
        return measure_scan(place, options.files, rounds, drop_caches=options.drop_caches)


def measure_loop(options: argparse.Namespace) -> list[Figure]:
    """Return the lateness of the loop."""
    with folder(options) as place:
        size_bytes, files = options.size_mb * MB // 4, options.files // 10
        return measure_lag(place, size_bytes, files, options.seconds, max(1, options.rounds // 2))


MEASURES: dict[str, Callable[[argparse.Namespace], list[Figure]]] = {
    "transfer": measure_transfer,
    "mlx": measure_mlx,
    "lookup": measure_index,
    "scan": measure_start,
    "lag": measure_loop,
}


@contextmanager
def folder(options: argparse.Namespace) -> Generator[Path]:
    """Yield an empty folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="samovar-bench-", dir=options.dir) as name:
        yield Path(name)


def main() -> None:
    options = arguments()
    facts = about(options)
    results: dict[str, list[dict[str, object]]] = {}
    for part in options.only.split(","):
        PATIENCE.left_s = options.patience
        figures = MEASURES[part](options)
        results[part] = [figure.table() for figure in figures]
        print(f"-- {part}")
        print("\n".join(figure.line() for figure in figures), flush=True)
    if options.json:
        document = facts | {"load_after": os.getloadavg()[0], "results": results}
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.storage", description=(__doc__ or "").splitlines()[0])
    whole = partial(parser.add_argument, type=int)
    whole("--size-mb", default=512, help="size of the checkpoint")
    whole("--files", default=10_000, help="files of a start, entries of the index")
    whole("--tokens", default=32_000, help="tokens of an entry of the index")
    whole("--lookups", default=2_000)
    whole("--rounds", default=7)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window of the loop's lag")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds that each part may wait for a quiet machine"
    )
    parser.add_argument("--dir", type=Path, help="where the files are made")
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--mlx", action="store_true", help="measure the engine's buffers too")
    parser.add_argument("--drop-caches", action="store_true", help="for cold starts; as root, falls on all")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there")
    options = parser.parse_args()
    if options.quick:
        options.size_mb, options.files, options.tokens = 64, 500, 4_000
        options.lookups, options.rounds, options.seconds = 300, 3, 2.0
    options.only = options.only or ",".join(part for part in PARTS if part != "mlx" or options.mlx)
    return options


def about(options: argparse.Namespace) -> dict[str, object]:
    names = ("samovar", "numpy", "xxhash", "blake3", "msgspec", "orjson", "uvloop")
    return {
        "benchmark": "storage",
        "command": " ".join(["python -m benchmarks.storage", *_shown(sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load_before": os.getloadavg()[0],
        },
        "sizes": {"size_mb": options.size_mb, "files": options.files, "tokens": options.tokens},
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in names},
    }


def _shown(arguments: list[str]) -> list[str]:
    """Leave folders of this machine out of what is recorded."""
    return [Path(each).name if "/" in each else each for each in arguments]


if __name__ == "__main__":
    main()
