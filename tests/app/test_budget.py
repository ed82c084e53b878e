"""How much memory the states of running requests may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.app import kv_budget_bytes
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.engine.port import KvCost

from tests.cases.rig import run, serving, user
from tests.kit.engine import FakeEngine

if TYPE_CHECKING:
    from samovar.runtime.engine.checkpoint import MemoryGauge


@pytest.mark.parametrize(
    ("active", "limit", "budget"), [(100, 1000, 700), (0, 0, 0), (900, 1000, 0), (5, 0, 0)]
)
def test_the_budget_is_what_the_weights_leave(active: int, limit: int, budget: int) -> None:
    assert kv_budget_bytes(lambda: MemoryReading(active, limit), 0.8) == budget


@dataclass
class Small(FakeEngine):
    """A device of 10,000 bytes, of which ever more are taken."""

    active_bytes: int = 1000

    def memory(self) -> MemoryGauge:
        return lambda: MemoryReading(self.active_bytes, 10_000)


def test_the_budget_is_measured_once_and_what_cannot_fit_is_refused() -> None:
    async def scenario() -> None:
        engine = Small(kv=KvCost(token_bytes=10.0))
        async with serving(engine, None, "cache.ram.pressure=80%") as server:
            engine.active_bytes = 7000  # rows that run, prefixes that are kept
            server.system.crash("serving/scheduler")
            await server.until(lambda stats: stats["actors"]["restarts"] == 1 and stats["scheduler"])
            assert (await server.part("scheduler"))["kv_budget_bytes"] == 7000
            body = {"messages": [user("x" * 300)], "max_tokens": 300}
            status, answer = await server.call("POST", "/v1/chat/completions", body)
            assert (status, answer["error"]["code"]) == (400, "memory_exceeded")
            assert "7000" in answer["error"]["message"]
            assert answer["error"]["param"] == "max_tokens"
            assert (await server.talk("x" * 300, max_tokens=3)).completion_tokens == 3

    run(scenario())
