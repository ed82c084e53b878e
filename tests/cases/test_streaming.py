"""Scenarios of streams: how they begin, go on and end, whoever fails, waits, leaves or reads slowly."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.fakes import RecordingLog
from tests.kit.engine import FakeEngine

from .rig import run, serving, tiny, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from samovar.runtime.engine.port import Phase, RowRequest

    from .rig import Server

pytestmark = pytest.mark.timeout(60)

LAST_CHUNK = b"\r\n0\r\n\r\n"
LONG = "Tell me a long story. " * 25


def http(content: str, headers: str = "", **fields: Any) -> bytes:
    """A whole request for a chat completion."""
    body = json.dumps({"messages": [user(content)], **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection; closed at the end. Its reader keeps little, so that it can be slow."""
    host, _, port = server.base.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def whole(reader: asyncio.StreamReader) -> bytes:
    """Read one chunked response to its end."""
    text = bytearray()
    while not text.endswith(LAST_CHUNK):
        data = await reader.read(1 << 16)
        assert data, bytes(text[-500:])
        text += data
    return bytes(text)


def data_of(text: bytes) -> list[Any]:
    lines = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: ")]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


# --- several choices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next", "mamba2"])
@pytest.mark.parametrize("batch", [1, 8])
def test_b106_choices_share_one_prefill(family: str, batch: int) -> None:
    """Four choices of one prompt: it is prefilled once, whether they run together or one by one."""

    async def scenario() -> None:
        async with serving(tiny(family), None, f"lanes.batch={batch}") as server:
            body = {"messages": [user(LONG)], "n": 4, "max_tokens": 6, "temperature": 1, "seed": 3}
            status, answer = await server.call("POST", "/v1/chat/completions", body)
            assert status == 200, answer
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
            assert len({choice["message"]["content"] for choice in answer["choices"]}) > 1
            usage = answer["usage"]
            assert 4 <= usage["completion_tokens"] <= 24
            # All but its last token, which every row feeds by itself.
            assert await server.prefilled() == usage["prompt_tokens"] - 1
            _, again = await server.call("POST", "/v1/chat/completions", body)
            told = [[c["message"]["content"] for c in each["choices"]] for each in (answer, again)]
            assert told[0] == told[1]

    run(scenario())


def test_without_a_cache_choices_prefill_each_and_say_the_same() -> None:
    async def scenario(*settings: str) -> tuple[list[str], int, int]:
        async with serving(None, None, *settings) as server:
            body = {"messages": [user(LONG)], "n": 3, "max_tokens": 6, "temperature": 1, "seed": 3}
            _, answer = await server.call("POST", "/v1/chat/completions", body)
            texts = [choice["message"]["content"] for choice in answer["choices"]]
            return texts, await server.prefilled(), answer["usage"]["prompt_tokens"]

    texts, prefilled, prompt = run(scenario("cache.ram.max=0"))
    assert prefilled == 3 * (prompt - 1)
    assert run(scenario()) == (texts, prompt - 1, prompt)


def test_b031_seeds_decide_and_without_one_replies_differ() -> None:
    """B031: three seeds, one of them alone and in company, and three times none."""

    async def scenario() -> None:
        async with serving() as server:

            async def told(**fields: Any) -> str:
                return (await server.talk("Say something.", temperature=1, max_tokens=24, **fields)).text

            seeded = [await told(seed=seed) for seed in (11111, 22222, 33333)]
            assert len(set(seeded)) == 3
            company = await asyncio.gather(told(seed=22222), *[told() for _ in range(3)])
            assert company[0] == seeded[1]
            assert len(set(company)) == 4

    run(scenario())


# --- failures -------------------------------------------------------------------------------------------


@dataclass
class Failing(FakeEngine):
    """Breaks whenever the row that begins with "!" is in ``phase`` and has said ``after`` tokens."""

    phase: Phase = "prefill"
    after: int = 0
    decodes: int = 0

    def fault(self, phase: Phase, rows: Sequence[RowRequest]) -> Exception | None:
        if phase != self.phase or not any(row.tokens[0] == ord("!") for row in rows):
            return None
        self.decodes += 1
        return RuntimeError("at /srv/engine.py line 7") if self.decodes > self.after else None


@pytest.mark.parametrize("stream", [False, True])
def test_b040_a_failure_in_prefill_is_a_status(*, stream: bool) -> None:
    """B040: before the first token nothing has been sent, so the status says it."""

    async def scenario() -> None:
        async with serving(Failing()) as server:
            body = {"messages": [user("!x")], "stream": stream, "max_tokens": 5}
            status, answer = await server.call("POST", "/v1/chat/completions", body)
            assert (status, answer["error"]["code"]) == (500, "lane_crashed")
            assert "prefill failed: at … line 7" in answer["error"]["message"]
            assert (await server.stream("ok", max_tokens=1)).finish_reason == "length"

    run(scenario())


def test_b040_a_failure_after_three_tokens_is_one_error_event_and_no_done() -> None:
    """B040: then one data line with an error object ends the stream; the connection serves on."""

    async def scenario() -> None:
        async with serving(Failing(phase="decode", after=3)) as server, connected(server) as (reader, writer):
            writer.write(http("!x", stream=True, max_tokens=8))
            text = await whole(reader)
            *chunks, last = data_of(text)
            said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
            assert said == "33.0 33.1 33.2 "
            assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
            assert set(last) == {"error"}
            assert set(last["error"]) == {"message", "type", "code", "param"}
            assert last["error"]["code"] == "lane_crashed"
            for leak in (b"[DONE]", b"Traceback", b"RuntimeError", b"/srv"):
                assert leak not in text
            writer.write(http("ok", stream=True, max_tokens=1))
            assert data_of(await whole(reader))[-1] == "[DONE]"

    run(scenario())


# --- framing and endings --------------------------------------------------------------------------------


def strict(events: list[Any], *, usage: bool) -> tuple[str, str]:
    """Check every chunk of one choice by its schema; return the text and why it ended."""
    *chunks, done = events
    assert done == "[DONE]"
    if usage:
        *chunks, counted = chunks
        assert counted["choices"] == []
        assert counted["usage"]["total_tokens"] > 0
        assert all(chunk.pop("usage") is None for chunk in chunks)
    keys = {"id", "object", "created", "model", "choices"}
    assert all(set(chunk) == keys for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"] for chunk in chunks]
    assert all(len(each) == 1 for each in choices)
    first, *middle, last = [each[0] for each in choices]
    assert all(
        set(each) == {"index", "delta", "logprobs", "finish_reason"} for each in (first, *middle, last)
    )
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert all(set(each["delta"]) == {"content"} and each["delta"]["content"] for each in middle)
    assert {each["finish_reason"] for each in (first, *middle)} == {None}
    assert last["delta"] == {}
    return "".join(each["delta"]["content"] for each in middle), last["finish_reason"]


@pytest.mark.parametrize("limit", [1, 16])
def test_b076_b079_every_chunk_by_its_schema_and_usage_only_when_asked_for(limit: int) -> None:
    """B076, B079: role first, one last chunk, usage with empty choices, [DONE], nothing behind it."""

    async def scenario() -> None:
        async with serving() as server:
            answer = await server.talk("Say hi", max_tokens=limit)
            for options in ({"include_usage": True}, {"include_usage": False}, None):
                async with connected(server) as (reader, writer):
                    writer.write(
                        http(
                            "Say hi",
                            "Connection: close\r\n",
                            stream=True,
                            max_tokens=limit,
                            stream_options=options,
                        )
                    )
                    text = await reader.read(-1)
                assert text.endswith(b"data: [DONE]\n\n" + LAST_CHUNK)
                told = strict(data_of(text), usage=bool(options and options["include_usage"]))
                assert told == (answer.text, answer.finish_reason)
            body = {"messages": [user("Say hi")], "stream_options": {"include_usage": True}}
            status, refused = await server.call("POST", "/v1/chat/completions", body)
            assert (status, refused["error"]["param"]) == (400, "stream_options")

    run(scenario())


def test_b071_a_stop_string_over_several_tokens_is_never_seen() -> None:
    """B071: the tiny model's tokens are single characters, so every stop string spans tokens."""

    async def scenario() -> None:
        async with serving() as server:
            plain = (await server.talk("Count.", max_tokens=30)).text
            for start, size in ((0, 3), (5, 4), (20, 6)):
                stop = plain[start : start + size]
                wanted = plain[: plain.find(stop)]
                for stops in (stop, [stop], ["never said", stop]):
                    found = await server.talk("Count.", max_tokens=30, stop=stops)
                    streamed = await server.stream("Count.", max_tokens=30, stop=stops)
                    assert found.text == streamed.text == wanted
                    assert found.finish_reason == streamed.finish_reason == "stop"
                    assert found.completion_tokens == streamed.completion_tokens == len(wanted) + size
            held = plain[-3:] + "never"
            assert (await server.stream("Count.", max_tokens=30, stop=held)).text == plain

    run(scenario())


# --- connections ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", [0, 2])
def test_b137_a_client_that_has_closed_its_side_is_answered(said: int, *, stream: bool) -> None:
    """B137: half-close while the prompt is prefilled, and amid the reply."""

    async def scenario() -> None:
        engine = FakeEngine(gated=True)
        async with serving(engine) as server, connected(server) as (reader, writer):
            writer.write(http("aa", stream=stream, max_tokens=4))
            await server.until(lambda stats: stats["scheduler"]["running"] == 1)
            engine.allow(1 + said)
            writer.write_eof()
            if not (stream and said):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            engine.allow(20)
            text = await reader.read(-1)  # to the end: no more can come on this connection
            assert b"HTTP/1.1 200 OK" in text
            if stream:
                assert strict(data_of(text), usage=False) == ("97.0 97.1 97.2 97.3 ", "length")
            else:
                assert b'"content":"97.0 97.1 97.2 97.3 "' in text

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_b137_who_has_left_behind_a_closed_side_is_noticed(*, stream: bool) -> None:
    """B137: what looked like a half-close was the end, also where the stream has begun."""

    async def scenario() -> None:
        engine, log = FakeEngine(gated=True), RecordingLog()
        async with serving(engine, None, log=log) as server:
            async with connected(server) as (reader, writer):
                writer.write(http("aa", stream=stream, max_tokens=40))
                await server.until(lambda stats: stats["scheduler"]["running"] == 1)
                engine.allow(3)
                if stream:
                    await reader.readuntil(b"97.0")
                writer.write_eof()
                await reader.readuntil(b"keep-alive" if stream else b"100 Continue")
            async with asyncio.timeout(5.0):
                assert (await log.wait(1)).status == 499
            await server.until(lambda stats: stats["scheduler"]["running"] == 0)

    run(scenario())


def test_b137_one_connection_serves_request_after_request() -> None:
    """B137: a second request while the first streams, and two hundred with pauses in between."""

    async def scenario() -> None:
        async with serving(FakeEngine()) as server, connected(server) as (reader, writer):
            writer.write(http("aa", stream=True, max_tokens=3) + http("bb", stream=True, max_tokens=2))
            text = b""
            while text.count(LAST_CHUNK) < 2:
                text += await reader.read(1 << 16)
            first, second, _ = text.split(LAST_CHUNK)
            assert strict(data_of(first + b"\n"), usage=False)[0] == "97.0 97.1 97.2 "
            assert strict(data_of(second + b"\n"), usage=False)[0] == "98.0 98.1 "
            for number in range(200):
                writer.write(http("cc", stream=True, max_tokens=1))
                assert data_of(await whole(reader))[-1] == "[DONE]", number
                if number % 10 == 0:
                    await asyncio.sleep(0.001)

    run(scenario())


# --- slow readers ------------------------------------------------------------------------------------------


class Wordy(FakeEngine):
    """A kilobyte a token."""

    def reply(self, row: RowRequest, n: int) -> str | None:
        return chr(row.tokens[0]) * 1024 if n < row.max_tokens else None


def test_a_reader_that_does_not_read_stops_neither_its_row_nor_others_and_loses_nothing() -> None:
    """Eight megabytes for a client that sleeps: the lane ends its row, and what waits is kept as a whole."""
    tokens = 8_000

    async def scenario() -> None:
        engine = Wordy(context_length=10_000)
        async with (
            serving(engine, None, "lanes.max_tokens=10000") as server,
            connected(server) as (reader, writer),
        ):
            writer.write(http("aa", stream=True, max_tokens=tokens))
            await server.until(lambda stats: stats["scheduler"]["running"] == 1)
            answer = await server.stream("bb", max_tokens=200)
            assert answer.text == "b" * 1024 * 200
            await server.until(
                lambda stats: stats["scheduler"]["running"] == 0
            )  # nobody has read a byte of "aa"
            events = data_of(await whole(reader))
            text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
            assert text == "a" * 1024 * tokens
            # What the sockets could not take waited as tokens and was told in pieces of many.
            assert len(events) < tokens // 2
            assert max(len(json.dumps(event)) for event in events) > 256 * 1024

    run(scenario())
