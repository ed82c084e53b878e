"""Samovar and the other MLX servers through the same scenarios: cold, hit, restart, agent, load, idle, start.

    python -m benchmarks.compare [--servers samovar,mlx_lm] [--scenarios start,repeat] [--rounds N]
                                 [--limit-min 40] [--quick] [--model DIR] [--peers DIR] [--traces DIR]
                                 [--seed N] [--json PATH]

The scenarios are in compare_scenarios.py, the figures in compare_report.py; how the others are installed and
started is in peers.py (`python -m benchmarks.peers` installs them). All serve one float32 copy of the default
model, one server at a time, each visit in a fresh folder that is kept over its restarts. A server that is not
installed is reported as skipped, a scenario that it does not get through as failed, with the reason.

Bounded: each visit gets an equal share of what is left of ``--limit-min``; what there is no time for is said.
``--quick`` asks for a few hundred tokens where the full run asks for thousands: for trying things out. The
texts of the agent are in ../shared/traces beside the checkout, or ``--traces``; without them that scenario is
skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from samovar.runtime.engine.cpu.blas import preload_openblas

from .compare_report import Row, reasons, rows, table
from .compare_scenarios import SCENARIOS, Plan, quick
from .compare_visit import Contender, Visit
from .peers import Environments, installed
from .peers_model import float32_model
from .serving import rounded, shown
from .serving_process import end_on_sigterm

TRACES = Path(__file__).parents[2] / "shared" / "traces"


def chosen_scenarios(names: str | None) -> tuple[str, ...]:
    """Return the scenarios of a comma-separated list, all for None. Raises SystemExit for an unknown name."""
    wanted = tuple(SCENARIOS) if names is None else tuple(names.split(","))
    if unknown := [name for name in wanted if name not in SCENARIOS]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return wanted


def compare(
    environments: Environments, model: Path, plan: Plan, contenders: list[Contender], args: argparse.Namespace
) -> None:
    """Visit every server in every round."""
    until_s = time.monotonic() + args.limit_min * 60.0
    left = args.rounds * len(contenders)
    for number in range(args.rounds):
        for contender in contenders:
            begun_s = time.monotonic()
            share_s = max(0.0, until_s - begun_s) / left
            Visit(environments, model, plan, args.seed + number, begun_s + share_s).make(contender)
            left -= 1
            took_s = time.monotonic() - begun_s
            print(f"round {number + 1}: {contender.peer.name}, {took_s:.0f} s", flush=True)


def record(
    plan: Plan, contenders: list[Contender], skipped: dict[str, str], args: argparse.Namespace
) -> dict[str, object]:
    """Return the result: figures, ratios, outcomes, and everything that they come from."""
    scale = {name: value for name, value in asdict(plan).items() if name != "traces"}
    return {
        "benchmark": "compare",
        "command": " ".join(["python -m benchmarks.compare", *shown(sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "arch": platform.machine(),
            "python": platform.python_version(),
            "load_after": round(os.getloadavg()[0], 2),
        },
        "seed": args.seed,
        "rounds": args.rounds,
        "plan": scale,
        "blas": preload_openblas().active,
        "ratio": "how many times better Samovar is; above 1: ahead",
        "figures": {row.line.figure.label: _figure(row) for row in rows(_samples(contenders))},
        "servers": {each.peer.name: _server(each) for each in contenders},
        "skipped": skipped,
    }


def _samples(contenders: list[Contender]) -> dict[str, dict[str, list[float]]]:
    return {each.peer.name: each.samples for each in contenders}


def _figure(row: Row) -> dict[str, object]:
    return {
        "scenario": row.scenario,
        "unit": row.line.figure.unit,
        "values": rounded(row.line.values),
        "ratios": rounded(row.line.ratios),
    }


def _server(contender: Contender) -> dict[str, object]:
    return {
        "versions": contender.versions,
        "command": " ".join(shown(contender.command)),
        "outcomes": contender.outcomes,
        "notes": contender.notes,
        "samples": {
            name: [round(value, 4) for value in values] for name, values in contender.samples.items()
        },
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--servers", help="names, comma-separated; all that are installed without it")
    parser.add_argument("--scenarios", help=f"names, comma-separated, of {', '.join(SCENARIOS)}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit-min", type=float, default=40.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", type=Path, help="an mlx-lm model directory instead of the default model")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of recorded conversations")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    end_on_sigterm()
    args = arguments()
    names = chosen_scenarios(args.scenarios)
    environments = Environments(args.peers)
    found, skipped = installed(environments, args.servers)
    contenders = [Contender(peer, versions) for peer, versions in found]
    plan = replace(quick(args.traces) if args.quick else Plan(args.traces), names=names)
    compare(environments, args.model or float32_model(), plan, contenders, args)
    outcomes = {each.peer.name: each.outcomes for each in contenders}
    print(table(rows(_samples(contenders)), outcomes))
    for contender in contenders:
        print(f"{contender.peer.name}: {contender.versions}; {' '.join(shown(contender.command))}")
        for note in contender.notes:
            print(f"{contender.peer.name}: {note}")
    for name, why in skipped.items():
        print(f"{name}: skipped: {why}")
    if args.json:
        args.json.write_text(json.dumps(record(plan, contenders, skipped, args), indent=2) + "\n")
    if any("failed" in each for each in reasons({"samovar": outcomes.get("samovar", {})})):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
