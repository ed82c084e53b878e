"""docs/errors.md has every code of the source, and none that has gone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from samovar.actors.requests import Refused
from samovar.runtime.engine.port import Failed
from samovar.runtime.http.errors import failure, refusal

from .error_codes import ROOT, collect

if TYPE_CHECKING:
    from pathlib import Path

ROW = re.compile(r"^\| `([a-z0-9_]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
STATUS = re.compile(r"\b[345]\d\d\b")


def table() -> list[tuple[str, str, str, str]]:
    return ROW.findall((ROOT / "docs" / "errors.md").read_text("utf-8"))


def test_every_code_of_the_source_is_in_the_table() -> None:
    known = {code for code, *_ in table()}
    missing = {code: sorted(found.places) for code, found in collect().items() if code not in known}
    assert missing == {}


def test_no_code_of_the_table_has_gone() -> None:
    codes = collect()
    assert [code for code, *_ in table() if code not in codes] == []


def test_the_table_is_sorted_and_every_row_says_what_to_do() -> None:
    rows = table()
    lines = (ROOT / "docs" / "errors.md").read_text("utf-8").splitlines()
    assert len(rows) == sum(line.startswith("| `") for line in lines)
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    assert all(cell.strip() for row in rows for cell in row)


def test_the_statuses_are_those_that_are_sent() -> None:
    statuses = {code: {int(number) for number in STATUS.findall(status)} for code, status, *_ in table()}
    for code, found in collect().items():
        sent = set(found.statuses)
        if all(place.startswith("runtime/cli/") for place in found.places):
            continue  # told in a terminal
        if "Refused" in found.makers:
            sent.add(refusal(Refused(code, "why")).status)
        elif found.makers & {"Failed", "failed", "Refusal"}:
            sent.add(failure(Failed("r", code, "why"), "req-1").status)
        assert sent <= statuses[code], code


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ('raise HttpError(418, "fresh_code", "why")', "fresh_code"),
        ('x = Refused("fresh_code", "why")', "fresh_code"),
        ('class New(Exception):\n    code = "fresh_code"', "fresh_code"),
        ('_CODE: str = "fresh_code"\nx = HttpError(418, _CODE, "why")', "fresh_code"),
        ('x = HttpError(status=418, code="fresh_code", message="why")', "fresh_code"),
    ],
)
def test_a_new_code_would_be_found(tmp_path: Path, source: str, code: str) -> None:
    folder = tmp_path / "runtime" / "deep"
    folder.mkdir(parents=True)
    (folder / "new.py").write_text(source)
    assert set(collect(tmp_path)) == {code}
