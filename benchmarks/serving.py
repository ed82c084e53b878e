"""Samovar against ``mlx_lm.server`` on the same model, in one run: TTFT, and tokens/s at 1 and 4 streams.

    python -m benchmarks.serving [--model DIR] [--rounds 3] [--tokens 64] [--json PATH]

Without ``--model`` the default model is used, dequantised to float32 once into a temporary folder, because
that is what both compute with on a CPU. Both servers stay up and the measurements alternate, so that
whatever else the machine does falls on both. Prompts differ from their first words on (the system message's),
so no prefix cache helps either. Both get OpenBLAS.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from samovar.runtime.engine.blas import preload_openblas

START_S = 180.0
REPLY_S = 300.0
WORDS = [
    "river",
    "stone",
    "garden",
    "lantern",
    "winter",
    "market",
    "window",
    "copper",
    "music",
    "paper",
    "harbor",
    "shadow",
    "silver",
    "morning",
    "bridge",
    "forest",
    "candle",
    "letter",
    "orchard",
    "thunder",
    "village",
    "mirror",
    "blanket",
    "compass",
    "meadow",
    "kettle",
    "signal",
    "velvet",
]
_numbers = itertools.count(1)


@dataclass
class Contender:
    """One server process and what was measured of it."""

    name: str
    command: list[str]
    port: int
    ttft_s: dict[int, list[float]] = field(default_factory=dict)
    tps: dict[str, list[float]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.process = subprocess.Popen(
            self.command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}"
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/v1/models")
                if connection.getresponse().status == http.HTTPStatus.OK:
                    return
            except OSError:
                time.sleep(0.2)
        raise TimeoutError(f"{self.name} did not come up")

    def stop(self) -> None:
        """End the server."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()


@dataclass
class Reply:
    """When (s, on one clock) a reply was asked for and when each of its content chunks came."""

    asked_s: float
    chunks_s: list[float]
    tokens: int


def environment() -> dict[str, str]:
    """Return the environment of both servers: no hub, and OpenBLAS preloaded where there is one."""
    report = preload_openblas()
    preload = {"LD_PRELOAD": report.library} if report.active and report.library else {}
    return {**os.environ, **preload, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def prompt(words: int, chance: random.Random) -> list[dict[str, str]]:
    """Return messages that no server has seen: they differ from the first words of the system message on."""
    text = " ".join(chance.choice(WORDS) for _ in range(words))
    return [
        {"role": "system", "content": f"{next(_numbers)} {chance.random()}"},
        {"role": "user", "content": f"Continue this list of words for as long as you can: {text}"},
    ]


def stream(port: int, messages: list[dict[str, str]], tokens: int) -> Reply:
    """Ask for a streamed reply of ``tokens`` tokens and time it; every content chunk is one token."""
    body = {
        "model": "default_model",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": tokens,
        "temperature": 0.0,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REPLY_S)
    begun = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{response.status}: {response.read()!r}")
    chunks_s: list[float] = []
    usage = 0
    while line := response.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = (event.get("usage") or {}).get("completion_tokens", usage)
        choices = event.get("choices") or []
        if choices and (choices[0].get("delta") or {}).get("content"):
            chunks_s.append(time.perf_counter())
    connection.close()
    assert chunks_s, "no content came"
    return Reply(begun, chunks_s, usage)


def measure_ttft(contender: Contender, words: int, chance: random.Random) -> None:
    reply = stream(contender.port, prompt(words, chance), 2)
    contender.ttft_s.setdefault(words, []).append(reply.chunks_s[0] - reply.asked_s)


def measure_streams(contender: Contender, streams: int, tokens: int, chance: random.Random) -> None:
    """Stream replies at once and note two rates.

    ``decode``: content chunks (one token each) in the time in which every stream was decoding. ``whole``: all
    tokens over the time from the first request to the last token, prefill included.
    """
    conversations = [prompt(20, chance) for _ in range(streams)]
    replies: list[Reply] = []
    threads = [
        threading.Thread(
            target=lambda messages=messages: replies.append(stream(contender.port, messages, tokens))
        )
        for messages in conversations
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == streams, "a stream failed"
    from_s = max(reply.chunks_s[0] for reply in replies)
    to_s = min(reply.chunks_s[-1] for reply in replies)
    decoded = sum(from_s < at_s <= to_s for reply in replies for at_s in reply.chunks_s)
    contender.tps.setdefault(f"decode, {streams} stream(s)", []).append(decoded / (to_s - from_s))
    took_s = max(reply.chunks_s[-1] for reply in replies) - min(reply.asked_s for reply in replies)
    tokens_in_all = sum(reply.tokens for reply in replies)
    contender.tps.setdefault(f"whole, {streams} stream(s)", []).append(tokens_in_all / took_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare_model(folder: Path) -> Path:
    """Write a float32 copy of the default model, as a directory that both servers read."""
    import mlx.core as mx  # noqa: PLC0415 - not in the process that only measures
    from mlx_lm.utils import dequantize_model, load, save_model  # noqa: PLC0415
    from samovar.runtime.engine.sources import DEFAULT_MODEL, parse_source  # noqa: PLC0415
    from samovar.runtime.engine.store import ModelStore  # noqa: PLC0415

    source = ModelStore().resolve(parse_source(DEFAULT_MODEL))
    model, tokenizer, config = load(str(source), return_config=True)
    model.set_dtype(mx.float32)
    model = dequantize_model(model)
    save_model(folder, model)
    config = {name: value for name, value in config.items() if not name.startswith("quantization")}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(folder)
    return folder


def report(contenders: list[Contender], rounds: int) -> dict[str, object]:
    """Print medians and ratios; return them."""
    ours, theirs = contenders
    rows: dict[str, object] = {}
    print(
        f"\n{'measure':<28}{ours.name:>12}{theirs.name:>16}{'ratio':>8}   (median of {rounds}, > 1: better)"
    )
    for words in ours.ttft_s:
        a, b = statistics.median(ours.ttft_s[words]), statistics.median(theirs.ttft_s[words])
        rows[f"ttft_{words}_words"] = {"samovar_s": a, "mlx_lm_s": b, "ratio": b / a}
        print(f"{f'TTFT, {words} words':<28}{a:>10.3f} s{b:>14.3f} s{b / a:>8.2f}")
    for streams in ours.tps:
        a, b = statistics.median(ours.tps[streams]), statistics.median(theirs.tps[streams])
        rows[f"tokens/s {streams}"] = {"samovar": a, "mlx_lm": b, "ratio": a / b}
        print(f"{f'tokens/s {streams}':<28}{a:>12.1f}{b:>16.1f}{a / b:>8.2f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or prepare_model(Path(folder))
        rows, contenders = run(model, args.rounds, args.tokens)
    if args.json:
        write(args.json, rows, contenders)


def run(model: Path, rounds: int, tokens: int) -> tuple[dict[str, object], list[Contender]]:
    ports = free_port(), free_port()
    samovar = ["-m", "samovar.runtime.cli", "serve", str(model), "--port", str(ports[0])]
    mlx_lm = ["-m", "mlx_lm.server", "--model", str(model), "--host", "127.0.0.1", "--port", str(ports[1])]
    contenders = [
        Contender(
            "samovar", [sys.executable, *samovar, "--set", 'model.aliases=["default_model"]'], ports[0]
        ),
        Contender("mlx_lm.server", [sys.executable, *mlx_lm], ports[1]),
    ]
    chance = random.Random(7)
    try:
        for contender in contenders:
            contender.start()
            stream(contender.port, prompt(20, chance), 8)  # warm up
        for number in range(rounds):
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                for words in (20, 300):
                    measure_ttft(contender, words, chance)
                for streams in (1, 4):
                    measure_streams(contender, streams, tokens, chance)
                print(f"round {number + 1}: {contender.name} done", flush=True)
    finally:
        for contender in contenders:
            contender.stop()
    return report(contenders, rounds), contenders


def write(path: Path, rows: dict[str, object], contenders: list[Contender]) -> None:
    raw = {c.name: {"ttft_s": c.ttft_s, "tokens_per_s": c.tps} for c in contenders}
    versions = {name: version(name) for name in ("samovar", "mlx", "mlx-lm")}
    record = {
        "benchmark": "serving",
        "command": " ".join(["python -m benchmarks.serving", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "arch": platform.machine(), "python": platform.python_version()},
        "versions": versions,
        "blas": preload_openblas().active,
        "results": rows,
        "raw": raw,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
