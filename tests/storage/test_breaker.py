from __future__ import annotations

import pytest
from samovar.storage.breaker import Breaker


def breaker(threshold: int = 3) -> Breaker:
    return Breaker(threshold, lambda n: 10.0 * n)


def opened() -> Breaker:
    it = breaker()
    assert [it.failed(1.0) for _ in range(3)] == [False, False, True]
    return it


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="not 0"):
        breaker(0)


def test_only_failures_in_a_row_open_it() -> None:
    it = breaker()
    for _ in range(5):
        assert not it.failed(0.0)
        assert not it.failed(0.0)
        assert not it.succeeded()
    assert not it.degraded
    assert it.probe_at_s is None


def test_it_lets_nothing_through_until_the_pause_is_over() -> None:
    it = opened()
    assert (it.degraded, it.state(1.0), it.allows(10.9), it.probe_at_s) == (True, "open", False, 11.0)
    assert (it.state(11.0), it.allows(11.0)) == ("half_open", True)


def test_one_probe_at_a_time() -> None:
    it = opened()
    it.began()
    assert not it.allows(100.0)
    assert it.probe_at_s is None
    assert it.state(1.0) == "half_open"
    it.ended()  # the probe said nothing about the disk
    assert it.allows(100.0)


def test_a_failed_probe_waits_longer() -> None:
    it = opened()
    it.began()
    assert not it.failed(11.0)
    assert (it.probe_at_s, it.allows(30.9), it.allows(31.0)) == (31.0, False, True)


def test_a_late_failure_of_what_began_before_changes_nothing() -> None:
    it = opened()
    assert not it.failed(5.0)
    assert it.probe_at_s == 11.0


def test_any_success_closes_it_and_the_next_pause_is_short_again() -> None:
    it = opened()
    it.began()
    it.failed(11.0)
    assert it.succeeded()
    assert (it.degraded, it.allows(0.0), it.state(0.0)) == (False, True, "closed")
    for _ in range(3):
        it.failed(50.0)
    assert it.probe_at_s == 60.0
