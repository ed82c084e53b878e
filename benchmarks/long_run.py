"""Whether memory stays flat: 1,000 requests of mixed sizes against the real engine on a tiny random model.

    python -m benchmarks.long_run [--requests 1000] [--family llama] [--at-once 8] [--seed N] [--json PATH]

The whole tree runs in this process, HTTP, both cache tiers and the engine included, with caps so small that
both tiers are full after a few dozen requests. Clients ask over loopback (long_run_load.py: prompts up to
300 tokens, replies of 1 to 40, shared beginnings, one of seven given up half-way). After every 25th of the
requests the server comes to rest (nothing runs, everything is on disk) and figures are taken: resident
memory, MLX's active and cached bytes, objects that the garbage collector knows, open leases, threads, open
files. They have to be flat after the first third (long_run_flat.py): exit code 1 where one is not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import sys
import tempfile
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import psutil
from samovar.runtime.app import build_tree
from samovar.runtime.config import load
from samovar.runtime.http.actor import GetAddress
from samovar.runtime.kernel import ActorSystem
from samovar.storage.fs import OsFilesystem

from .http_server import NoLog
from .long_run_flat import Flatness, judge
from .long_run_load import Clients, Outcomes, asks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from samovar.runtime.app import Engine, Tree

SAMPLES = 25
REST_S = 60.0
KIB, MIB = 1024, 1024 * 1024

BOUNDS = {
    "rss_bytes": 16.0 * MIB,
    "mlx_active_bytes": 1.0 * MIB,
    "mlx_cache_bytes": 16.0 * MIB,
    "objects": 1500.0,
    "leases": 0.0,
    "threads": 0.0,
    "open_files": 2.0,
}
"""What a figure may grow by in a whole run after its warm-up. One state kept a request: 80 KiB each."""

SETTINGS = (
    "server.port=0",
    "cache.ram.max=2MiB",
    "cache.ram.min_tokens=16",
    "cache.ssd.max=8MiB",
    "cache.ssd.restore_min_tokens=16",
)


@dataclass
class Record:
    """What was seen: one value per figure and resting point."""

    requests: list[int] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    outcomes: Outcomes = field(default_factory=Outcomes)
    took_s: float = 0.0

    def take(self, requests: int, figures: dict[str, float]) -> None:
        """Add one resting point."""
        self.requests.append(requests)
        for name, value in figures.items():
            self.series.setdefault(name, []).append(value)

    def verdict(self, bounds: dict[str, float]) -> dict[str, Flatness]:
        """Judge every figure."""
        return judge(self.requests, self.series, bounds)


async def long_run(
    engine: Engine, folder: Path, requests: int, *, at_once: int = 8, seed: int = 1, samples: int = SAMPLES
) -> Record:
    """Serve ``requests`` seeded requests over ``engine``, resting ``samples`` times; return the figures.

    Raises TimeoutError when the server does not come to rest, or a request does not end.
    """
    record = Record()
    waiting = list(asks(requests, seed))
    begun_s = time.monotonic()
    async with served(engine, folder) as (tree, url), aiohttp.ClientSession() as session:
        clients = Clients(session, url, at_once)
        done = 0
        for number in range(1, samples + 1):
            until = requests * number // samples
            await clients.ask_all(waiting[done:until])
            done = until
            record.take(done, await figures_at_rest(tree))
        record.outcomes = clients.outcomes
    record.took_s = time.monotonic() - begun_s
    return record


@asynccontextmanager
async def served(engine: Engine, folder: Path) -> AsyncGenerator[tuple[Tree, str]]:
    """Run the whole tree on this loop; yield it and its address."""
    settings = [*SETTINGS, f"cache.ssd.dir={folder}"]
    tree = build_tree(load([], {}, settings, []).config, engine, NoLog(), OsFilesystem())
    system = ActorSystem(tree.root)
    tree.serving.system = system
    await system.start()
    try:
        yield tree, await tree.http.ref.ask(GetAddress(), 1.0)
    finally:
        await system.stop()
        tree.close()


async def figures_at_rest(tree: Tree) -> dict[str, float]:
    """Wait until nothing runs and everything published is on disk; return the figures of that moment."""
    import mlx.core as mx  # noqa: PLC0415 - after the engine has preloaded its BLAS

    assert tree.tiers is not None
    assert tree.cache is not None
    async with asyncio.timeout(REST_S):
        await _idle(tree)
        await tree.cache.flush(REST_S)
    gc.collect()
    process = psutil.Process()
    residency = await tree.tiers.residency.figures(2.0)
    return {
        "rss_bytes": float(process.memory_info().rss),
        "mlx_active_bytes": float(mx.get_active_memory()),
        "mlx_cache_bytes": float(mx.get_cache_memory()),
        "objects": float(len(gc.get_objects())),
        "leases": float(residency.leases),
        "threads": float(threading.active_count()),
        "open_files": float(process.num_fds() if hasattr(process, "num_fds") else 0),
        "ram_entries": float(residency.entries),
        "hits": float(residency.hits),
    }


async def _idle(tree: Tree) -> None:
    while True:
        figures = await tree.scheduler.figures(2.0)
        if not figures.running and not figures.queued:
            return
        await asyncio.sleep(0.01)


def show(record: Record, verdict: dict[str, Flatness]) -> str:
    """Return the figures as a table."""
    rows = [f"{'figure':<18}{'warm':>14}{'end':>14}{'most':>14}{'a request':>12}{'grown':>12}{'bound':>12}"]
    for name, each in verdict.items():
        numbers = f"{each.first:>14,.0f}{each.last:>14,.0f}{each.most:>14,.0f}{each.slope:>12,.2f}"
        rows.append(f"{name:<18}{numbers}{each.grown:>12,.0f}{each.bound:>12,.0f}  {_said(each)}")
    ends = record.outcomes
    rows.append(
        f"{record.requests[-1]} requests in {record.took_s:.0f} s: {ends.finished} finished, "
        f"{ends.given_up} given up, {ends.failed} failed; {record.series['hits'][-1]:.0f} cache hits"
    )
    return "\n".join(rows)


def _said(each: Flatness) -> str:
    return "flat" if each.flat else "GROWS"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--family", default="llama")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from tests.kit.tiny import TinyEngine  # noqa: PLC0415 - loads MLX

    engine = TinyEngine(args.family).with_options(publish_min_tokens=16)
    with tempfile.TemporaryDirectory() as folder:
        record = asyncio.run(
            long_run(engine, Path(folder), args.requests, at_once=args.at_once, seed=args.seed)
        )
    verdict = record.verdict(BOUNDS)
    print(show(record, verdict))
    if args.json:
        args.json.write_text(json.dumps(_result(args, record, verdict), indent=2) + "\n")
    return 0 if all(each.flat for each in verdict.values()) and not record.outcomes.failed else 1


def _result(args: argparse.Namespace, record: Record, verdict: dict[str, Flatness]) -> dict[str, object]:
    return {
        "benchmark": "long_run",
        "command": f"python -m benchmarks.long_run --requests {args.requests} --family {args.family}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}",
        "seed": args.seed,
        "at_once": args.at_once,
        "took_s": round(record.took_s, 1),
        "outcomes": asdict(record.outcomes),
        "figures": {name: {**asdict(each), "flat": each.flat} for name, each in verdict.items()},
        "requests": record.requests,
        "series": record.series,
    }


if __name__ == "__main__":
    sys.exit(main())
