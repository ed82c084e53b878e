"""The real engine crashes again and again: the process has as many native threads as after the first time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from tests.cases.rig import logged, run, serving, tiny
from tests.kit.faulty import Fault, FaultyEngine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cases.rig import Server

pytestmark = pytest.mark.timeout(60)

CRASHES = 4
"""Of one place, below what its supervisor gives up at."""
PROMPT = "tell me of threads that come and never go"


def native_threads() -> int:
    return psutil.Process().num_threads()


async def back_from(server: Server, path: str, restarts: int) -> None:
    def restarted(_: object) -> bool:
        actors = {actor.path: actor for actor in server.system.figures()}
        return server.system.running and actors[path].restarts == restarts

    await server.until(restarted)


@pytest.mark.parametrize("how", ["thread", "actor"])
def test_crashes_of_a_lane_leave_the_number_of_native_threads_flat(how: str) -> None:
    async def scenario() -> None:
        engine = FaultyEngine(tiny())
        async with serving(engine) as server:  # type: ignore[arg-type]
            await server.talk(PROMPT, max_tokens=4)
            counts = [native_threads()]
            for crashes in range(1, CRASHES + 1):
                if how == "thread":
                    engine.faults.append(Fault("decode"))
                    await server.talk(f"{crashes} {PROMPT}", max_tokens=4)
                else:
                    server.system.crash("serving/lanes/0")
                await back_from(server, "serving/lanes/0", crashes)
                await server.talk(f"{crashes} again: {PROMPT}", max_tokens=4)
                counts.append(native_threads())
            assert len(set(counts)) == 1, counts

    with logged():
        run(scenario())


def test_crashes_of_a_reader_leave_the_number_of_native_threads_flat(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = (f"cache.ssd.dir={tmp_path}", "cache.ssd.readers=1")
        async with serving(tiny(), None, *settings) as server:
            counts: list[int] = []
            for crashes in range(CRASHES + 1):
                if crashes:
                    server.system.crash("storage/readers/0")
                    await back_from(server, "storage/readers/0", crashes)
                await server.talk(PROMPT, max_tokens=4)
                await server.flush()
                await server.clear("ram")
                assert (await server.talk(PROMPT, max_tokens=4)).tier == "ssd"
                counts.append(native_threads())
            assert len(set(counts)) == 1, counts

    with logged():
        run(scenario())
