"""Samovar beside the other MLX servers: same model, same prompts, one run.

    python -m benchmarks.serving [--servers samovar,mlx_lm] [--rounds 2] [--limit-min 15] [--quick]
                                 [--model DIR] [--peers DIR] [--seed N] [--json PATH]

Every server is started alone, measured and stopped; two rounds, A B C … A B C …, so that whatever else the
machine does falls on all. What is measured: serving_measures.py; how figures, ratios and goals come of it:
serving_report.py; how the others are installed and started: peers.py (`python -m benchmarks.peers` installs
them; one that is not there is reported as skipped). All serve one float32 copy of the default model
(peers_model.py), Samovar with its SSD tier in a temporary folder.

Bounded: each visit gets an equal share of what is left of ``--limit-min``; a measure that a server has no
time left for is skipped and said so; a server that hangs is killed and reported. ``--quick``: one round of
short replies and prompts of a few hundred tokens, about two minutes for three servers; its figures are for
trying things out. JSON goes to ``--json``; the recorded result is benchmarks/results/serving.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from samovar.runtime.engine.cpu.blas import preload_openblas

from .peers import Environments, Peer, installed, model_name
from .peers_model import float32_model
from .serving_chat import Chat, ChatFailed, Prompts
from .serving_measures import FULL, QUICK, Samples, Scale, measures
from .serving_process import NoStart, Process, free_port
from .serving_report import goals, lines, show

if TYPE_CHECKING:
    from collections.abc import Mapping

START_S = 90.0
REPLY_S = 120.0
LEAST_S = 5.0


@dataclass
class Contender:
    """A server of the run and what is known of it so far. ``notes``: what failed or was skipped."""

    peer: Peer
    versions: dict[str, str]
    samples: Samples = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def take(self, samples: Samples) -> None:
        """Add the samples of one measure."""
        for name, values in samples.items():
            self.samples.setdefault(name, []).extend(values)


@dataclass(frozen=True)
class Comparison:
    """One run: where things are, how much is asked for, and until when (monotonic s)."""

    environments: Environments
    model: Path
    scale: Scale
    seed: int
    until_s: float

    def visit(self, contender: Contender, round_number: int, share_s: float) -> None:
        """Start a server, measure it for at most about ``share_s``, stop it. What fails becomes a note."""
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder, port = Path(name), free_port()
            contender.command = self.environments.command(contender.peer, self.model, port, folder)
            with Process(contender.command, port, folder) as process:
                try:
                    process.wait_up(min(START_S, self._left_s()))
                    prompts = Prompts(self.seed + round_number, self.model)
                    self._chat(contender, port).ask(prompts.short(), 8)  # warm up
                    contender.take({"start_s": [time.monotonic() - begun_s]})
                    self._measure(contender, process, prompts, port, begun_s + share_s)
                except (NoStart, ChatFailed) as error:
                    contender.notes.append(f"round {round_number}: {error}")

    def _measure(
        self, contender: Contender, process: Process, prompts: Prompts, port: int, until_s: float
    ) -> None:
        for name, measure in measures(self.scale).items():
            if time.monotonic() > until_s:
                contender.notes.append(f"no time for: {name}")
                continue
            try:
                contender.take(measure(self._chat(contender, port), prompts))
            except ChatFailed as error:
                contender.notes.append(f"{name}: {error}")
                if error.hung or not process.alive:
                    contender.notes.append(f"given up: {process.tail()[-300:]}")
                    return

    def _chat(self, contender: Contender, port: int) -> Chat:
        return Chat(port, model_name(contender.peer, self.model), min(REPLY_S, self._left_s()))

    def _left_s(self) -> float:
        return max(LEAST_S, self.until_s - time.monotonic())


def compare(run: Comparison, contenders: list[Contender], rounds: int) -> None:
    """Visit every server in every round."""
    visits = rounds * len(contenders)
    for number in range(1, rounds + 1):
        for contender in contenders:
            share_s = (run.until_s - time.monotonic()) / visits
            begun_s = time.monotonic()
            run.visit(contender, number, share_s)
            visits -= 1
            print(f"round {number}: {contender.peer.name}, {time.monotonic() - begun_s:.0f} s", flush=True)


def note_short_replies(contender: Contender, scale: Scale) -> None:
    """Say so where the model ended a reply early: the rates of such a run are not quite comparable."""
    tokens = contender.samples.get("tokens", [])
    if short := [count for count in tokens if count < scale.reply_tokens]:
        contender.notes.append(
            f"{len(short)} of {len(tokens)} replies ended early, one at {min(short):.0f} tokens"
        )


def record(
    run: Comparison, contenders: list[Contender], skipped: dict[str, str], took_s: float
) -> dict[str, object]:
    """Return the result: figures, ratios, goals, and everything that they come from."""
    samples = {contender.peer.name: contender.samples for contender in contenders}
    return {
        "benchmark": "serving",
        "command": " ".join(["python -m benchmarks.serving", *shown(sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "arch": platform.machine(), "python": platform.python_version()},
        "took_s": round(took_s),
        "seed": run.seed,
        "scale": asdict(run.scale),
        "blas": preload_openblas().active,
        "ratio": "how many times better Samovar is; above 1: ahead",
        "figures": {
            line.figure.label: {
                "unit": line.figure.unit,
                "values": rounded(line.values),
                "ratios": rounded(line.ratios),
                "goal": "ahead of every one",
                "met": line.ahead,
            }
            for line in lines(samples)
        },
        "goals": [asdict(goal) for goal in goals(samples)],
        "servers": {
            each.peer.name: {
                "versions": each.versions,
                "command": " ".join(shown(each.command)),
                "notes": each.notes,
                "samples": {
                    name: [round(value, 4) for value in values] for name, values in each.samples.items()
                },
            }
            for each in contenders
        },
        "skipped": skipped,
    }


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def shown(arguments: list[str]) -> list[str]:
    """Leave the folders of this machine out of what is recorded."""
    return [Path(each).name if "/" in each else each for each in arguments]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--servers", help="names, comma-separated; all that are installed without it")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--limit-min", type=float, default=15.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", type=Path, help="an mlx-lm model directory instead of the default model")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    environments = Environments(args.peers)
    found, skipped = installed(environments, args.servers)
    contenders = [Contender(peer, versions) for peer, versions in found]
    model = args.model or float32_model()
    begun_s = time.monotonic()
    run = Comparison(
        environments, model, QUICK if args.quick else FULL, args.seed, begun_s + args.limit_min * 60.0
    )
    compare(run, contenders, args.rounds or (1 if args.quick else 2))
    for contender in contenders:
        note_short_replies(contender, run.scale)
    result = record(run, contenders, skipped, time.monotonic() - begun_s)
    samples = {contender.peer.name: contender.samples for contender in contenders}
    print(show(lines(samples), goals(samples), list(samples)))
    for name, notes in {
        **{c.peer.name: c.notes for c in contenders},
        **{n: [w] for n, w in skipped.items()},
    }.items():
        for note in notes:
            print(f"{name}: {note}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
