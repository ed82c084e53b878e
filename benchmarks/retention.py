"""How well the cache keeps what recorded traffic asks for again: replay against OPT, LRU and whole prompts.

    python -m benchmarks.retention [--traces DIR] [--only claude,conversation,synthetic,agentic,tau]
                                   [--capacity 1,2,5,10,20] [--sessions 30] [--limit 3000] [--json PATH]

Each trace is replayed through the real actors in virtual time (``retention_tree.py``), with RAM for so many
percent of the trace's unique bytes, and with an SSD tier two and a half times that beside it, as by default.
Large traces are sampled: the first ``--limit`` requests of Mooncake's (0: all), ``--sessions`` of Claude
Code's, evenly chosen. Takes some minutes on two idle cores. Without traces it says so and ends with 0.
``results/retention.md`` says what each figure means.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from . import retention_peer
from .retention_bounds import everything, farthest, least_recent, whole_prompts
from .retention_traces import traces
from .retention_tree import SSD_SHARE, Outcome, replay, replay_clairvoyant
from .retention_world import TOKEN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .retention_traces import Trace

TRACES = Path(__file__).parents[2] / "shared" / "traces"
PEER_TRACES = ("synthetic", "agentic", "conversation")
"""Those of large blocks: the peer's own loops are slow over millions of small ones."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One policy at one capacity. None: it has no such thing."""

    policy: str
    capacity: float
    hit: float
    of_opt: float | None = None
    restores: int | None = None
    written: float | None = None
    written_per_hit: float | None = None
    ram_peak: float | None = None
    ssd_peak: float | None = None
    repeated: float | None = None
    lost: int | None = None
    seconds: float = 0.0

    def line(self) -> str:
        """Return it for people."""
        cells = (self.of_opt, self.restores, self.written, self.written_per_hit)
        cells = (*cells, self.ram_peak, self.ssd_peak, self.repeated, self.lost)
        return f"{self.policy:<18}{self.capacity:>5.0%}{self.hit:>9.4f}" + "".join(map(_cell, cells))


def _cell(value: float | None) -> str:
    return f"{'' if value is None else f'{value:.2f}' if isinstance(value, float) else value:>10}"


HEADS = ("of OPT", "restores", "written", "writ./hit", "RAM peak", "SSD peak", "repeated", "lost")
HEAD = f"{'policy':<18}{'cap.':>5}{'hit':>9}" + "".join(f"{name:>10}" for name in HEADS)


def figures(trace: Trace, share: float) -> Iterator[Figure]:
    """Yield what each policy does with RAM for ``share`` of the trace's unique tokens."""
    unique, blocks = trace.unique_tokens, len(trace.sizes)
    tokens, both = int(share * unique), share * (1 + SSD_SHARE)
    best = farthest(trace, int(share * blocks)).ratio
    best_of_both = farthest(trace, int(min(1.0, both) * blocks)).ratio
    yield _ours("ram", trace, share, 0.0, best)
    yield _ours("ram+ssd", trace, share, SSD_SHARE, best_of_both)
    begun = time.perf_counter()
    seeing = replay_clairvoyant(trace, tokens)
    hit = seeing.hit_tokens / seeing.prompt_tokens
    spent_s = time.perf_counter() - begun
    yield Figure("ram, clairvoyant", share, hit, _of(hit, best), repeated=seeing.repeated, seconds=spent_s)
    for name, ratio in (
        ("blocks lru", least_recent(trace, int(share * blocks)).ratio),
        ("whole lru", whole_prompts(trace, tokens).ratio),
    ):
        yield Figure(name, share, ratio, _of(ratio, best))
    yield Figure("opt", share, best)
    yield Figure("opt, ram+ssd", share, best_of_both)


def _ours(name: str, trace: Trace, share: float, ssd: float, best: float) -> Figure:
    begun, ram_tokens = time.perf_counter(), int(share * trace.unique_tokens)
    got = replay(trace, ram_tokens, int(ssd * ram_tokens))
    hit, disk = got.hit_tokens / got.prompt_tokens, bool(ssd)
    return Figure(
        name,
        share,
        hit,
        _of(hit, best),
        got.restores if disk else None,
        got.written_bytes / (trace.unique_tokens * TOKEN_BYTES) if disk else None,
        got.written_bytes / max(1, got.hit_tokens * TOKEN_BYTES) if disk else None,
        got.peak_ram_bytes / (ram_tokens * TOKEN_BYTES),
        _ssd_peak(got, ssd * ram_tokens) if disk else None,
        got.repeated,
        got.lost,
        time.perf_counter() - begun,
    )


def _of(hit: float, best: float) -> float | None:
    return hit / best if best else None


def _ssd_peak(got: Outcome, tokens: float) -> float:
    return got.peak_ssd_bytes / (tokens * TOKEN_BYTES)


def measure(name: str, trace: Trace, shares: list[float]) -> dict[str, object]:
    """Replay one trace at all capacities; print as it goes, and return it for JSON."""
    ceiling = everything(trace).ratio
    facts: dict[str, object] = {
        "note": trace.note,
        "requests": len(trace.requests),
        "prompt_tokens": trace.prompt_tokens,
        "unique_tokens": trace.unique_tokens,
        "unlimited_hit": ceiling,
    }
    asked = f"{len(trace.requests)} requests, {trace.prompt_tokens / 1e6:.1f} M tokens"
    distinct = f"{trace.unique_tokens / 1e6:.2f} M of them distinct"
    print(f"\n{trace.name} ({trace.note}): {asked},")
    print(f"{distinct}; a cache without limits finds {ceiling:.4f}\n{HEAD}")
    rows: list[Figure] = []
    for share in shares:
        for figure in figures(trace, share):
            print(figure.line(), flush=True)
            rows.append(figure)
    return facts | {"figures": [asdict(row) for row in rows], "check": _checked(name, trace, shares)}


def _checked(name: str, trace: Trace, shares: list[float]) -> list[dict[str, object]] | None:
    """Compare our LRU and OPT over blocks with the peer's."""
    if retention_peer.version() is None or name not in PEER_TRACES:
        return None
    agreements = retention_peer.compare(trace, shares)
    for one in agreements:
        print(f"  kvcache-simulator, {one.policy} at {one.blocks} blocks: ours {one.difference:+.4%}")
    return [{**asdict(one), "difference": one.difference} for one in agreements]


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retention", description="Replay recorded prompts."
    )
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--capacity", default="1,2,5,10,20", help="percent of the unique bytes, comma-separated"
    )
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--limit", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit status."""
    options = options_of(arguments)
    if not options.traces.is_dir():
        print(f"skipped: there are no traces in {options.traces}; name their folder with --traces")
        return 0
    shares = [float(part) / 100 for part in options.capacity.split(",")]
    known = traces(options.traces, sessions=options.sessions, limit=options.limit)
    chosen = options.only.split(",") if options.only else list(known)
    results: dict[str, object] = {}
    for name in chosen:
        try:
            trace = known[name]()
        except FileNotFoundError as error:
            print(f"skipped {name}: {error.filename} is not there")
            continue
        results[name] = measure(name, trace, shares)
        if options.json:
            options.json.write_bytes(
                orjson.dumps(_report(options, results), option=orjson.OPT_INDENT_2) + b"\n"
            )
    return 0


def _report(options: argparse.Namespace, results: dict[str, object]) -> dict[str, object]:
    versions = {name: importlib.metadata.version(name) for name in ("samovar", "numpy")}
    command = f"--capacity {options.capacity} --sessions {options.sessions} --limit {options.limit}"
    return {
        "benchmark": "retention",
        "command": f"python -m benchmarks.retention {command}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "versions": versions
        | {"python": platform.python_version(), "kvcache-simulator": retention_peer.version()},
        "state_bytes_per_token": TOKEN_BYTES,
        "results": results,
    }


if __name__ == "__main__":
    sys.exit(main())
