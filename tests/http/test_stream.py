from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from samovar.actors.requests import GenerationRequest, Refused
from samovar.runtime.engine.port import Cancelled, Delta, Failed, Prefilled
from samovar.runtime.http.serving import Readiness
from samovar.runtime.kernel import ActorCrashed, ActorGone

from .fakes import FakeServing, chat, finished, live, raw, raw_chat, run

if TYPE_CHECKING:
    from samovar.actors.stream import RequestStream

STREAM = chat(stream=True)


async def fail_at_once(stream: RequestStream, request: GenerationRequest) -> None:
    stream.push(Prefilled(request.id, 1, 7))
    stream.push(Failed(request.id, "lane_crashed", "RuntimeError at /srv/engine.py"))


async def fail_after_text(stream: RequestStream, request: GenerationRequest) -> None:
    stream.push(Delta(request.id, "It", (1,)))
    await asyncio.sleep(0)
    stream.push(Failed(request.id, "lane_crashed", "RuntimeError at /srv/engine.py"))


async def cancel_itself(stream: RequestStream, request: GenerationRequest) -> None:
    stream.push(Cancelled(request.id))


async def say_nothing(stream: RequestStream, request: GenerationRequest) -> None:
    """Accept the request and never answer."""


async def say_one_word(stream: RequestStream, request: GenerationRequest) -> None:
    stream.push(Delta(request.id, "It", (1,)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refused", "status", "retry_after", "param"),
    [
        (Refused("queue_full", "64 wait already", retry_after_s=2.2), 429, "3", None),
        (Refused("draining", "stopping"), 503, "1", None),
        (Refused("context_length_exceeded", "9000 > 8192"), 400, None, "messages"),
        (
            Refused("template_error", "roles must alternate", param="messages[1].role"),
            400,
            None,
            "messages[1].role",
        ),
        (Refused("empty_prompt", "nothing to read"), 400, None, None),
    ],
)
def test_a_refusal_is_a_status_before_any_byte(
    stream: bool, refused: Refused, status: int, retry_after: str | None, param: str | None
) -> None:
    async def scenario() -> None:
        async with live(FakeServing(refuse=lambda _: refused)) as server:
            reply = await server.post(chat(stream=stream))
            assert reply.status == status
            assert (reply.error["code"], reply.error["param"]) == (refused.code, param)
            assert reply.headers.get("Retry-After") == retry_after

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ActorCrashed("serving/scheduler", "Submit", "boom"), 503, "actor_crashed"),
        (ActorGone("serving/scheduler", "Submit", "gone"), 503, "actor_gone"),
        (ValueError("secret /srv/path"), 500, "internal_error"),
        (TimeoutError("not the request's own limit"), 500, "internal_error"),
        (ConnectionResetError("an engine's own socket"), 500, "internal_error"),
    ],
)
def test_an_error_is_told_by_id_and_nothing_else(
    stream: bool, error: Exception, status: int, code: str
) -> None:
    def fail(_: GenerationRequest) -> None:
        raise error

    async def scenario() -> None:
        async with live(FakeServing(refuse=fail)) as server:
            reply = await server.post(chat(stream=stream))
            assert (reply.status, reply.error["code"]) == (status, code)
            assert (status == 500) == (reply.headers["x-request-id"] in reply.error["message"])
            for internal in ("scheduler", "secret", "Error", "socket"):
                assert internal not in reply.error["message"]
            assert server.log.records[0].error is error
            server.serving.refuse = lambda _: None
            assert (await server.post(chat(stream=stream))).status == 200

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_is_a_status(stream: bool) -> None:
    async def scenario() -> None:
        async with live(FakeServing(fail_at_once)) as server:
            reply = await server.post(chat(stream=stream))
            assert (reply.status, reply.error["code"]) == (500, "lane_crashed")
            assert "srv" not in reply.error["message"]
            assert "Runtime" not in reply.error["message"]
            assert server.log.records[0].error_detail == "RuntimeError at /srv/engine.py"
            server.serving.script = cancel_itself
            assert (await server.post(chat(stream=stream))).status == 503

    run(scenario())


def test_a_failure_after_the_first_byte_is_an_event_and_the_end() -> None:
    async def scenario() -> None:
        serving = FakeServing(fail_after_text)
        async with live(serving) as server, raw(server, raw_chat(STREAM)) as (reader, _):
            text = (await reader.readuntil(b"\r\n0\r\n\r\n")).decode()
            assert text.startswith("HTTP/1.1 200")
            assert '"content":"It"' in text
            assert '"code":"lane_crashed"' in text
            assert "[DONE]" not in text
            assert "Runtime" not in text
            record = await server.log.wait(1)
            assert (record.status, record.error_code, record.completion_tokens) == (
                500,
                "lane_crashed",
                1,
            )

    run(scenario())


@pytest.mark.parametrize("body", [chat(), STREAM])
@pytest.mark.parametrize("script", [say_nothing, say_one_word])
def test_a_client_that_leaves_cancels_its_request(body: object, script: object) -> None:
    async def scenario() -> None:
        serving = FakeServing(script)  # pyright: ignore[reportArgumentType]
        async with live(serving) as server, raw(server, raw_chat(body)) as (_, writer):
            await server.serving.arrived()
            writer.close()
            await server.serving.cancel_seen.wait()
            record = await server.log.wait(1)
            assert record.status == 499
            assert server.serving.cancelled == [server.serving.requests[0].id]
            assert server.server.active == 0

    run(scenario())


def test_a_client_that_leaves_while_being_admitted_reaches_the_scheduler_as_a_cancellation() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    class Slow(FakeServing):
        async def submit(self, request: GenerationRequest):
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    async def scenario() -> None:
        async with live(Slow()) as server, raw(server, raw_chat(STREAM)) as (_, writer):
            await entered.wait()
            writer.close()
            await cancelled.wait()
            assert (await server.log.wait(1)).status == 499

    run(scenario())


def test_the_time_limit_before_and_after_the_first_byte() -> None:
    async def scenario() -> None:
        async with live(FakeServing(say_nothing), request_timeout_s=0.05) as server:
            for body in (chat(), STREAM):
                reply = await server.post(body)
                assert (reply.status, reply.error["code"]) == (504, "request_timeout")
                assert reply.headers["x-should-retry"] == "false"
            server.serving.script = say_one_word
            reply = await server.post(STREAM)
            assert reply.status == 200
            assert reply.events()[-1]["error"]["code"] == "request_timeout"
            assert len(server.serving.cancelled) == 3
            assert [record.status for record in server.log.records] == [504, 504, 504]

    run(scenario())


@pytest.mark.parametrize("draining", [False, True])
def test_nothing_is_taken_while_not_ready(draining: bool) -> None:
    async def scenario() -> None:
        serving = FakeServing(ready=Readiness(ready=False, draining=draining, detail={"lanes": "loading"}))
        async with live(serving) as server:
            reply = await server.post(chat())
            assert (reply.status, reply.error["code"]) == (503, "draining" if draining else "not_ready")
            assert int(reply.headers["Retry-After"]) >= 1
            assert not serving.requests

    run(scenario())


def test_silence_is_broken_by_comments_that_open_the_stream() -> None:
    async def scenario() -> None:
        async with live(FakeServing(say_nothing), keep_alive_s=0.01) as server:
            async with raw(server, raw_chat(STREAM)) as (reader, _):
                text = await reader.readuntil(b": keep-alive\n\n")
                assert text.startswith(b"HTTP/1.1 200")
                await reader.readuntil(b": keep-alive\n\n")
                stream_id = server.serving.requests[0].id
            await server.serving.cancel_seen.wait()
            assert server.serving.cancelled == [stream_id]

    run(scenario())


@pytest.mark.parametrize("refused", [None, Refused("context_length_exceeded", "too long")])
def test_a_stream_is_kept_alive_while_it_waits_for_its_row(refused: Refused | None) -> None:
    async def scenario() -> None:
        serving = FakeServing(refuse=lambda _: refused, queued=asyncio.Event())
        async with live(serving, keep_alive_s=0.01) as server:
            async with raw(server, raw_chat(STREAM)) as (reader, _):
                await reader.readuntil(b": keep-alive\n\n")
                assert serving.queued is not None
                serving.queued.set()
                rest = await reader.readuntil(b"0\r\n\r\n")
            if refused is None:
                assert b"[DONE]" in rest
            else:
                assert b'"code":"context_length_exceeded"' in rest
                assert b"[DONE]" not in rest

    run(scenario())


def test_requests_are_taken_while_a_part_restarts() -> None:
    async def scenario() -> None:
        ready = Readiness(ready=False, recovering=True, detail={"serving/lanes/0": "restarting"})
        async with live(FakeServing(ready=ready)) as server:
            assert (await server.post(chat())).status == 200
            assert (await server.get("/ready")).status == 503

    run(scenario())


def test_a_stream_that_was_kept_alive_is_whole_and_a_failure_in_it_is_an_event() -> None:
    async def late(stream: RequestStream, request: GenerationRequest) -> None:
        await asyncio.sleep(0.05)
        if request.sampling.seed == 1:
            stream.push(Failed(request.id, "lane_crashed", ""))
            return
        stream.push(Delta(request.id, "Paris", (1,)))
        stream.push(finished(request.id, 1))

    async def scenario() -> None:
        async with live(FakeServing(late), keep_alive_s=0.01) as server:
            good = await server.post(STREAM)
            assert b": keep-alive" in good.body
            assert good.events()[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert good.events()[1]["choices"][0]["delta"] == {"content": "Paris"}
            assert good.events()[-1] == "[DONE]"
            bad = await server.post(STREAM | {"seed": 1})
            assert bad.status == 200
            assert [list(event) for event in bad.events()] == [["error"]]

    run(scenario())


def test_a_stream_as_clients_parse_it() -> None:
    async def scenario() -> None:
        async with live() as server:
            reply = await server.post(STREAM)
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            assert reply.headers["Cache-Control"] == "no-cache"
            *chunks, done = reply.events()
            assert done == "[DONE]"
            assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
            assert all("usage" not in chunk and len(chunk["choices"]) == 1 for chunk in chunks)
            first, *middle, last = [chunk["choices"][0] for chunk in chunks]
            assert first["delta"] == {"role": "assistant", "content": ""}
            assert "".join(choice["delta"]["content"] for choice in middle) == "It is Paris"
            assert (last["delta"], last["finish_reason"]) == ({}, "stop")
            assert all(choice["finish_reason"] is None for choice in (first, *middle))

    run(scenario())


def test_usage_comes_once_when_asked_for_and_matches_the_whole_answer() -> None:
    async def scenario() -> None:
        async with live() as server:
            asked = STREAM | {"stream_options": {"include_usage": True}}
            *chunks, usage, done = (await server.post(asked)).events()
            assert done == "[DONE]"
            assert usage["choices"] == []
            assert all(chunk["usage"] is None for chunk in chunks)
            whole = (await server.post(chat())).json()
            for found in (usage["usage"], whole["usage"]):
                assert (found["prompt_tokens"], found["completion_tokens"], found["total_tokens"]) == (
                    7,
                    3,
                    10,
                )
                assert found["prompt_tokens_details"] == {"cached_tokens": 0}
                own = found["samovar"]
                assert (own["tier"], own["miss_reason"], own["prefill_ms"]) == ("none", "cache_off", 12.5)
                assert own["ttft_ms"] >= own["queue_ms"] >= 0
            off = STREAM | {"stream_options": {"include_usage": False}}
            assert all("usage" not in event for event in (await server.post(off)).events()[:-1])

    run(scenario())


def test_streamed_and_whole_answers_agree_with_logprobs() -> None:
    async def scenario() -> None:
        async with live() as server:
            body = chat(logprobs=True, top_logprobs=2)
            whole = (await server.post(body)).json()["choices"][0]
            choices = [
                chunk["choices"][0] for chunk in (await server.post(body | {"stream": True})).events()[:-1]
            ]
            streamed = [entry for c in choices for entry in (c["logprobs"] or {"content": []})["content"]]
            assert whole["message"] == {"role": "assistant", "content": "It is Paris", "refusal": None}
            assert whole["logprobs"]["content"] == streamed
            assert [entry["token"] for entry in streamed] == ["It is", " Par", "is"]
            assert streamed[1]["bytes"] == list(b" Par")
            assert [top["token"] for top in streamed[0]["top_logprobs"]] == ["It is", " Lyon"]

    run(scenario())


def test_a_reply_cut_by_its_limit_says_length() -> None:
    async def scenario() -> None:
        async with live() as server:
            whole = (await server.post(chat(max_tokens=1))).json()
            assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == (
                "length",
                1,
            )
            *_, role_or_text, last, _ = (await server.post(STREAM | {"max_tokens": 1})).events()
            assert role_or_text["choices"][0]["delta"]["content"] == "It is"
            assert last["choices"][0]["finish_reason"] == "length"

    run(scenario())


def test_text_that_needs_escapes_keeps_the_framing() -> None:
    text = 'a\n\ndata: "x"\r\u2028\ufeff\0\U0001f600\\'

    async def speak(stream: RequestStream, request: GenerationRequest) -> None:
        for character in text:
            stream.push(Delta(request.id, character, (1,)))
            await asyncio.sleep(0)
        stream.push(finished(request.id, len(text)))

    async def scenario() -> None:
        async with live(FakeServing(speak)) as server:
            chunks = (await server.post(STREAM)).events()[:-1]
            assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text
            assert (await server.post(chat())).json()["choices"][0]["message"]["content"] == text

    run(scenario())


def test_a_client_that_does_not_read_holds_its_stream_back_and_loses_nothing() -> None:
    word, count = "x" * 500, 20_000

    async def pour(stream: RequestStream, request: GenerationRequest) -> None:
        for token in range(count):
            stream.push(Delta(request.id, word, (token,)))
            if token % 100 == 0:
                await asyncio.sleep(0)
        stream.push(finished(request.id, count))

    async def scenario() -> None:
        async with live(FakeServing(pour)) as server, raw(server, raw_chat(STREAM)) as (reader, _):
            await server.serving.arrived()
            await asyncio.gather(*server.serving.tasks)
            assert server.server.active == 1  # everything was said, yet the reply waits for its reader
            text = bytearray()
            while not text.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
                text += await reader.read(1 << 20)
            assert text.count(b"x") >= count * len(word)

    run(scenario())


def test_http_1_0_clients_get_the_stream_too() -> None:
    async def scenario() -> None:
        async with live() as server:
            async with raw(server, raw_chat(STREAM, "1.0")) as (reader, _):
                text = await reader.read()
            assert text.endswith(b"data: [DONE]\n\n")

    run(scenario())


def test_the_record_of_a_request() -> None:
    async def scenario() -> None:
        async with live() as server:
            await server.post(STREAM | {"session_id": "s1"}, headers={"x-request-id": "mine-1"})
            record = await server.log.wait(1)
            assert (record.request_id, record.generation_id) == ("mine-1", server.serving.requests[0].id)
            assert (record.method, record.path, record.status) == ("POST", "/v1/chat/completions", 200)
            assert (record.model, record.stream, record.session_id) == ("smollm2", True, "s1")
            assert (record.prompt_tokens, record.completion_tokens, record.finish_reason) == (7, 3, "stop")
            assert record.prefill_ms == 12.5
            assert record.duration_ms >= (record.ttft_ms or 0) >= (record.queue_ms or 0) >= 0
            await server.post(chat(temperature=9))
            record = await server.log.wait(2)
            assert (record.status, record.error_code, record.error_param) == (
                400,
                "invalid_value",
                "temperature",
            )

    run(scenario())
