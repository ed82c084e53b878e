"""The lane backend against mlx-lm's BatchGenerator: decode and prefill rates on one random-weight llama.

    python -m benchmarks.engine [--size 135m|1b] [--dtype float32|bfloat16] [--rows 1,4,8] [--prompts 512]
                                [--rounds 5] [--tokens 32] [--json PATH]

Both run in this process on equal weights, turn by turn, so that whatever the machine does falls on both;
medians of the rounds and their ratios are printed. Ours is the model as the server loads it, projections
joined where they are (models/fusing.py). The text side is kept out: the codec does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from samovar.runtime.engine.batching.backend import BackendOptions, MlxBackend
from samovar.runtime.engine.device import device_report
from samovar.runtime.engine.models.fusing import fuse_projections, fuses
from samovar.runtime.engine.port import Delta, Finished, ModelInfo, RowRequest
from samovar.runtime.engine.state.accounting import layout_of
from samovar.runtime.engine.state.scheme import BF16, KvScheme

import mlx.core as mx  # isort: skip - after the engine, which loads OpenBLAS first
from mlx_lm.generate import BatchGenerator  # isort: skip
from mlx_lm.models import llama  # isort: skip

VOCABULARY = 49_152
SIZES = {
    "135m": {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "1b": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}


class SilentDetokenizer:
    """Stands for the text side at no cost."""

    def add(self, token: int) -> str:  # noqa: ARG002
        """Return nothing."""
        return ""

    def flush(self) -> str:
        """Return nothing."""
        return ""


class SilentCodec:
    """A codec without text and without end tokens, so that every row runs to its length."""

    end_tokens: frozenset[int] = frozenset()

    def detokenizer(self) -> SilentDetokenizer:
        """Return the silent one."""
        return SilentDetokenizer()

    def decode(self, tokens: object) -> str:  # noqa: ARG002
        """Return nothing."""
        return ""


@dataclass(frozen=True)
class Loaded:
    """What the backend wants of a model; it is its own handle."""

    model: llama.Model
    codec: SilentCodec
    info: ModelInfo
    scheme: KvScheme = BF16

    def load(self) -> Loaded:
        """Return itself."""
        return self


def make_model(size: str, dtype: str, *, as_served: bool) -> Loaded:
    """Return a model of random weights, the same every time; ``as_served``: as the server would make it."""
    mx.random.seed(7)
    shape = {**SIZES[size], "model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY}
    model = llama.Model(llama.ModelArgs(**shape, tie_word_embeddings=True, rope_theta=10000.0))
    model.set_dtype(getattr(mx, dtype))
    if as_served and fuses():
        fuse_projections(model, lambda: layout_of(model, 1))
    mx.eval(model.parameters())
    return Loaded(model, SilentCodec(), ModelInfo(size, 8192, VOCABULARY, dtype, 0.0, 0))


def prompts(count: int, length: int, chance: random.Random) -> list[list[int]]:
    return [[chance.randrange(VOCABULARY) for _ in range(length)] for _ in range(count)]


class Theirs:
    """mlx-lm's generator, kept for the whole run as its server keeps it."""

    def __init__(self, loaded: Loaded, chunk: int) -> None:
        self._generator = BatchGenerator(loaded.model, completion_batch_size=64, prefill_step_size=chunk)

    def __call__(self, rows: list[list[int]], tokens: int) -> tuple[float, float]:
        """Return seconds until every row has a token, and decoded tokens per second from there."""
        clock = _Clock(len(rows))
        left = set(self._generator.insert(rows, [tokens] * len(rows)))
        while left:
            _, responses = self._generator.next()
            clock.saw([str(response.uid) for response in responses])
            left.difference_update(r.uid for r in responses if r.finish_reason)
        return clock.read()


class Ours:
    """The lane backend, opened once as a lane opens it."""

    def __init__(self, loaded: Loaded, chunk: int) -> None:
        self._backend = MlxBackend(loaded, BackendOptions(batch=64, prefill_chunk=chunk))
        self._backend.open()

    def __call__(self, rows: list[list[int]], tokens: int) -> tuple[float, float]:
        """Return seconds until every row has a token, and decoded tokens per second from there."""
        clock = _Clock(len(rows))
        for number, row in enumerate(rows):
            self._backend.insert(RowRequest(str(number), row, tokens))
        ended = 0
        while ended < len(rows):
            events = self._backend.step()
            clock.saw([event.id for event in events if isinstance(event, Delta)])
            ended += sum(isinstance(event, Finished) for event in events)
        return clock.read()


class _Clock:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._seen: set[str] = set()
        self._counted = 0
        self._begun = time.perf_counter()
        self._first_s = 0.0

    def saw(self, ids: list[str]) -> None:
        if self._first_s:
            self._counted += len(ids)
        self._seen.update(ids)
        if not self._first_s and len(self._seen) == self._rows:
            self._first_s = time.perf_counter()

    def read(self) -> tuple[float, float]:
        took_s = time.perf_counter() - self._first_s
        return self._first_s - self._begun, self._counted / took_s if self._counted else 0.0


def compare(
    engines: tuple[Ours, Theirs], rows: list[list[int]], tokens: int, figure: int, rounds: int
) -> tuple[float, float]:
    """Return the medians of ours and theirs, measured in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            found[which].append(engines[which](rows, tokens)[figure])
    return statistics.median(found[0]), statistics.median(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chance, results = random.Random(5), {}
    ours, theirs = (make_model(args.size, args.dtype, as_served=served) for served in (True, False))
    engines = Ours(ours, args.chunk), Theirs(theirs, args.chunk)
    print(f"{'measure':<24}{'samovar':>12}{'mlx-lm':>12}{'ratio':>8}   (above 1 is better)")
    for count in (int(rows) for rows in args.rows.split(",") if rows):
        rows = prompts(count, 32, chance)
        compare(engines, rows, 4, 1, 1)  # warm up this shape
        a, b = compare(engines, rows, args.tokens, 1, args.rounds)
        results[f"decode_{count}"] = {"samovar_tps": a, "mlx_lm_tps": b, "ratio": a / b}
        print(f"{f'decode tokens/s, {count}':<24}{a:>12.1f}{b:>12.1f}{a / b:>8.2f}", flush=True)
    for length in (int(length) for length in args.prompts.split(",") if length):
        rows = prompts(1, length, chance)
        compare(engines, rows, 1, 0, 1)
        a, b = compare(engines, rows, 1, 0, args.rounds)
        results[f"prefill_{length}"] = {"samovar_s": a, "mlx_lm_s": b, "ratio": b / a}
        print(f"{f'prefill s, {length}':<24}{a:>12.3f}{b:>12.3f}{b / a:>8.2f}", flush=True)
    if args.json:
        write(args.json, results)


def write(path: Path, results: dict[str, object]) -> None:
    record = {
        "benchmark": "engine",
        "command": " ".join(["python -m benchmarks.engine", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "arch": platform.machine(), "python": platform.python_version()},
        "device": str(device_report()),
        "versions": {name: version(name) for name in ("mlx", "mlx-lm")},
        "results": results,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
