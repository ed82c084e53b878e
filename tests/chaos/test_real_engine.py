"""The real engine crashes at each phase under eight streams: every reply is what it would have been."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from samovar.actors.requests import Admitted, GenerationRequest
from samovar.runtime.engine.batching.backend import BackendOptions
from samovar.runtime.engine.port import Finished, Sampling
from samovar.runtime.engine.prompt import Conversation

from tests.actors.tree import drain
from tests.cases.rig import logged, serving
from tests.kit.faulty import Fault, FaultyEngine
from tests.kit.models import FAMILIES
from tests.kit.tiny import TinyEngine

from .engine import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samovar.runtime.engine.port import Phase

    from tests.cases.rig import Server

STREAMS = 8
TOKENS = 8
LIMIT_S = 15.0


def requests(chance: Random) -> list[GenerationRequest]:
    """Half of them greedy, half drawn from a seed; some begin alike."""
    made: list[GenerationRequest] = []
    for n in range(STREAMS):
        content = "tell me more of it. " * chance.choice([0, 1, 3]) + "abcdefgh"[n] * chance.randint(1, 30)
        sampling = Sampling(temperature=0.9, seed=n) if n % 2 else Sampling()
        messages = ({"role": "user", "content": content},)
        made.append(GenerationRequest(f"r{n}", Conversation(messages), sampling, max_tokens=TOKENS + n))
    return made


async def tokens_of(server: Server, request: GenerationRequest) -> list[int]:
    admission = await server.tree.scheduler.submit(request, LIMIT_S)
    assert isinstance(admission, Admitted), admission
    last = (await drain(admission.stream))[-1]
    assert isinstance(last, Finished), last
    assert last.completion_tokens == admission.stream.emitted_tokens
    return admission.stream.emitted


async def replies(
    engine: FaultyEngine, asked: Sequence[GenerationRequest], *settings: str, crash: str | None = None
) -> tuple[list[list[int]], int]:
    """Return the tokens of all replies and how often a request was resumed."""
    async with asyncio.timeout(LIMIT_S), serving(engine, None, *settings) as server:  # type: ignore[arg-type]
        tasks = [asyncio.ensure_future(tokens_of(server, request)) for request in asked]
        if crash is not None:
            while not engine.struck:  # noqa: ASYNC110 - it comes on a lane's thread
                await asyncio.sleep(0.001)
            server.system.crash(crash)
        found = await asyncio.gather(*tasks)
        return list(found), (await server.tree.scheduler.figures(1.0)).resumed


RUNS = [
    (family, PHASES[(2 * n + twin) % 5], 2 * n + twin) for n, family in enumerate(FAMILIES) for twin in (0, 1)
]


@pytest.mark.parametrize(("family", "phase", "seed"), RUNS)
def test_crashes_change_no_token(family: str, phase: Phase, seed: int) -> None:
    """One fault of the engine, and half of the time the scheduler or residency crashes upon it."""
    chance = Random(seed)
    asked = requests(chance)
    engine = TinyEngine(family, BackendOptions(batch=STREAMS, prefill_chunk=32))
    settings = ["lanes.batch=8", f"lanes.count={1 + seed % 2}"]
    faulty = FaultyEngine(engine, [Fault(phase, chance.randint(1, 6))])
    crash = chance.choice([None, None, "serving/scheduler", "serving/residency"])
    with logged():
        undisturbed, resumed = asyncio.run(replies(FaultyEngine(engine), asked, *settings))
        assert resumed == 0
        disturbed, resumed = asyncio.run(replies(faulty, asked, *settings, crash=crash))
    assert faulty.faults == []
    assert resumed or phase in {"extract", "publish"}
    assert disturbed == undisturbed


def test_twenty_requests_over_two_lanes_of_a_windowed_model_are_equal_to_cold_ones() -> None:
    """B025: half of them are exact repeats; the lanes share weights and checkpoints, never a live cache."""
    chance = Random(25)
    distinct = [*requests(chance), *requests(chance)][:10]
    asked = [replace(request, id=f"q{n}") for n, request in enumerate(distinct * 2)]
    engine = FaultyEngine(TinyEngine("gemma3_text", BackendOptions(batch=4, prefill_chunk=32)))

    async def alternating(*settings: str) -> list[list[int]]:
        async with serving(engine, None, *settings) as server:  # type: ignore[arg-type]
            found: list[list[int]] = []
            for first in range(0, len(asked), 4):
                work = [tokens_of(server, request) for request in asked[first : first + 4]]
                found += await asyncio.gather(*work)
            return found

    cold = asyncio.run(alternating("lanes.count=1", "lanes.batch=1", "cache.ram.max=0"))
    assert cold[:10] == cold[10:]
    assert asyncio.run(alternating("lanes.count=2", "lanes.batch=4")) == cold
    assert asyncio.run(alternating("lanes.count=3", "lanes.batch=2")) == cold
