"""A hundred seeded runs. More: ``python -m tests.chaos.run``."""

from __future__ import annotations

import pytest

from .run import run

RUNS = 100
BATCHES = 5


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_stream_ends_once_and_rightly(batch: int) -> None:
    resumed = 0
    for seed in range(batch, RUNS, BATCHES):
        resumed += run(seed).tree.ledger.counts.resumed
    assert resumed  # else nothing happened here


def test_a_seed_is_a_run() -> None:
    first, second = run(7), run(7)
    assert first.log == second.log
    assert [client.events for client in first.clients] == [client.events for client in second.clients]
