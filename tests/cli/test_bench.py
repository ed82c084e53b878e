"""``samovar bench``: what it names, what it refuses, what becomes of a benchmark's result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.cli import bench_command, main
from samovar.runtime.cli.bench_command import benchmarks
from samovar.runtime.progress import shown_activity

from .test_progress import Terminal

if TYPE_CHECKING:
    from pathlib import Path

MODULE = '''"""Measure nothing.

More about it.
"""
import argparse, json, pathlib, sys
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--fail", type=int, default=0)
    given = parser.parse_args()
    print("measuring", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"fail": given.fail}))
    sys.exit(given.fail)
'''
SILENT = MODULE.replace('    parser.add_argument("--json", type=pathlib.Path)\n', "").replace(
    "given.json", "False"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "benchmarks"
    made.mkdir()
    (made / "__init__.py").write_text("")
    (made / "nothing.py").write_text(MODULE)
    (made / "silent.py").write_text(SILENT)
    (made / "part_of_it.py").write_text("VALUE = 1\n")
    monkeypatch.setattr(bench_command, "FOLDER", made)
    return made


def test_an_installed_package_says_that_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_command, "FOLDER", tmp_path / "benchmarks")
    assert main(["bench", "kernel"]) == 1
    assert "run this in a checkout" in capsys.readouterr().err


@pytest.mark.parametrize("args", [("none",), ("part_of_it",), ("silent", "--json"), ("nothing", "--bad")])
def test_what_cannot_be_run_is_a_usage_error(folder: Path, args: tuple[str, ...]) -> None:
    assert main(["bench", *args]) == 2


@pytest.mark.parametrize("args", [("--json", "nothing"), ("nothing", "--json")])
def test_the_result_is_all_that_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    assert main(["bench", *args]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"fail": 0}, "measuring\n")


def test_a_benchmarks_own_arguments_and_exit_code_are_passed_on(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    assert main(["bench", "nothing", "--json", str(path), "--fail", "3"]) == 1
    assert json.loads(path.read_text()) == {"fail": 3}
    assert capfd.readouterr().out == "measuring\n"


def test_without_a_name_they_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [["nothing", "Measure nothing."], ["silent", "Measure nothing."]]


def test_those_of_this_checkout_are_found_and_say_what_they_measure() -> None:
    found = benchmarks(bench_command.FOLDER)
    assert {
        "kernel",
        "http",
        "engine",
        "serving",
        "storage",
        "restart",
        "prefill",
        "long_run",
    } <= found.keys()
    assert all(each.purpose for each in found.values())


def test_a_terminal_gets_lines_and_a_clock_and_markup_stays_text() -> None:
    stream = Terminal()
    with shown_activity(stream, "bench x") as tell:
        tell("[red]12[/red] µs")
    assert "[red]12[/red] µs" in stream.getvalue()
    assert "bench x" in stream.getvalue()
