"""Two hundred seeds of small servers in CI. Thousands, and hundreds of clients: ``make sim``."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from .plan import draw
from .run import SimFailed, live, run, smaller

RUNS = 200
BATCHES = 20


@pytest.mark.timeout(60)  # two seconds of work, on a machine that may be busy
@pytest.mark.parametrize("batch", range(BATCHES))
def test_whole_servers_keep_their_promises(batch: int) -> None:
    coverage = Counter[str]()
    for seed in range(batch, RUNS, BATCHES):
        coverage += run(seed, "small").coverage
    assert coverage["call finished"] > 10
    assert coverage["hit ram"] > 0
    assert coverage["flush durable"] > 0


@pytest.mark.timeout(60)  # a second interpreter, on a machine that may be busy
def test_a_seed_is_a_run() -> None:
    """Every message of every actor comes at the same moment of the same day, whatever order hashes have."""
    here = [live(draw(seed, "small")).digest for seed in (3, 8)]
    assert here[0] != here[1]
    code = "from tests.sim.run import *; print(*[live(draw(seed, 'small')).digest for seed in (3, 8)])"
    there = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert there.stdout.split() == here


def test_a_client_that_gets_another_reply_fails_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle and the engine are told apart: else the runs above would say nothing."""
    monkeypatch.setattr("tests.sim.client.reply_to", lambda prompt, most: "?" * most)
    with pytest.raises(SimFailed, match=r"python -m tests.sim.run --from 3 --seeds 1 --clients small"):
        run(3, "small")


def test_a_failing_plan_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.client.reply_to", lambda prompt, most: "?" * most)
    plan = draw(3, "small")
    least = smaller(plan, 5.0)
    assert len(least.clients) == 1
    assert least.troubles == ()
