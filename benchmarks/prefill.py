"""Cold prefill on a CPU with and without cpu/attention.py, per chunk size, interleaved in one process.

    python -m benchmarks.prefill [--tokens 1980] [--chunks 256,512,1024,2048] [--mlx-chunks 512]
                                 [--rounds 1] [--json PATH]

``mlx``: attention and swiglu as MLX computes them; ``samovar``: as a lane computes them. Both use the BLAS
that samovar loads. Seconds of the wall clock and of the CPU, best of the rounds: on a shared machine the
second kind is the steadier. Without ``--mlx-chunks`` every chunk size is measured on both roads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samovar.runtime.engine.cpu import attention as cpu_attention
from samovar.runtime.engine.device import device_report
from samovar.runtime.engine.models.loading import ModelHandle
from samovar.runtime.engine.models.sources import DEFAULT_MODEL, parse_source
from samovar.runtime.engine.models.store import ModelStore

import mlx.core as mx  # isort: skip - after the engine, which loads OpenBLAS first
from mlx_lm.models.cache import make_prompt_cache  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Road:
    """One way to compute attention and swiglu."""

    attention: Callable[..., mx.array]
    swiglu: Callable[..., mx.array]

    def take(self, models: Any) -> None:
        """Let the models of the module ``models`` go this way."""
        mx.fast.scaled_dot_product_attention = self.attention
        models.swiglu = self.swiglu


@dataclass(frozen=True)
class Spent:
    """Seconds of one prefill."""

    wall_s: float
    cpu_s: float


def prefill(model: Any, tokens: list[int], chunk: int) -> Spent:
    caches = make_prompt_cache(model)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for start in range(0, len(tokens), chunk):
        model(mx.array([tokens[start : start + chunk]]), cache=caches)
        mx.eval([cache.state for cache in caches])
    return Spent(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def best(all_spent: list[Spent]) -> dict[str, float]:
    return {
        "wall_s": round(min(each.wall_s for each in all_spent), 2),
        "cpu_s": round(min(each.cpu_s for each in all_spent), 2),
    }


def measure(args: argparse.Namespace) -> dict[str, object]:
    loaded = ModelHandle(ModelStore().resolve(parse_source(DEFAULT_MODEL)), "default").load()
    models = sys.modules[type(loaded.model).__module__]
    mlx = Road(mx.fast.scaled_dot_product_attention, models.swiglu)
    cpu_attention.install()
    samovar = Road(cpu_attention.attention, cpu_attention.swiglu)
    chance = random.Random(4)
    tokens = [chance.randrange(loaded.info.vocab_size) for _ in range(args.tokens)]
    chunks, both = sizes(args.chunks), sizes(args.mlx_chunks or args.chunks)
    spent: dict[tuple[int, str], list[Spent]] = {}
    samovar.take(models)
    prefill(loaded.model, tokens[:64], 64)
    for _ in range(args.rounds):
        for chunk in chunks:
            for name, road in (("samovar", samovar), ("mlx", mlx))[: 2 if chunk in both else 1]:
                road.take(models)
                spent.setdefault((chunk, name), []).append(prefill(loaded.model, tokens, chunk))
                print(f"chunk {chunk:5} {name:8} {spent[chunk, name][-1]}", flush=True)
    return {f"chunk_{chunk}": summary(spent, chunk) for chunk in chunks}


def summary(spent: dict[tuple[int, str], list[Spent]], chunk: int) -> dict[str, object]:
    ours = best(spent[chunk, "samovar"])
    if (chunk, "mlx") not in spent:
        return {"samovar": ours}
    theirs = best(spent[chunk, "mlx"])
    ratios = {f"{kind}_ratio": round(theirs[kind] / ours[kind], 2) for kind in ours}
    return {"samovar": ours, "mlx": theirs, **ratios}


def sizes(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1980)
    parser.add_argument("--chunks", default="256,512,1024,2048")
    parser.add_argument("--mlx-chunks")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not device_report().is_cpu:
        sys.exit("this measures a CPU; MLX computes on a GPU here")
    load = os.getloadavg()[0]
    results = measure(args)
    record = {
        "benchmark": "prefill",
        "command": "python -m benchmarks.prefill " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "arch": platform.machine(),
            "python": platform.python_version(),
            "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
            "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "as many as cores"),
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
