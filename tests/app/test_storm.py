"""Lanes that crash and crash end the process, in bounded time, whatever lies between them and the root."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from samovar.runtime.app import ROOT_LIMIT, build_tree
from samovar.runtime.config import load
from samovar.runtime.engine.errors import ModelUnreadable
from samovar.runtime.kernel import SupervisorSpec
from samovar.storage.fs import OsFilesystem

from tests.cache.turns import TurnLoop, Turns
from tests.http.fakes import RecordingLog
from tests.kit import KitSystem
from tests.kit.engine import FakeEngine

LANE = "serving/lanes/0"


async def storm(engine: FakeEngine, every_s: float | None) -> float:
    """Crash the lane once, or ``every_s`` seconds; return when (s) the root has given up."""
    config = load([], {}, ["cache.ssd.dir=off"], []).config
    tree = build_tree(config, engine, RecordingLog(), OsFilesystem())
    children = [child for child in tree.root.children if child.id != "http"]  # no sockets in virtual time
    root = SupervisorSpec("root", children, tree.root.strategy, tree.root.limit)
    kit = KitSystem(root)
    await kit.system.start()
    if every_s is None:
        engine.open_error = ModelUnreadable("the weights are gone")
    async with asyncio.timeout(ROOT_LIMIT.window_s):
        while "root" not in kit.record.given_up:
            if any(each.path == LANE and each.state == "running" for each in kit.system.figures()):
                kit.system.crash(LANE)
            await asyncio.sleep(every_s or 1.0)
    await kit.system.stop()
    tree.close()
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("every_s", [None, 0.05, 1.0, 4.0])
def test_a_storm_of_lane_crashes_ends_the_process(every_s: float | None) -> None:
    turns = Turns(Random(0))
    with turns.installed(), asyncio.Runner(loop_factory=lambda: TurnLoop(turns)) as runner:
        ended_s = runner.run(storm(FakeEngine(), every_s))
    assert ended_s < (ROOT_LIMIT.window_s if every_s else 60.0)
