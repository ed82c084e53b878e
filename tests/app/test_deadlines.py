"""``server.request_timeout`` covers waiting and running alike, and what it ends leaves nothing behind."""

from __future__ import annotations

import asyncio

from tests.cases.rig import run, serving, user
from tests.kit.engine import FakeEngine

ASK = {"messages": [user("ab")], "max_tokens": 3}


def test_the_time_limit_ends_those_who_run_and_those_who_wait() -> None:
    async def scenario() -> None:
        engine = FakeEngine(gated=True)
        async with serving(engine, None, "lanes.batch=1", "server.request_timeout=300ms") as server:
            calls = [server.call("POST", "/v1/chat/completions", ASK) for _ in range(2)]
            for status, body in await asyncio.gather(*calls):
                assert (status, body["error"]["code"]) == (504, "request_timeout")
            await server.until(lambda stats: stats["scheduler"]["running"] == 0)
            figures = await server.part("scheduler")
            assert (figures["queued"], figures["cancelled"], figures["failed"]) == (0, 2, 0)
            engine.gated = False
            assert (await server.call("POST", "/v1/chat/completions", ASK))[0] == 200

    run(scenario())
