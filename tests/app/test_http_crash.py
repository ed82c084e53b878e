"""A crash of the HTTP server ends its calls; nothing that they had asked for goes on unseen."""

from __future__ import annotations

import asyncio

import pytest
from samovar.runtime.http.actor import GetAddress

from tests.cases.rig import run, serving, user
from tests.kit.engine import FakeEngine

pytestmark = pytest.mark.timeout(60)  # its calls have seconds to end by themselves, of a busy machine's

ASK = {"messages": [user("ab")], "max_tokens": 1000, "stream": True}


def test_an_http_crash_cancels_what_runs_and_what_waits() -> None:
    async def scenario() -> None:
        engine = FakeEngine(gated=True)
        async with serving(engine, None, "lanes.batch=1") as server:
            calls = [
                asyncio.ensure_future(server.call("POST", "/v1/chat/completions", ASK)) for _ in range(2)
            ]
            await server.until(lambda stats: stats["scheduler"]["queued"] == 1)
            server.system.crash("http")
            for call in calls:
                status, body = await call
                assert (status, body["error"]["code"]) == (503, "shutting_down")
            await server.until(lambda stats: stats["scheduler"]["running"] == 0)
            figures = (await server.tree.serving.stats())["scheduler"]
            assert (figures["queued"], figures["cancelled"], figures["failed"]) == (0, 2, 0)
            engine.gated = False
            server.base = await server.tree.http.ref.ask(GetAddress(), 5.0)
            assert (await server.talk("ab", max_tokens=2)).completion_tokens == 2

    run(scenario())
