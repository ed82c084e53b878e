"""The storage benchmark works over the real actors: what they are asked for changes with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.storage_lag import measure_lag

if TYPE_CHECKING:
    from pathlib import Path


def test_lateness_is_measured_while_everything_goes_on(tmp_path: Path) -> None:
    idle, busy = measure_lag(tmp_path, size_bytes=1 << 20, files=3, seconds=0.4, rounds=1)
    assert idle.facts["restores"] == 0
    assert all(busy.facts[kind] for kind in ("restores", "writes", "scans"))
    assert busy.value >= 0.0
