"""Three instruments, one set of terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import outside_aiperf
from benchmarks.outside import OURS, SERVER, THEIRS, Run, medians, show, summary
from benchmarks.outside_load import Figures, between, figures_of
from benchmarks.peers import NotInstalled
from benchmarks.serving_chat import Reply

if TYPE_CHECKING:
    from pathlib import Path


def reply(asked_s: float, *pieces_s: float) -> Reply:
    return Reply(asked_s, list(pieces_s), pieces_s[-1] + 0.5, tokens=len(pieces_s))


def test_latency_ends_with_the_last_token_and_gaps_are_the_rest_over_the_tokens_but_one() -> None:
    found = figures_of([reply(0.0, 1.0, 2.0, 4.0), reply(1.0, 4.0, 5.0, 7.0)], 7.0)
    assert found == Figures(2.0, 1.5, 5.0, 6 / 7, 2.0)


def test_one_token_has_no_gap() -> None:
    assert figures_of([reply(0.0, 1.0)], 1.0).itl_s is None


def test_the_export_is_read_in_seconds_and_what_it_lacks_is_none() -> None:
    export = {"time_to_first_token": {"avg": 1500.0}, "output_token_throughput": {"avg": 12.5}}
    assert outside_aiperf.figures_of(export) == Figures(1.5, None, None, 12.5, None)


def test_the_server_tells_of_the_requests_between_two_readings() -> None:
    names = [f"samovar_{each}_seconds" for each in ("ttft", "token_gap")]
    before = {f"{names[0]}_count": 1.0, f"{names[0]}_sum": 9.0}
    after = {
        f"{names[0]}_count": 3.0,
        f"{names[0]}_sum": 13.0,
        f"{names[1]}_count": 0.0,
        f"{names[1]}_sum": 0.0,
    }
    assert between(before, after) == Figures(ttft_s=2.0, requests=2.0)


def test_pairs_are_compared_over_the_same_requests() -> None:
    runs = [
        Run(OURS, Figures(2.0, 0.2), Figures(1.9, 0.2)),
        Run(THEIRS, Figures(3.0, 0.1), Figures(3.0, 0.125)),
    ]
    found = summary(runs)
    assert found[f"{THEIRS} / {OURS}"] == {"ttft_s": 1.5, "itl_s": 0.5}
    assert found[f"{THEIRS} / {SERVER}"] == {"ttft_s": 1.0, "itl_s": 0.8}
    assert "1.500" in show(found)
    assert medians([]) == {}


def test_without_aiperf_there_is_no_command(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match="--only aiperf"):
        outside_aiperf.Aiperf(tmp_path).program()
