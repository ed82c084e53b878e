"""Memory under many mixed requests: the whole server over the real engine comes to rest as it was.

The long version is ``python -m benchmarks.long_run``; this is the same run, shorter, and the proof that it
sees what a server would lose.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from samovar.runtime.engine.batching.backend import MlxBackend

from benchmarks.long_run import MIB, Record, long_run
from benchmarks.long_run_flat import flatness
from tests.kit.tiny import TinyEngine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(90)

BOUNDS = {
    "rss_bytes": 24.0 * MIB,  # of the whole test process
    "mlx_active_bytes": 1.0 * MIB,
    "mlx_cache_bytes": 4.0 * MIB,
    "objects": 1500.0,
    "leases": 0.0,
    "threads": 0.0,
    "open_files": 4.0,
}
"""Growth from the first third to the end. A state kept for every request would be 8 MiB and 2,000 objects."""


def run(engine: TinyEngine, folder: Path, requests: int) -> Record:
    engine = engine.with_options(publish_min_tokens=16)
    return asyncio.run(long_run(engine, folder, requests, seed=3, samples=12))


def growing(record: Record) -> set[str]:
    return {name for name, each in record.verdict(BOUNDS).items() if not each.flat}


class Hoarder(MlxBackend):
    """An engine that forgets to let go: of a state's worth of memory and the request, for every row."""

    def insert(self, request: Any) -> None:
        kept = mx.zeros((320, 128))
        mx.eval(kept)
        self.hoard = [*getattr(self, "hoard", []), (kept, request, [[n] for n in range(24)])]
        super().insert(request)


class LeakyEngine(TinyEngine):
    def backend(self) -> Hoarder:
        return Hoarder(self._loaded(), self.options)


def test_a_server_that_keeps_a_state_of_every_request_is_found_out(tmp_path: Path) -> None:
    assert {"mlx_active_bytes", "objects"} <= growing(run(LeakyEngine("llama"), tmp_path, 72))


def test_memory_stays_flat_over_requests_of_mixed_sizes(tmp_path: Path) -> None:
    record = run(TinyEngine("llama"), tmp_path, 144)
    assert growing(record) == set(), record.series
    assert record.outcomes.failed == 0
    assert record.outcomes.given_up > 5
    assert record.outcomes.finished + record.outcomes.given_up == 144
    assert record.series["hits"][-1] > 30  # prefixes were lent, and came back
    assert set(record.series["leases"]) == {0.0}


def test_growth_after_the_warm_up_counts_and_growth_before_it_does_not() -> None:
    requests = list(range(10, 130, 10))
    filling = [min(at, 40) * 1000.0 for at in requests]
    assert flatness(requests, filling, 10.0).flat
    leaking = [at * 1000.0 for at in requests]
    judged = flatness(requests, leaking, 10.0)
    assert not judged.flat
    assert judged.slope == pytest.approx(1000.0)
    assert judged.grown == pytest.approx(80_000.0)


def test_one_peak_is_no_growth_and_a_step_in_the_middle_is() -> None:
    requests = list(range(10, 130, 10))
    assert flatness(requests, [5.0] * 8 + [900.0] + [5.0] * 3, 10.0).flat
    assert not flatness(requests, [5.0] * 8 + [900.0] * 4, 10.0).flat
