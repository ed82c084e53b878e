"""The pages say what the recorded results say."""

from __future__ import annotations

import pytest

from benchmarks.bounded import STEPS, Step, run
from benchmarks.summary import BEGIN, END, FOLDER, README, pages, results, stale
from benchmarks.summary_goals import Goal, goals_page
from benchmarks.summary_goals_cache import CACHE_GOALS
from benchmarks.summary_goals_serving import SERVING_GOALS
from benchmarks.summary_tables import number, tables_of


def test_the_pages_are_what_the_results_say() -> None:
    found = stale(pages(results(), README.read_text()))
    assert found == [], "run python -m benchmarks.summary and commit its pages"


def test_another_figure_makes_both_pages_stale() -> None:
    changed = results()
    changed["kernel"]["loops"]["uvloop"]["times_as_fast"]["ask, against the fastest library"] = 123.0
    assert len(stale(pages(changed, README.read_text()))) == 2


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        pages({}, f"{BEGIN} but never ends")
    assert pages({}, f"a {BEGIN}old{END} b")[README].startswith(f"a {BEGIN}")


def test_every_goal_names_a_benchmark_and_one_bound() -> None:
    for goal in (*SERVING_GOALS, *CACHE_GOALS):
        assert (FOLDER / f"{goal.source.partition('-')[0]}.py").is_file()
        assert (goal.at_least is None) != (goal.at_most is None)


def test_goals_are_met_missed_or_not_recorded() -> None:
    goals = [
        Goal(2, "fast", "kernel", lambda result: result["a"], at_least=2.0),
        Goal(2, "small", "kernel", lambda result: result["a"], at_most=1.0),
        Goal(3, "gone", "kernel", lambda result: result["b"], at_most=1.0),
        Goal(3, "unmeasured", "storage", lambda result: result["a"], at_most=1.0),
    ]
    page = goals_page(goals, {"kernel": {"a": 2.0}})
    assert "4 goals: 1 met, 1 not, 2 without a recorded figure." in page
    assert "| 2 | small | ≤ 1 | 2 | **no** | [kernel](kernel.json) |  |" in page
    assert "| 3 | unmeasured | ≤ 1 | not recorded | - | storage |  |" in page


def test_a_result_of_an_unknown_kind_is_named_with_its_command() -> None:
    text = tables_of("new-thing", {"command": "python -m benchmarks.new", "date": "2026-11-30T01:02:03"})
    assert text.startswith("### new-thing\n\n`python -m benchmarks.new`, 2026-11-30 01:02 UTC")


def test_a_comparison_shows_ratios_failures_and_who_was_not_there() -> None:
    figure = {"scenario": "repeat", "unit": "s", "values": {"samovar": 2.0, "b": 5.0}, "ratios": {"b": 2.5}}
    servers = {
        name: {"versions": {name: "1"}, "outcomes": outcomes}
        for name, outcomes in (("samovar", {}), ("b", {}), ("c", {"repeat": ["failed: 500"]}))
    }
    text = tables_of(
        "compare", {"figures": {"TTFT": figure}, "servers": servers, "skipped": {"d": "not here"}}
    )
    assert "| TTFT (s) | 2 | 5 (2.50) | failed |" in text
    assert text.endswith("- c, repeat: failed: 500\n- d: skipped: not here")


def test_a_replay_shows_a_row_for_each_capacity() -> None:
    figures = [
        {"policy": "ram+ssd", "capacity": 0.05, "hit": 0.5, "restores": 3, "written": 1.5},
        {"policy": "opt", "capacity": 0.05, "hit": 0.75},
    ]
    text = tables_of("retention", {"results": {"tau": {"figures": figures}}})
    assert text.endswith("| tau, 5% | - | 0.5 | - | - | - | 0.75 | - | 3 | 1.5 |")


def test_numbers_have_three_digits() -> None:
    assert [number(each) for each in (None, 39054.2, 123.4, 12.345, 0.00834)] == [
        "-",
        "39,054",
        "123",
        "12.3",
        "0.00834",
    ]


def test_steps_of_make_bench_fit_their_limit_and_name_benchmarks() -> None:
    assert all((FOLDER / f"{step.name}.py").is_file() for step in STEPS)


def test_a_step_is_skipped_with_the_reason_cut_off_or_failed() -> None:
    assert run(Step("kernel", (), 9.0, lambda: "needs a GPU"), 9.0).said == "skipped: needs a GPU"
    assert run(Step("kernel", (), 9.0), 0.5).said == "skipped: no time left"
    assert run(Step("no_such_benchmark", (), 15.0), 15.0).said == "failed with 1"
    assert run(Step("http", ("--seconds", "60"), 0.3), 9.0).said.startswith("cut off after")
