"""An outside check: the field's load generator, aiperf, beside our own client and the server's histograms.

    python -m benchmarks.outside [--rounds 2] [--quick] [--limit-min 10] [--model DIR] [--into DIR]
                                 [--seed N] [--json PATH]

Each run starts Samovar in a fresh folder and puts one load (outside_load.py) on it: by our client, by aiperf,
by aiperf, by ours, so that neither finds a prompt in the cache or always gets the faster half of the run.
What the two say of different runs differs by the machine's mood too; what either says beside the server's own
histograms is of the same requests, and tells whether an instrument is off. aiperf is installed on first use,
apart (outside_aiperf.py); where it cannot be, the check is skipped with the reason and exit code 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from .compare_server import Server
from .outside_aiperf import AIPERF, Aiperf, AiperfFailed
from .outside_load import Figures, Load, ask_all, between, metrics
from .peers import SAMOVAR, Environments, NotInstalled
from .peers_model import float32_model
from .serving import shown
from .serving_chat import ChatFailed, Prompts
from .serving_process import NoStart, end_on_sigterm

OURS, THEIRS, SERVER = "our client", "aiperf", "server"
QUICK = Load(requests=6, at_once=2, prompt_tokens=100, reply_tokens=12)


@dataclass
class Run:
    """What two instruments said of the same requests: ``client`` is ours or aiperf."""

    client: str
    said: Figures
    server: Figures


@dataclass
class Check:
    """The runs so far; ``failures``: why others have no figures."""

    model: Path
    load: Load
    seed: int
    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def make(self, client: str, aiperf: Aiperf, until_s: float) -> None:
        """Start a server, put the load on it, stop it. What fails is noted."""
        prompts = Prompts(self.seed, self.model)
        texts = self.load.texts(prompts)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with Server(Environments(), SAMOVAR, self.model, folder, until_s) as server:
                try:
                    server.start(prompts)
                    before = metrics(server.port)
                    if client == OURS:
                        said = ask_all(server.chat(), texts, self.load)
                    else:
                        said = aiperf.measure(self.model, server.port, folder, texts, self.load)
                    self.runs.append(Run(client, said, between(before, metrics(server.port))))
                except (NoStart, ChatFailed, AiperfFailed) as error:
                    self.failures.append(f"{client}: {error}")


def medians(figures: list[Figures]) -> dict[str, float]:
    """Return the median of each figure over the runs that have it."""
    found: dict[str, float] = {}
    for each in fields(Figures):
        values = [value for one in figures if (value := getattr(one, each.name)) is not None]
        if values:
            found[each.name] = statistics.median(values)
    return found


def summary(runs: list[Run]) -> dict[str, dict[str, float]]:
    """Return what each instrument said, and how far the pairs agree (1: exactly)."""
    said = {name: medians([run.said for run in runs if run.client == name]) for name in (OURS, THEIRS)}
    beside = {name: medians([run.server for run in runs if run.client == name]) for name in (OURS, THEIRS)}
    return {
        OURS: said[OURS],
        f"{SERVER}, under {OURS}": beside[OURS],
        THEIRS: said[THEIRS],
        f"{SERVER}, under {THEIRS}": beside[THEIRS],
        f"{THEIRS} / {OURS}": ratios(said[THEIRS], said[OURS]),
        f"{OURS} / {SERVER}": ratios(said[OURS], beside[OURS]),
        f"{THEIRS} / {SERVER}": ratios(said[THEIRS], beside[THEIRS]),
    }


def ratios(upper: dict[str, float], lower: dict[str, float]) -> dict[str, float]:
    """Return the quotient of every figure that both have."""
    return {name: upper[name] / lower[name] for name in upper if lower.get(name)}


def show(found: dict[str, dict[str, float]]) -> str:
    """Return the summary as a table."""
    names = [each.name for each in fields(Figures)]
    rows = [f"{'':<26}" + "".join(f"{name:>14}" for name in names)]
    for label, values in found.items():
        cells = (f"{values[name]:.3f}" if name in values else "-" for name in names)
        rows.append(f"{label:<26}" + "".join(f"{each:>14}" for each in cells))
    return "\n".join(rows)


def record(check: Check, args: argparse.Namespace, aiperf: Aiperf) -> dict[str, object]:
    """Return the result with everything that it comes from."""
    command = aiperf.command(check.model, 0, Path("run"), check.load)
    return {
        "benchmark": "outside",
        "command": " ".join(["python -m benchmarks.outside", *shown(sys.argv[1:])]),
        "aiperf_command": " ".join(shown(command)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "arch": platform.machine(),
            "python": platform.python_version(),
            "load_after": round(os.getloadavg()[0], 2),
        },
        "versions": {THEIRS: AIPERF.requirements[0], **Environments().versions(SAMOVAR)},
        "seed": args.seed,
        "load": asdict(check.load),
        "summary": {label: _rounded(values) for label, values in summary(check.runs).items()},
        "runs": [asdict(run) for run in check.runs],
        "failures": check.failures,
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def measure(check: Check, aiperf: Aiperf, rounds: int, until_s: float) -> None:
    """Run the load ``rounds`` times by each client, in turns that change; stop when time is up."""
    for number in range(rounds):
        for client in (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS):
            if time.monotonic() > until_s:
                check.failures.append(f"{client}: no time in round {number + 1}")
                continue
            check.make(client, aiperf, until_s)
            print(f"round {number + 1}: {client}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit-min", type=float, default=10.0)
    parser.add_argument("--model", type=Path, help="an mlx-lm model directory instead of the default model")
    parser.add_argument("--into", type=Path, help="folder for aiperf's environment")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end_on_sigterm()
    aiperf = Aiperf(args.into)
    try:
        aiperf.install()
    except NotInstalled as error:
        print(f"skipped: {error}")
        return
    check = Check(args.model or float32_model(), QUICK if args.quick else Load(), args.seed)
    measure(check, aiperf, 1 if args.quick else args.rounds, time.monotonic() + args.limit_min * 60.0)
    print(show(summary(check.runs)))
    for failure in check.failures:
        print(failure)
    if args.json:
        args.json.write_text(json.dumps(record(check, args, aiperf), indent=2) + "\n")
    if not check.runs or any("no time" not in each for each in check.failures):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
