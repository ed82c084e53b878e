"""Streamed tokens a second through the HTTP layer over a fake engine, and what one costs.

    python -m benchmarks.http [--json PATH] [--seconds 4] [--serving MODULE:FACTORY] [--loop uvloop|asyncio]

One server process (on core 0) and one load process (on the last core), on loopback. The engine gives every
stream one token and one event a step: as fast as the consumers take them ("max"), and at a fixed rate in
all. Goal: 64 clients at 20,000 tokens/s or more, p99 loop lag under 20 ms. "robbed" is the share
of the time in which the server's thread was ready and other processes had its core: lag and rates of a run
with more than a few percent say little. Takes about 40 seconds.
(Run as a module: as a script, this file's name would hide the standard library's ``http``.)
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).resolve().parents[1]
PACED_TOKENS_PER_S = 20_000.0
# (clients, tokens a second in all; 0 = as fast as possible)
RUNS = ((1, 0.0), (64, 0.0), (512, 0.0), (1, 200.0), (64, PACED_TOKENS_PER_S), (512, PACED_TOKENS_PER_S))
COLUMNS = (
    ("clients", "clients", "d"),
    ("asked tok/s", "asked_tokens_per_s", ",.0f"),
    ("tok/s", "tokens_per_s", ",.0f"),
    ("events/s", "events_per_s", ",.0f"),
    ("server µs/tok", "cpu_us_per_token", ".1f"),
    ("cpu", "cpu_share", ".0%"),
    ("robbed", "robbed_share", ".0%"),
    ("gap p50 ms", "gap_ms_p50", ".2f"),
    ("gap p99 ms", "gap_ms_p99", ".2f"),
    ("lag p99 ms", "lag_ms_p99", ".2f"),
    ("lag max ms", "lag_ms_max", ".2f"),
    ("checked", "replies_checked", "d"),
)


@dataclass(frozen=True)
class Child:
    """A process of ours that speaks in lines."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, core: int | None, *arguments: str) -> Child:
        """Start a module of ours, on one core where that is possible."""
        command = [sys.executable, "-m", *arguments]
        pin = {} if core is None else {"preexec_fn": lambda: os.sched_setaffinity(0, {core})}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return cls(subprocess.Popen(command, cwd=ROOT, **pipes, **pin))

    def line(self) -> str:
        """Wait for its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended early")
        return line.strip()

    def ask(self) -> dict[str, float]:
        """Send a line and parse the one that comes back."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return orjson.loads(self.line())

    def end(self) -> None:
        """Close its input and wait until it is gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def measure(clients: int, tokens_per_s: float, options: argparse.Namespace) -> dict[str, float]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    pinned = len(cores) > 1
    steps = str(tokens_per_s / clients)
    server = Child.start(
        cores[0] if pinned else None, "benchmarks.http_server", options.loop, options.serving, steps
    )
    try:
        arguments = (options.loop, server.line(), str(clients), str(options.seconds))
        load = Child.start(cores[-1] if pinned else None, "benchmarks.http_load", *arguments)
        try:
            assert load.line() == "begun"
            before = server.ask()
            counted = orjson.loads(load.line())
            after = server.ask()
        finally:
            load.end()
    finally:
        server.end()
    if counted["connections_lost"]:
        raise SystemExit(f"{counted['connections_lost']} connections were lost")
    tokens, took_s = after["tokens"] - before["tokens"], after["now_s"] - before["now_s"]
    cpu_s = after["cpu_s"] - before["cpu_s"]
    return {
        "clients": clients,
        "asked_tokens_per_s": tokens_per_s,
        "tokens_per_s": tokens / took_s,
        "cpu_us_per_token": cpu_s / tokens * 1e6,
        "cpu_share": cpu_s / took_s,
        "robbed_share": (after["wait_s"] - before["wait_s"]) / took_s,
        "lag_ms_p99": after["lag_ms_p99"],
        "lag_ms_max": after["lag_ms_max"],
        **counted,
    }


def about() -> dict[str, object]:
    packages = ("samovar", "aiohttp", "orjson", "uvloop")
    return {
        "command": " ".join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load_before": os.getloadavg()[0],
        },
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in packages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.http", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each of the six windows")
    parser.add_argument("--serving", default="benchmarks.http_server:fake_serving", metavar="MODULE:FACTORY")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    options = parser.parse_args()
    facts = about()
    widths = [max(len(title), 9) for title, _, _ in COLUMNS]
    print("  ".join(f"{title:>{width}}" for (title, _, _), width in zip(COLUMNS, widths, strict=True)))
    results: list[dict[str, float]] = []
    for clients, tokens_per_s in RUNS:
        found = measure(clients, tokens_per_s, options)
        results.append(found)
        cells = (
            "max" if key == "asked_tokens_per_s" and not found[key] else format(found[key], form)
            for _, key, form in COLUMNS
        )
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)
    if options.json:
        options.json.write_bytes(orjson.dumps(facts | {"results": results}, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
