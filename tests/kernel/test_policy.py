from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.kernel import Backoff, ChildSpec, RestartLimit, SupervisorSpec
from samovar.runtime.kernel.policy import RestartWindow, affected, restarts

from tests.kernel.stage import worker


@pytest.mark.parametrize("child_id", ["", "a/b", "/"])
def test_an_id_that_would_break_a_path_is_refused(child_id: str) -> None:
    with pytest.raises(ValueError, match="non-empty name without '/'"):
        worker(child_id)
    with pytest.raises(ValueError, match="non-empty name without '/'"):
        SupervisorSpec(child_id, [])


@pytest.mark.parametrize(
    "limits", [{"capacity": 0}, {"max_tasks": 0}, {"start_s": 0.0}, {"shutdown_s": -1.0}]
)
def test_limits_must_be_limits(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="limits must be positive"):
        worker("a", **limits)


def test_two_children_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="distinct ids"):
        SupervisorSpec("root", [worker("a"), worker("a")])


def test_specs_hand_out_their_ref_before_anything_runs() -> None:
    spec: ChildSpec[object] = worker("a")
    assert spec.ref is spec.ref
    assert spec.ref.path == "a"


@given(st.integers(1, 10_000), st.floats(0.0, 1.0), st.integers(0, 2**32))
def test_a_backoff_stays_within_its_spread(attempt: int, jitter: float, seed: int) -> None:
    backoff = Backoff(initial_s=0.05, factor=2.0, max_s=5.0, jitter=jitter)
    base = min(5.0, 0.05 * 2.0 ** min(attempt - 1, 64))
    delay_s = backoff.delay_s(attempt, random.Random(seed))
    assert base * (1 - jitter) <= delay_s <= base * (1 + jitter)
    assert delay_s == backoff.delay_s(attempt, random.Random(seed))


@given(st.lists(st.floats(0.0, 5.0), max_size=50), st.integers(0, 5), st.floats(0.1, 20.0))
def test_a_window_admits_as_many_restarts_as_a_naive_count_says(
    gaps_s: list[float], limit: int, window_s: float
) -> None:
    window = RestartWindow(RestartLimit(limit, window_s))
    now_s, seen = 0.0, []
    for gap_s in gaps_s:
        now_s += gap_s
        seen.append(now_s)
        recent = [at_s for at_s in seen if at_s > now_s - window_s]
        assert window.admit(now_s) is (len(recent) <= limit)
        assert window.count == len(recent)


@given(st.integers(1, 20).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))))
def test_groups(case: tuple[int, int]) -> None:
    count, failed = case
    assert list(affected("one_for_one", failed, count)) == [failed]
    assert list(affected("rest_for_one", failed, count)) == list(range(failed, count))
    assert list(affected("one_for_all", failed, count)) == list(range(count))


@pytest.mark.parametrize(
    ("policy", "after_crash", "after_end"),
    [("permanent", True, True), ("transient", True, False), ("temporary", False, False)],
)
def test_restart_types(policy: str, after_crash: bool, after_end: bool) -> None:
    assert restarts(policy, crashed=True) is after_crash
    assert restarts(policy, crashed=False) is after_end
