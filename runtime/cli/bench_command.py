"""``samovar bench NAME``: the benchmarks of a checkout, each in a process of its own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..progress import shown_activity
from .complaints import FAILED, OK, USAGE

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

FOLDER: Final = Path(__file__).parents[2] / "benchmarks"
"""Beside runtime/ in a checkout, and absent from an installed package."""


class NoBenchmark(Exception):
    """There is no such benchmark here."""

    code = "no_benchmark"
    retryable = False

    def __init__(self, message: str, *, usage: bool) -> None:
        super().__init__(message)
        self.usage = usage


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module of benchmarks/ that can be run. ``writes_json``: it takes ``--json PATH``."""

    name: str
    purpose: str
    writes_json: bool


def run(args: Namespace) -> int:
    """Run a benchmark, or name them all. The result goes to stdout, as JSON if wanted."""
    known = benchmarks(FOLDER)
    if args.name is None:
        for each in known.values():
            sys.stdout.write(f"{each.name:<14} {each.purpose}\n")
        return OK
    if args.name not in known:
        names = ", ".join(known)
        raise NoBenchmark(f"there is no benchmark {args.name!r}; there are: {names}", usage=True)
    chosen, (arguments, behind) = known[args.name], _without_json(args.arguments)
    if (args.json or behind) and not chosen.writes_json:
        raise NoBenchmark(f"{chosen.name} has no JSON result", usage=True)
    code = _run_for_json(chosen, arguments) if args.json or behind else _run(chosen, arguments)
    return code if code in {OK, USAGE} else FAILED


def _without_json(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Take out a ``--json`` without a path: it is ours, and one with a path is the benchmark's."""
    for place, argument in enumerate(arguments):
        follower = arguments[place + 1 : place + 2]
        if argument == "--json" and (not follower or follower[0].startswith("-")):
            return [*arguments[:place], *arguments[place + 1 :]], True
    return list(arguments), False


def benchmarks(folder: Path) -> dict[str, Benchmark]:
    """Return the benchmarks in a folder, by name. Raises NoBenchmark where there is no such folder."""
    if not folder.is_dir():
        where = "benchmarks/ is not part of an installed package; run this in a checkout of Samovar"
        raise NoBenchmark(f"there are no benchmarks here: {where}", usage=False)
    found = (_described(path) for path in sorted(folder.glob("*.py")))
    return {each.name: each for each in found if each is not None}


def _described(path: Path) -> Benchmark | None:
    """Return what a module is, None unless people are to run it: only those take arguments."""
    source = path.read_text()
    if "__main__" not in source or "ArgumentParser(" not in source:
        return None
    purpose = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return Benchmark(path.stem, purpose, '"--json"' in source)


def _run(chosen: Benchmark, arguments: Sequence[str]) -> int:
    """Run the module with our stdout; return its exit code."""
    return subprocess.run(_command(chosen, arguments), env=_environment(), check=False).returncode  # noqa: S603


def _run_for_json(chosen: Benchmark, arguments: Sequence[str]) -> int:
    """Run the module; what it prints is shown as progress, and the result it writes is our output."""
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        path = Path(folder) / "result.json"
        command = _command(chosen, [*arguments, "--json", str(path)])
        with (
            shown_activity(sys.stderr, f"bench {chosen.name}") as tell,
            subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, text=True) as process,  # noqa: S603
        ):
            assert process.stdout is not None
            for line in process.stdout:
                tell(line.rstrip("\n"))
        if path.exists():
            sys.stdout.write(path.read_text().rstrip("\n") + "\n")
        return process.returncode


def _command(chosen: Benchmark, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", f"{FOLDER.name}.{chosen.name}", *arguments]


def _environment() -> dict[str, str]:
    paths = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
