"""Scenarios of engines that fail: nobody hangs, streams go on, and who is to blame fails alone."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.batching import publishing

from tests.app.process import ServerProcess
from tests.app.process import tiny as tiny_process
from tests.kit.engine import FakeBackend, FakeEngine

from .rig import Server, run, serving, tiny

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samovar.runtime.engine.port import ModelInfo, Phase, RowRequest

pytestmark = pytest.mark.timeout(60)

PATIENCE_S = 10.0


@dataclass
class Breakable(FakeEngine):
    """Breaks at the ``breaks_at``-th decode step. Its lanes open only while ``may_open`` is set."""

    breaks_at: int = 0
    decodes: int = 0
    may_open: threading.Event = field(default_factory=threading.Event)

    def backend(self) -> FakeBackend:
        return _Opening(self)

    def fault(self, phase: Phase, rows: Sequence[RowRequest]) -> Exception | None:
        if phase != "decode":
            return None
        self.decodes += 1
        return RuntimeError("[METAL] command buffer failed") if self.decodes == self.breaks_at else None


class _Opening(FakeBackend):
    """A backend that takes its time to load."""

    def open(self) -> ModelInfo:
        engine = self._engine
        assert isinstance(engine, Breakable)
        assert engine.may_open.wait(PATIENCE_S)
        return super().open()


def breakable(**options: Any) -> Breakable:
    engine = Breakable(**options)
    engine.may_open.set()
    return engine


def reply(letter: str, pieces: int) -> str:
    return "".join(f"{ord(letter)}.{n} " for n in range(pieces))


async def lane_down(server: Server) -> None:
    """Wait until the lane is known to be down."""
    async with asyncio.timeout(PATIENCE_S):
        while (await server.call("GET", "/ready"))[0] == 200:
            pass


def test_b010_a_model_step_that_raises_leaves_no_zombie() -> None:
    """B010: the fifth step fails under four streams. Not ready while it is down; then all go on."""

    async def scenario() -> None:
        engine = breakable(gated=True, breaks_at=5)
        async with serving(engine, None, "lanes.batch=4") as server:
            talks = [asyncio.ensure_future(server.stream(letter * 3, max_tokens=12)) for letter in "abcd"]
            await server.until(lambda _: len(engine.inserted) == 4)
            engine.may_open.clear()
            engine.gated = False
            await lane_down(server)
            assert (await server.call("GET", "/health"))[0] == 200
            assert (await server.call("GET", "/v1/models"))[0] == 200
            newcomer = asyncio.ensure_future(server.talk("e", max_tokens=2))
            engine.may_open.set()
            async with asyncio.timeout(PATIENCE_S):
                answers = await asyncio.gather(*talks)
                assert (await newcomer).text == reply("e", 2)
            assert [answer.text for answer in answers] == [reply(letter, 12) for letter in "abcd"]
            assert (await server.call("GET", "/ready"))[0] == 200
            (lane,) = await server.part("lanes")
            assert lane["restarts"] == 1

    run(scenario())


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[malloc] unable to allocate")])
def test_b011_a_state_that_cannot_be_copied_out_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """B011: no memory for the finished row's state: its answer is whole, the next one too."""
    prompt = "Name seven wizards who drink tea."

    def failing(*_: object) -> object:
        raise error

    async def scenario() -> None:
        async with serving(None, None, "cache.ram.max=0") as server:
            expected = (await server.talk(prompt, max_tokens=8)).text
        async with serving(tiny("llama")) as server:
            with monkeypatch.context() as patched:
                patched.setattr(publishing, "snapshot", failing)
                first = await server.talk(prompt, max_tokens=8)
            second = await server.talk(prompt, max_tokens=8)
            third = await server.talk(prompt, max_tokens=8)
            assert [first.text, second.text, third.text] == [expected] * 3
            assert [first.cached, second.cached, third.cached] == [0, 0, third.whole]
            (lane,) = await server.part("lanes")
            assert (lane["restarts"], lane["failed_publications"] > 0) == (0, True)

    run(scenario())


async def served(server: Server, number: int) -> str:
    """Ask until it is answered, coming back whenever told to; return the reply."""
    body = {"messages": [{"role": "user", "content": chr(ord("a") + number)}], "max_tokens": 3}
    while True:
        async with server.session.post(server.base + "/v1/chat/completions", json=body) as response:
            answer = await response.json()
            if response.status == 200:
                return answer["choices"][0]["message"]["content"]
            assert response.status == 503, answer
            await asyncio.sleep(int(response.headers["Retry-After"]))


def test_b073_requests_during_a_lanes_restart_are_all_served() -> None:
    """B073: twenty arrive before, while and after the lane loads again."""

    async def scenario() -> None:
        engine = breakable()
        async with serving(engine, None, "lanes.batch=2") as server:
            assert (await server.call("GET", "/ready"))[0] == 200
            engine.may_open.clear()
            await server.call("POST", "/admin/actors/serving/lanes/0/crash")
            early = [asyncio.ensure_future(served(server, number)) for number in range(7)]
            await lane_down(server)
            amid = [asyncio.ensure_future(served(server, number)) for number in range(7, 14)]
            await server.until(
                lambda stats: stats["scheduler"]["queued"] + stats["scheduler"]["running"] == 14
            )
            engine.may_open.set()
            late = [asyncio.ensure_future(served(server, number)) for number in range(14, 20)]
            async with asyncio.timeout(PATIENCE_S):
                answers = await asyncio.gather(*early, *amid, *late)
            assert answers == [reply(chr(ord("a") + number), 3) for number in range(20)]
            assert (await server.part("scheduler"))["finished"] == 20

    run(scenario())


def knock(server: ServerProcess, number: int) -> tuple[str, int]:
    """Ask every 10 ms until there is an answer; return it and how often nobody listened."""
    refused, pause = 0, threading.Event()
    while True:
        try:
            status, body = server.chat(f"guest {number}", max_tokens=3, temperature=0)
        except ConnectionRefusedError:
            assert server.process.poll() is None, server.lines
            refused += 1
        else:
            if status == 200:
                return body["choices"][0]["message"]["content"], refused
            assert status == 503, body
        pause.wait(0.01)


def test_b073_who_knocks_before_the_model_is_loaded_is_served_once_it_is() -> None:
    """B073: one knocks from the moment of exec on, every 10 ms; 19 more come when it is let in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tiny_process("llama", f"server.port={port}") as server, ThreadPoolExecutor(19) as pool:
        server.port = port
        first, refused = knock(server, 0)
        assert refused > 10
        others = list(pool.map(partial(knock, server), range(1, 20)))
        again = [knock(server, number) for number in range(20)]
        assert [(first, 0), *others] == again


POISON = "!"


@dataclass
class Poisonous(FakeEngine):
    """Crashes whenever a row whose prompt begins with POISON decodes."""

    crashes: int = 0

    def fault(self, phase: Phase, rows: Sequence[RowRequest]) -> Exception | None:
        if phase != "decode" or not any(row.tokens[0] == ord(POISON) for row in rows):
            return None
        self.crashes += 1
        return RuntimeError("device lost")


def test_b077_a_prompt_that_kills_the_engine_fails_alone_however_often_it_comes() -> None:
    """B077: poison among five healthy streams, and five times more by a client that does not give up."""

    async def scenario() -> None:
        engine = Poisonous(gated=True)
        async with serving(engine, None, "lanes.batch=6") as server:
            healthy = [asyncio.ensure_future(server.stream(letter * 2, max_tokens=10)) for letter in "abcde"]
            body = {"messages": [{"role": "user", "content": POISON + "x"}], "max_tokens": 10}
            poison = asyncio.ensure_future(server.call("POST", "/v1/chat/completions", body))
            await server.until(lambda _: len(engine.inserted) == 6)
            engine.gated = False
            answers = await asyncio.gather(*healthy)
            assert [answer.text for answer in answers] == [reply(letter, 10) for letter in "abcde"]
            again = [await server.call("POST", "/v1/chat/completions", body) for _ in range(5)]
            for status, answer in (await poison, *again):
                assert (status, answer["error"]["code"]) == (500, "lane_crashed"), answer
                assert "device lost" in answer["error"]["message"]
            assert engine.crashes == 2
            assert (await server.talk("f", max_tokens=2)).text == reply("f", 2)
            assert [lane["restarts"] for lane in await server.part("lanes")] == [2]

    run(scenario())
