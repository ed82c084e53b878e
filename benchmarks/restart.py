"""What a prompt costs the second time: TTFT cold, from RAM, and after a restart, on the default model.

    python -m benchmarks.restart [--model M] [--tokens 1000,2000,6000] [--rounds 2] [--json PATH]

One server process after the other on one cache directory. For every length a text of its own is asked for
cold and again (RAM); all is flushed, the server ended by SIGTERM, and the prompts asked for again (SSD);
they are asked for once more after a flush and SIGKILL. Figures are ratios to the cold TTFT of the same prompt
in the same run. Then the decode rate of one stream with a checkpoint being written beside it, against
without; and the cost of the cache where it never hits, against a server with the cache switched off.
Texts come from ``--texts DIR`` (any .txt files), or are made of words.
"""

from __future__ import annotations

import argparse
import http.client
import json
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.serving_chat import WORDS

START_S = 180.0
REPLY_S = 600.0
CHARACTERS_PER_TOKEN = 4.0


@dataclass
class Server:
    """One server process on a free port."""

    model: list[str]
    settings: list[str]
    port: int = 0
    process: subprocess.Popen[str] | None = None
    tail: list[str] = field(default_factory=list)
    started_s: float = 0.0

    def start(self) -> Server:
        """Start the process and wait until it is ready."""
        arguments = [sys.executable, "-m", "samovar.runtime.cli", "serve", *self.model, "--port", "0"]
        for setting in ("logging.format=json", *self.settings):
            arguments += ["--set", setting]
        began = time.monotonic()
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.tail = [*self.tail[-20:], line]
            if '"ready"' in line and (found := re.search(r'"address":"[^"]*:(\d+)', line)):
                self.port = int(found[1])
                break
        else:
            raise RuntimeError("".join(self.tail))
        self.started_s = time.monotonic() - began
        threading.Thread(target=self._discard, daemon=True).start()
        return self

    def _discard(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.tail = [*self.tail[-20:], line]

    def end(self, number: signal.Signals) -> None:
        """Signal the process and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(180)

    def call(self, method: str, path: str) -> Any:
        """Make one request and return its parsed body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_S)
        connection.request(method, path)
        body = json.loads(connection.getresponse().read())
        connection.close()
        return body

    def ask(self, content: str, max_tokens: int) -> Reply:
        """Stream one chat completion."""
        body = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_S)
        asked = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == http.HTTPStatus.OK, response.read()
        reply = Reply()
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                reply.usage = event["usage"]
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    reply.chunks_s.append(time.perf_counter() - asked)
                    reply.text += choice["delta"]["content"]
        reply.done_s = time.perf_counter() - asked
        connection.close()
        return reply


@dataclass
class Reply:
    """One streamed reply: when its chunks came (seconds after asking), its text and its usage."""

    chunks_s: list[float] = field(default_factory=list)
    done_s: float = 0.0
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        """Seconds from asking to the first piece of text, to the end where there was none."""
        return self.chunks_s[0] if self.chunks_s else self.done_s

    @property
    def decode_tps(self) -> float:
        """Chunks a second after the first."""
        return (len(self.chunks_s) - 1) / (self.chunks_s[-1] - self.chunks_s[0])

    @property
    def reuse(self) -> str:
        """Where the prompt came from and how much of it."""
        own = self.usage["samovar"]
        return f"{own['tier']} {own['cached_tokens']}/{self.usage['prompt_tokens']}"


def text_of(tokens: int, rng: random.Random, texts: list[Path]) -> str:
    """Return a text of about ``tokens`` tokens that begins differently each time."""
    wanted = int(tokens * CHARACTERS_PER_TOKEN)
    start = " ".join(rng.choices(WORDS, k=6))
    if texts:
        book = rng.choice(texts).read_text(errors="replace")
        at = rng.randrange(max(1, len(book) - wanted))
        return f"{start}: {book[at : at + wanted]}\n\nWhat happens here? Answer in two sentences."
    return f"{start}: " + " ".join(rng.choices(WORDS, k=tokens))


def restart_ratios(args: argparse.Namespace, root: Path, texts: list[Path]) -> list[dict[str, Any]]:
    rng = random.Random(args.seed)
    lengths = [int(each) for each in args.tokens.split(",")] * args.rounds
    prompts = [text_of(tokens, rng, texts) for tokens in lengths]
    settings = [f"cache.ssd.dir={root}"]
    server = Server(args.model, settings).start()
    server.ask("Warm up, please.", 4)
    if args.warm:  # a GPU compiles its kernels for every shape
        for tokens in sorted(set(lengths)):
            server.ask(text_of(tokens, rng, texts), 4)
    rows: list[dict[str, Any]] = []
    replies: list[Reply] = []
    for tokens, prompt in zip(lengths, prompts, strict=True):
        cold = server.ask(prompt, 8)
        ram = [server.ask(prompt, 8) for _ in range(3)]
        assert all(each.text == cold.text for each in ram), "a hit changed the reply"
        row = {"tokens": cold.usage["prompt_tokens"], "cold_s": cold.ttft_s, "ram_s": _median(ram)}
        rows.append(row | {"asked_tokens": tokens, "ram": ram[0].reuse})
        replies.append(cold)
        print(f"{row['tokens']} tokens: cold {cold.ttft_s:.2f} s, ram {row['ram_s'] / cold.ttft_s:.4f}")
    for name, number in (("sigterm", signal.SIGTERM), ("sigkill", signal.SIGKILL)):
        flushed = server.call("POST", "/admin/cache/flush")
        assert flushed["durable"], flushed
        server.end(number)
        server = Server(args.model, settings).start()
        server.ask("Warm up, please.", 4)
        for row, prompt, cold in zip(rows, prompts, replies, strict=True):
            again = server.ask(prompt, 8)
            assert again.text == cold.text, "a restore changed the reply"
            row[f"{name}_s"], row[name] = again.ttft_s, again.reuse
            row[f"{name}_restore_ms"] = again.usage["samovar"]["restore_ms"]
            print(f"{row['tokens']} tokens after {name}: {again.ttft_s / row['cold_s']:.4f} ({again.reuse})")
    server.end(signal.SIGTERM)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    result = []
    for asked in sorted({row["asked_tokens"] for row in rows}):
        mine = [row for row in rows if row["asked_tokens"] == asked]
        ratios = {
            name: round(statistics.median(row[f"{name}_s"] / row["cold_s"] for row in mine), 4)
            for name in ("ram", "sigterm", "sigkill")
        }
        tokens = round(statistics.mean(row["tokens"] for row in mine))
        result.append({"asked_tokens": asked, "prompt_tokens": tokens, **ratios})
    return result


def decode_beside_write(args: argparse.Namespace, root: Path, texts: list[Path]) -> dict[str, float]:
    """Decode rate of one stream while a 6 k checkpoint is written, against while nothing is."""
    rng = random.Random(args.seed + 1)
    ratios: list[float] = []
    big = max(int(each) for each in args.tokens.split(","))
    for _ in range(args.rounds):
        server = Server(args.model, [f"cache.ssd.dir={root}", "cache.ssd.write_behind=false"]).start()
        server.ask(text_of(big, rng, texts), 1)
        quiet = server.ask("Count from one to one hundred in words.", 96)
        writing = threading.Event()

        def flush(server: Server = server, writing: threading.Event = writing) -> None:
            writing.set()
            server.call("POST", "/admin/cache/flush")

        thread = threading.Thread(target=flush)
        thread.start()
        writing.wait()
        busy = server.ask("Count from one to one hundred in words, please.", 96)
        thread.join()
        ratios.append(busy.decode_tps / quiet.decode_tps)
        server.end(signal.SIGKILL)
    return {"decode_ratio_with_write": round(statistics.median(ratios), 3)}


def cost_without_hits(args: argparse.Namespace, root: Path, texts: list[Path]) -> dict[str, Any]:
    """Whole time of requests that never hit, cache on against cache off, alternating."""
    rng = random.Random(args.seed + 2)
    on = Server(args.model, [f"cache.ssd.dir={root}"]).start()
    off = Server(args.model, ["cache.ssd.dir=off", "cache.ram.max=0"]).start()
    times: dict[str, list[float]] = {"on": [], "off": []}
    for turn in range(args.rounds * 4 + 1):
        order = [("on", on), ("off", off)]
        for name, server in order if turn % 2 else reversed(order):
            reply = server.ask(text_of(600, rng, texts), 48)
            assert reply.usage["prompt_tokens_details"]["cached_tokens"] < 64, reply.reuse
            if turn:  # the first turn warms up
                times[name].append(reply.done_s)
    on.end(signal.SIGKILL)
    off.end(signal.SIGKILL)
    ratios = [a / b for a, b in zip(times["on"], times["off"], strict=True)]
    quartiles = [round(each, 3) for each in statistics.quantiles(ratios, n=4)]
    return {"cost_at_no_hits": round(statistics.median(ratios), 4), "cost_quartiles": quartiles}


def _median(replies: list[Reply]) -> float:
    return statistics.median(reply.ttft_s for reply in replies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=lambda text: [text], default=[])
    parser.add_argument("--tokens", default="1000,2000,6000")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--warm", action="store_true", help="prefill each length once before measuring")
    parser.add_argument("--only", choices=("restart", "write", "cost"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    texts = sorted(args.texts.glob("*.txt")) if args.texts else []
    result: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.restart", *_shown(sys.argv[1:])]),
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{platform.system()} {platform.machine()}",
        "seed": args.seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        if args.only in (None, "restart"):
            rows = restart_ratios(args, Path(folder) / "a", texts)
            result |= {"ratios_to_cold": summary(rows), "rows": rows}
        if args.only in (None, "write"):
            result |= decode_beside_write(args, Path(folder) / "b", texts)
        if args.only in (None, "cost"):
            result |= cost_without_hits(args, Path(folder) / "c", texts)
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


def _shown(arguments: list[str]) -> list[str]:
    """Leave folders of this machine out of what is recorded."""
    return [Path(each).name if "/" in each else each for each in arguments]


if __name__ == "__main__":
    main()
