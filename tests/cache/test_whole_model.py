"""The whole cache against a naive model: random lives in virtual time on a disk that fails and loses power.

``python -m tests.cache.run --seeds 1000`` runs more of them, and says which seed fails.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from samovar.actors.durability import DirtyCheckpoint

from .life import Life
from .run import run
from .turns import TurnLoop, Turns
from .whole import Shape

GROUPS, SEEDS = 13, 10
"""130 lives of 40 operations, 5,200 in all: in groups, each well below the limit of a test."""


@pytest.mark.timeout(60)  # ten whole lives: two seconds of work
@pytest.mark.parametrize("group", range(GROUPS))
def test_random_lives_agree_with_the_naive_model(group: int) -> None:
    for seed in range(group * SEEDS, (group + 1) * SEEDS):
        run(seed)


def test_a_seed_replays() -> None:
    """The same operations, and every message handled in the same order, though real threads take part."""
    assert run(7, steps=80) == run(7, steps=80)


@pytest.mark.parametrize("rounds", range(0, 40, 3))
def test_a_flush_is_not_believed_that_came_before_the_announcements_to_a_restarted_durability(
    rounds: int,
) -> None:
    async def live(life: Life) -> None:
        await life.start()
        life.crash_on("storage/durability", DirtyCheckpoint)
        life.put(("", (1, 2, 3)))
        for _ in range(rounds):
            await asyncio.sleep(0)
        await life.flush(900.0)  # compares what it says with what is there
        await life.calm()
        await life.stop()

    turns = Turns(Random(rounds))
    with turns.installed(), asyncio.Runner(loop_factory=lambda: TurnLoop(turns)) as runner:
        runner.run(live(Life(turns, rounds, Shape())))
