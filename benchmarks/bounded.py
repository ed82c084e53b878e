"""What ``make bench`` runs: a part of every benchmark that has something to say here, in ten minutes.

    python -m benchmarks.bounded [--limit-min 10] [--only kernel,http]

Each step is a benchmark in a process of its own, with a limit. Steps that need what is not here (a GPU, the
peers, the load generator, recorded traces) are skipped with what would bring it; nothing large is fetched but
the default model. At the end: what ran, what was skipped, what failed; exit code 1 if something failed. The
sizes are small and nothing is recorded: README.md has the commands of the recorded results.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .compare import TRACES
from .outside_aiperf import Aiperf
from .peers import PEERS, Environments, NotInstalled
from .serving_process import end_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_S = 30.0


def always() -> str | None:
    """Nothing is needed."""
    return None


def gpu() -> str | None:
    """An NVIDIA GPU; on one of Apple's, engine runs by hand."""
    return None if shutil.which("nvidia-smi") else "needs a GPU of NVIDIA"


def load_generator() -> str | None:
    """The installed aiperf."""
    try:
        Aiperf().program()
    except NotInstalled:
        return "needs aiperf (0.8 GB): python -m benchmarks.outside installs and runs it"
    return None


def traces() -> str | None:
    """The recorded traces."""
    if importlib.util.find_spec("benchmarks.retention") is None:
        return "there is no benchmarks/retention.py"
    return None if TRACES.is_dir() else "needs ../shared/traces beside the checkout"


@dataclass(frozen=True)
class Step:
    """One benchmark: its module, its arguments, seconds it may take, what it needs (a reason if not here)."""

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    missing: Callable[[], str | None] = always


STEPS = (
    Step("summary", ("--check",), 20.0),
    Step("kernel", ("--rounds", "6"), 60.0),
    Step("http", ("--seconds", "2", "--serving", "benchmarks.http_tree:over_tree"), 60.0),
    Step("slow_reader", (), 90.0),
    Step("storage", ("--quick",), 90.0),
    Step("lone_restore", ("--megabytes", "50", "--rounds", "5"), 30.0),
    Step("long_run", ("--requests", "200"), 60.0),
    Step("retention", ("--only", "agentic", "--capacity", "5"), 60.0, traces),
    Step("engine", ("--rows", "1,4", "--prompts", "512", "--tokens", "16", "--rounds", "2"), 120.0),
    Step(
        "engine",
        ("--size", "1b", "--dtype", "bfloat16", "--rows", "1,8,32", "--prompts", "2048", "--chunk", "2048"),
        120.0,
        gpu,
    ),
    Step("outside", ("--quick", "--limit-min", "2"), 120.0, load_generator),
    Step("compare", ("--quick", "--limit-min", "4"), 300.0),
)


@dataclass(frozen=True)
class Outcome:
    """How a step ended: ``ok``, ``skipped: why``, ``failed …``."""

    step: Step
    said: str
    took_s: float = 0.0


def run(step: Step, left_s: float) -> Outcome:
    """Run one step for at most its limit and what is left."""
    if (missing := step.missing()) is not None:
        return Outcome(step, f"skipped: {missing}")
    if left_s < 1.0:
        return Outcome(step, "skipped: no time left")
    print(f"\n== {step.name} {' '.join(step.arguments)}", flush=True)
    begun_s = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{step.name}", *step.arguments]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(min(step.limit_s, left_s))
        said = "ok" if code == 0 else f"failed with {code}"
    except subprocess.TimeoutExpired:
        said = f"cut off after {time.monotonic() - begun_s:.0f} s"
    finally:
        _end(process)
    return Outcome(step, said, time.monotonic() - begun_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step that still runs, with what it has started: politely, then by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def peers_line() -> str:
    """Say which peers ``compare`` will find."""
    environments, missing = Environments(), list[str]()
    for peer in PEERS:
        try:
            environments.python(peer)
        except NotInstalled:
            missing.append(peer.name)
    if not missing:
        return "all peers are installed"
    return f"not installed: {', '.join(missing)} (python -m benchmarks.peers installs them, gigabytes)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--limit-min", type=float, default=10.0)
    parser.add_argument("--only", help="names of steps, comma-separated")
    args = parser.parse_args()
    end_on_sigterm()
    wanted = None if args.only is None else set(args.only.split(","))
    if unknown := (wanted or set()) - {step.name for step in STEPS}:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}")
    until_s = time.monotonic() + args.limit_min * 60.0
    outcomes = [
        run(step, until_s - time.monotonic()) for step in STEPS if wanted is None or step.name in wanted
    ]
    print(f"\n== found ({peers_line()})")
    for outcome in outcomes:
        print(f"{outcome.step.name:<14}{outcome.took_s:>6.0f} s  {outcome.said}")
    if any(outcome.said.startswith("failed") for outcome in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
