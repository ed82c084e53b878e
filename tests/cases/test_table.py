"""The table of scenarios in README.md is complete, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("README.md")
SCENARIOS = ROOT.parent / "shared" / "cases" / "scenarios.md"
CATEGORIES = {
    "API-compat",
    "cache-correctness",
    "concurrency",
    "config",
    "corruption",
    "durability",
    "memory",
    "model-support",
    "security",
    "shutdown",
    "streaming",
    "tokenizer",
}
ROW = re.compile(r"^\| (B\d{3}) \| ([A-Za-z-]+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HEADER = re.compile(r"^\*\*(B\d{3})\*\* · ([a-z-]+) ·", re.MULTILINE | re.IGNORECASE)
NOT_APPLICABLE = re.compile(r"cannot apply: \w.{20,}")


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall(TABLE.read_text("utf-8"))


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of the test functions of a file, without importing it."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_every_named_test_exists() -> None:
    named = [pair for _, _, how in rows() for pair in NAMED.findall(how)]
    assert len(named) > 40
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []


def test_every_row_names_a_test_or_says_why_not() -> None:
    found = rows()
    assert len(found) > 40
    assert len({case for case, _, _ in found}) == len(found), "a scenario has two rows"
    for case, _, how in found:
        assert NAMED.search(how) or NOT_APPLICABLE.search(how), f"{case}: {how}"


def test_no_line_of_the_table_is_overlooked() -> None:
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if line.startswith("| B")]
    assert [line for line in lines if not ROW.fullmatch(line)] == []


def test_every_scenario_of_these_categories_is_in_the_table() -> None:
    if not SCENARIOS.is_file():
        pytest.skip("the scenarios are not here: shared/cases/scenarios.md beside the repository")
    scenarios = dict(HEADER.findall(SCENARIOS.read_text("utf-8")))
    wanted = {case: category for case, category in scenarios.items() if category in CATEGORIES}
    assert len(wanted) > 40
    assert {case: category for case, category, _ in rows() if case in wanted} == wanted
