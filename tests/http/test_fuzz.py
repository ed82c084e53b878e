"""A few hundred mutated bodies; ``python -m tests.http.fuzz`` sends as many as one likes."""

from __future__ import annotations

from .fakes import FakeCache, FakeServing, live, run
from .fuzz import fuzz

COUNT = 400


def test_mutated_bodies_never_make_the_server_fail() -> None:
    async def scenario() -> None:
        async with live(FakeServing(), FakeCache()) as server:
            outcome = await fuzz(server, COUNT, seed=5)
        assert outcome.failures == []
        assert outcome.statuses.total() == COUNT
        assert {200, 400} <= outcome.statuses.keys()

    run(scenario())
