"""Scenarios of crowds: who leaves, who waits, who is turned away, and that health answers meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, closing
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from tests.actors.storage_tree import Gate
from tests.app.process import ServerProcess
from tests.http.fakes import RecordingLog
from tests.kit.disk import FaultDisk
from tests.kit.engine import FakeEngine

from .rig import run, serving, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from samovar.runtime.http.serving import RequestRecord

    from tests.app.process import Stream

    from .rig import Server

pytestmark = pytest.mark.timeout(60)

NOTICED_S = 1.0


# --- who leaves ---------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(server: Server, content: str, **fields: Any) -> AsyncIterator[asyncio.StreamWriter]:
    """A bare connection that has sent a request and reads nothing; aborted at the end if it still stands."""
    host, _, port = server.base.removeprefix("http://").rpartition(":")
    body = json.dumps({"messages": [user(content)], **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        yield writer
    finally:
        writer.transport.abort()


async def left(records: RecordingLog, count: int) -> RequestRecord:
    """Return the count-th record; it must come within a second."""
    async with asyncio.timeout(NOTICED_S):
        return await records.wait(count)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "queue"])
def test_b043_leaving_is_noticed_where_nothing_is_written(phase: str, *, stream: bool) -> None:
    """B043: the first keep-alive comment is ten seconds away; the transport alone tells."""

    async def scenario() -> None:
        engine = FakeEngine(context_length=4000, gated=True, prefill_tokens=100)
        records = RecordingLog()
        async with serving(engine, None, "lanes.batch=1", log=records) as server:
            async with connected(server, "a" * 2000, max_tokens=2, stream=stream) as first:
                await server.until(lambda stats: stats["scheduler"]["running"] == 1)
                engine.allow(2)
                await server.until(lambda _: engine.prefilled == 200)
                async with connected(server, "b" * 2000, max_tokens=2, stream=stream) as second:
                    await server.until(lambda stats: stats["scheduler"]["queued"] == 1)
                    (first if phase == "prefill" else second).transport.abort()
                    assert (await left(records, 1)).status == 499
                    if phase == "prefill":
                        # Its place is the other one's, before another step was done.
                        await server.until(lambda _: len(engine.inserted) == 2)
                        assert engine.prefilled == 200
            await server.until(lambda stats: stats["scheduler"]["running"] == 0)
            assert len(engine.inserted) == (2 if phase == "prefill" else 1)
            engine.gated = False
            assert (await server.talk("next", max_tokens=1)).completion_tokens == 1

    run(scenario())


def test_b043_leaving_is_noticed_while_a_slow_disk_restores() -> None:
    """B043: the state of the prompt is on its way from a disk that does not move."""
    settings = ("cache.ssd.dir=/cache", "cache.ssd.readers=1")

    async def scenario() -> None:
        disk, records = FaultDisk(), RecordingLog()
        async with serving(FakeEngine(), disk, *settings) as server:
            await server.talk("a" * 900, max_tokens=2)
            await server.flush()
        disk, engine = disk.kill(), FakeEngine()
        async with serving(engine, disk, *settings, log=records) as server:
            gate = Gate(disk, "read")
            try:
                async with connected(server, "a" * 900, max_tokens=2) as client:
                    await server.until(lambda _: gate.held > 0)
                    client.transport.abort()
                    assert (await left(records, 1)).status == 499
                await server.until(lambda stats: stats["scheduler"]["running"] == 0)
            finally:
                gate.open()
            assert engine.inserted == []
            assert (await server.talk("a" * 900, max_tokens=2)).cached > 0

    run(scenario())


def test_b044_who_leaves_the_queue_takes_nobody_along() -> None:
    """B044: one row, busy; five wait; numbers 2 and 4 leave at once; the others are answered in order."""

    async def scenario() -> None:
        engine, records = FakeEngine(gated=True), RecordingLog()
        async with serving(engine, None, "lanes.batch=1", "lanes.queue=5", log=records) as server:
            talks: list[asyncio.Future[Any]] = []
            for number in range(6):
                talks.append(asyncio.ensure_future(server.talk(chr(ord("a") + number), max_tokens=2)))
                await server.until(
                    lambda stats, n=number: (
                        stats["scheduler"]["queued"] == n and stats["scheduler"]["running"] == 1
                    )
                )
            leavers = [talks.pop(4), talks.pop(2)]
            for leaver in leavers:
                leaver.cancel()
            assert [(await left(records, count)).status for count in (1, 2)] == [499, 499]
            engine.gated = False
            answers = await asyncio.gather(*talks)
            letters = [97, 98, 100, 102]
            assert [answer.text for answer in answers] == [f"{letter}.0 {letter}.1 " for letter in letters]
            assert len(engine.inserted) == 4
            figures = await server.part("scheduler")
            assert (figures["finished"], figures["cancelled"], figures["failed"]) == (4, 2, 0)
            # One record each, of which two are the leavers'.
            assert sorted(record.status for record in records.records if record.generation_id) == [
                *[200] * 4,
                *[499] * 2,
            ]

    run(scenario())


# --- who waits, who is turned away --------------------------------------------------------------------


async def begin(server: Server, content: str) -> tuple[int, Any, Any]:
    """Ask for a reply of four pieces; return status, headers and body."""
    body = {"messages": [user(content)], "max_tokens": 4}
    async with server.session.post(server.base + "/v1/chat/completions", json=body) as response:
        return response.status, response.headers, await response.json()


def test_b149_the_queue_has_an_end_and_running_work_does_not_notice() -> None:
    """B149: two rows, four places to wait, twelve requests at once."""

    async def scenario() -> None:
        engine = FakeEngine(gated=True)
        async with serving(engine, None, "lanes.batch=2", "lanes.queue=4") as server:
            asked = [asyncio.ensure_future(begin(server, chr(ord("a") + n) * 3)) for n in range(12)]
            # Six are turned away while not one step was done for anybody.
            await server.until(lambda stats: stats["scheduler"]["refused"] == 6)
            figures = await server.part("scheduler")
            assert (figures["running"], figures["queued"]) == (2, 4)
            engine.gated = False
            answers = await asyncio.gather(*asked)
            refused = [(headers, body) for status, headers, body in answers if status == 429]
            assert len(refused) == 6
            for headers, body in refused:
                assert int(headers["Retry-After"]) >= 1
                assert set(body["error"]) == {"message", "type", "code", "param"}
                assert body["error"]["code"] == "queue_full"
            served = [(n, body) for n, (status, _, body) in enumerate(answers) if status == 200]
            assert len(served) == 6
            for number, body in served:
                letter = ord("a") + number
                assert body["choices"][0]["message"]["content"] == "".join(f"{letter}.{n} " for n in range(4))
            assert (await server.part("lanes"))[0]["peak_rows"] == 2

    run(scenario())


# --- huge prompts -------------------------------------------------------------------------------------

EVERY_S = 0.02
ASKED_S = 0.1
"""Health is asked for every 20 ms and is to be answered in 100 ms. A busy machine is given half of the time
that the prompt itself takes there: what holds the event loop, or the interpreter's lock, holds it for the
whole of that time."""
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards mix potions. "


def reading(folder: Path) -> ServerProcess:
    """Start a server with scripted replies that reads prompts with a real tokenizer."""
    command = ["-m", "tests.kit.serve", "--tokenizer", str(folder), "--step-ms", "5"]
    return ServerProcess(*command, "--set", "server.port=0")


def refused(server: ServerProcess, bodies: Sequence[bytes]) -> list[tuple[float, float]]:
    """Send bodies that are longer than the context; return when each was being answered."""
    spans: list[tuple[float, float]] = []
    for body in bodies:
        connection, began_s = server.connect(30.0), time.perf_counter()
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", body, headers)
            response = connection.getresponse()
            error = json.loads(response.read())["error"]
        finally:
            connection.close()
        assert (response.status, error["code"]) == (400, "context_length_exceeded"), error
        spans.append((began_s, time.perf_counter()))
    return spans


def pieces(stream: Stream, ended: Event) -> list[float]:
    """Read a stream until ``ended``; return when its pieces came."""
    times_s: list[float] = []
    while not ended.is_set():
        assert stream.next() != "[DONE]"
        times_s.append(time.perf_counter())
    return times_s


def health(server: ServerProcess, ended: Event) -> list[float]:
    """Ask for health until ``ended``; return when it was answered."""
    times_s: list[float] = []
    with closing(server.connect(30.0)) as connection:
        while not ended.wait(EVERY_S):
            connection.request("GET", "/health")
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (200, True)
            times_s.append(time.perf_counter())
    return times_s


def longest_wait(times_s: Sequence[float], began_s: float, ended_s: float) -> float:
    """Return the longest time without an event between two moments."""
    inside = [time_s for time_s in times_s if began_s < time_s < ended_s]
    return max(after - before for before, after in itertools.pairwise([began_s, *inside, ended_s]))


@pytest.mark.model
def test_b139_huge_prompts_stop_neither_health_nor_streams(default_model_dir: Path) -> None:
    """B139: four clients send 5 MB contents and prompts of 140,000 tokens, all beyond the context."""
    huge, large = (
        json.dumps({"messages": [user((WORDS * (size // len(WORDS) + 1))[:size])]}).encode()
        for size in (5_000_000, 600_000)
    )
    ended = Event()
    with reading(default_model_dir).wait_ready() as server, ThreadPoolExecutor(6) as pool:
        with closing(server.stream("Count.", max_tokens=8000)) as stream:
            assert stream.status == 200
            stream.next()
            answers, words = pool.submit(health, server, ended), pool.submit(pieces, stream, ended)
            try:
                loads = [(large, large), (huge, huge), (huge, huge), (huge, huge)]
                (first, second), *_ = pool.map(partial(refused, server), loads)
            finally:
                ended.set()
                wait([answers, words])
        for began_s, ended_s in (first, second):
            bearable_s = max(EVERY_S + ASKED_S, (ended_s - began_s) / 2)
            assert longest_wait(answers.result(), began_s, ended_s) < bearable_s
            assert longest_wait(words.result(), began_s, ended_s) < bearable_s
