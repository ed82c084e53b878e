from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samovar.runtime.config import units


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.5B", "8 gigs", "0x10", "1e3", "8GiB 1", "8G", "1.GiB"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        units.parse_size(text)


@pytest.mark.parametrize("text", ["", "ms", "-1s", "5 days", "1h30m", "inf", "nan", "1e3s"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        units.parse_duration(text)


@pytest.mark.parametrize("text", ["5", "0.05", "-5%", "%", "5 percent"])
def test_what_is_not_a_percentage_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        units.parse_percent(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1024", 1024),
        ("8GiB", 8 << 30),
        ("500MB", 500_000_000),
        ("1.5 kib", 1536),
        ("2tb", 2 * 10**12),
    ],
)
def test_sizes_as_people_write_them(text: str, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("250ms", 0.25),
        ("120s", 120.0),
        ("5m", 300.0),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("0", 0.0),
        ("1.5", 1.5),
    ],
)
def test_durations_as_people_write_them(text: str, duration_s: float) -> None:
    assert units.parse_duration(text) == duration_s


@settings(deadline=None)
@given(st.integers(0, 2**60))
def test_a_size_survives_writing(size_bytes: int) -> None:
    text = units.format_size(size_bytes)
    assert units.parse_size(text) == size_bytes
    assert re.search(units.SIZE_PATTERN, text)


@settings(deadline=None)
@given(st.floats(0, 1e7, allow_nan=False) | st.integers(0, 10**6).map(float))
def test_a_duration_survives_writing(duration_s: float) -> None:
    text = units.format_duration(duration_s)
    assert units.parse_duration(text) == duration_s
    assert re.search(units.DURATION_PATTERN, text)


@settings(deadline=None)
@given(st.floats(0, 1, allow_nan=False))
def test_a_percentage_survives_writing(fraction: float) -> None:
    text = units.format_percent(fraction)
    assert units.parse_percent(text) == fraction
    assert re.search(units.PERCENT_PATTERN, text)
