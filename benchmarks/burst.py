"""A burst of short prompts on a CPU: each prefilled in a call of its own, and sharing calls.

    python -m benchmarks.burst [--rows 8] [--tokens 40] [--rounds 20] [--json PATH]

Two lanes over one default model, alternating, in one process: seconds from insertion to the first token of
the median and the last row, the CPU's seconds until the latter, and the first token of one prompt alone.
Least of the rounds, since the machine is shared, and the median. Lengths vary by a tenth around ``--tokens``.
Three rounds before teach a lane its machine, by the CPU's clock: on a shared one the wall's would make passes
too small to share. With OPENBLAS_NUM_THREADS=1 no thread spins on that clock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from samovar.runtime.engine.batching.backend import BackendOptions, MlxBackend
from samovar.runtime.engine.device import device_report
from samovar.runtime.engine.models.loading import ModelHandle
from samovar.runtime.engine.models.sources import DEFAULT_MODEL, parse_source
from samovar.runtime.engine.models.store import ModelStore
from samovar.runtime.engine.port import Delta, RowRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

REPLY_TOKENS = 2
WARM_ROUNDS = 3


def first_tokens(lane: MlxBackend, prompts: Sequence[Sequence[int]]) -> tuple[list[float], float]:
    """Return the seconds from insertion to each row's first token, in order, and the CPU's until the last."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    last_cpu_s = 0.0
    for number, prompt in enumerate(prompts):
        lane.insert(RowRequest(f"row{number}", prompt, REPLY_TOKENS))
    heard: dict[str, float] = {}
    while lane.busy:
        for event in lane.step():
            if isinstance(event, Delta):
                if event.id not in heard:
                    last_cpu_s = time.process_time() - cpu_s
                heard.setdefault(event.id, time.perf_counter() - began_s)
    assert len(heard) == len(prompts), "a row ended without a token"
    return sorted(heard.values()), last_cpu_s


def drawn(chance: random.Random, rows: int, tokens: int) -> list[list[int]]:
    spread = tokens // 10
    lengths = [tokens + chance.randint(-spread, spread) for _ in range(rows)]
    return [[chance.randrange(1000, 40_000) for _ in range(length)] for length in lengths]


def measure(args: argparse.Namespace) -> dict[str, object]:
    handle = ModelHandle(ModelStore().resolve(parse_source(DEFAULT_MODEL)), "default")
    lanes = {
        name: MlxBackend(
            handle,
            BackendOptions(batch=args.rows),
            clock=time.process_time,
            shares_calls=name == "shared",
        )
        for name in ("alone", "shared")
    }
    for lane in lanes.values():
        lane.open()
    seen: dict[str, dict[str, list[float]]] = {name: {} for name in lanes}
    chance = random.Random(4)
    for number in range(WARM_ROUNDS + args.rounds):
        prompts = drawn(chance, args.rows, args.tokens)
        for name in sorted(lanes, reverse=bool(number % 2)):
            took = visit(lanes[name], prompts)
            print(f"{number:3} {name:7} " + " ".join(f"{k} {v:.3f}" for k, v in took.items()), flush=True)
            if number >= WARM_ROUNDS:
                for key, value in took.items():
                    seen[name].setdefault(key, []).append(value)
    for lane in lanes.values():
        lane.close()
    least = {name: {key: min(each) for key, each in kinds.items()} for name, kinds in seen.items()}
    middle = {
        name: {key: statistics.median(each) for key, each in kinds.items()} for name, kinds in seen.items()
    }
    return {
        "least": least,
        "median": middle,
        "least_ratio": ratios(least),
        "median_ratio": ratios(middle),
    }


def visit(lane: MlxBackend, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the figures of one burst and of its first prompt alone."""
    burst, cpu_s = first_tokens(lane, prompts)
    (one_s,), one_cpu_s = first_tokens(lane, prompts[:1])
    return {
        "median_s": statistics.median(burst),
        "last_s": burst[-1],
        "last_cpu_s": cpu_s,
        "one_s": one_s,
        "one_cpu_s": one_cpu_s,
    }


def ratios(seconds: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return how many times as fast sharing is."""
    return {key: round(seconds["alone"][key] / seconds["shared"][key], 2) for key in seconds["alone"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not device_report().is_cpu:
        sys.exit("this measures a CPU; MLX computes on a GPU here")
    load = os.getloadavg()[0]
    results = measure(args)
    record = {
        "benchmark": "burst",
        "command": "python -m benchmarks.burst " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        },
        "device": repr(device_report()),
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "numpy")},
        "results": results,
    }
    print(json.dumps(results, indent=2))
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
