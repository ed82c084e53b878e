"""Several choices of one call: side by side, and all or none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from samovar.actors.requests import Refused
from samovar.runtime.engine.port import Delta, Failed

from .fakes import FakeServing, Live, chat, finished, live, raw, raw_chat, run
from .replies import say

if TYPE_CHECKING:
    from samovar.actors.requests import GenerationRequest
    from samovar.actors.stream import RequestStream

THREE = chat(n=3, stream=True)


def number(request: GenerationRequest) -> int:
    _, _, index = request.id.partition(".")
    return int(index or 0)


async def count(stream: RequestStream, request: GenerationRequest) -> None:
    """Each choice says its number three times; the later ones are done first."""
    index = number(request)
    for token in range(3):
        for _ in range(4 - index):
            await asyncio.sleep(0)
        stream.push(Delta(request.id, f"{index} ", (token,)))
    stream.push(finished(request.id, 3, "length" if index == 2 else "stop"))


async def wait(stream: RequestStream, request: GenerationRequest) -> None:
    """Say one word and no more."""
    stream.push(Delta(request.id, "word", (1,)))


async def settle(server: Live, choices: int) -> None:
    """Every choice was cancelled once, and no task of the call is left."""
    record = await server.log.wait(1)
    assert sorted(server.serving.cancelled) == sorted(request.id for request in server.serving.requests)
    assert len(server.serving.requests) == choices
    assert record.generation_id == server.serving.requests[0].id
    for _ in range(5):
        await asyncio.sleep(0)
    names = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    assert not {name for name in names if "Choice" in name or name in {"_after", "Generation"}}, names


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refused", [0, 1, 2])
def test_one_choice_refused_is_the_call_refused_before_any_byte(stream: bool, refused: int) -> None:
    def refuse(request: GenerationRequest) -> Refused | None:
        return Refused("queue_full", "too many", retry_after_s=2.0) if number(request) == refused else None

    async def scenario() -> None:
        async with live(FakeServing(wait, refuse=refuse)) as server:
            reply = await server.post(chat(n=3, stream=stream))
            assert (reply.status, reply.error["code"], reply.headers["Retry-After"]) == (
                429,
                "queue_full",
                "2",
            )
            assert len(server.serving.cancelled) == 2
            assert server.server.active == 0

    run(scenario())


def test_one_choice_that_fails_ends_the_others() -> None:
    async def script(stream: RequestStream, request: GenerationRequest) -> None:
        await wait(stream, request)
        if number(request) == 1:
            for _ in range(20):
                await asyncio.sleep(0)
            stream.push(Failed(request.id, "nan_logits", "x"))

    async def scenario() -> None:
        async with live(FakeServing(script)) as server:
            whole = await server.post(chat(n=3))
            assert (whole.status, whole.error["code"]) == (500, "nan_logits")
            streamed = await server.post(THREE)
            assert streamed.status == 200
            assert streamed.events()[-1]["error"]["code"] == "nan_logits"
            assert len(server.serving.cancelled) == 4
            assert server.server.active == 0

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("admitted", [0, 1, 3])
def test_a_client_that_leaves_ends_every_choice(stream: bool, admitted: int) -> None:
    class Queue(FakeServing):
        waiting = 0

        async def submit(self, request: GenerationRequest):
            if number(request) >= admitted:
                self.waiting += 1
                self.arrivals.release()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.waiting -= 1
            return await super().submit(request)

    async def scenario() -> None:
        serving = Queue(wait)
        async with live(serving) as server, raw(server, raw_chat(chat(n=3, stream=stream))) as (_, writer):
            for _ in range(3):
                await serving.arrived()
            assert serving.waiting == 3 - admitted
            writer.close()
            assert (await server.log.wait(1)).status == 499
            assert serving.waiting == 0
            if admitted:
                await settle(server, admitted)

    run(scenario())


def test_b106_choices_carry_their_index_and_one_id() -> None:
    async def scenario() -> None:
        async with live(FakeServing(count)) as server:
            body = THREE | {"seed": 5, "stream_options": {"include_usage": True}}
            *chunks, usage, done = (await server.post(body)).events()
            assert done == "[DONE]"
            assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
            by_index: dict[int, list[Any]] = {}
            for chunk in chunks:
                (choice,) = chunk["choices"]
                by_index.setdefault(choice["index"], []).append(choice)
            assert sorted(by_index) == [0, 1, 2]
            for index, (first, *middle, last) in by_index.items():
                assert first["delta"] == {"role": "assistant", "content": ""}
                assert "".join(c["delta"]["content"] for c in middle) == f"{index} " * 3
                assert (last["delta"], last["finish_reason"]) == ({}, "length" if index == 2 else "stop")
            whole = (await server.post(chat(n=3, seed=5))).json()
            assert [c["message"]["content"] for c in whole["choices"]] == ["0 0 0 ", "1 1 1 ", "2 2 2 "]
            for found in (whole["usage"], usage["usage"]):
                assert (found["prompt_tokens"], found["completion_tokens"]) == (7, 9)
            seeds = [request.sampling.seed for request in server.serving.requests]
            assert len(set(seeds[:3])) == 3
            assert seeds[:3] == seeds[3:]

    run(scenario())


def test_a_reader_that_waits_keeps_little_of_every_choice_and_loses_nothing() -> None:
    word, times = "x" * 500, 4_000

    async def pour(stream: RequestStream, request: GenerationRequest) -> None:
        for token in range(times):
            stream.push(Delta(request.id, word, (token,)))
            if token % 100 == 0:
                await asyncio.sleep(0)
        stream.push(finished(request.id, times))

    async def scenario() -> None:
        async with live(FakeServing(pour)) as server, raw(server, raw_chat(THREE)) as (reader, _):
            for _ in range(3):
                await server.serving.arrived()
            await asyncio.gather(*server.serving.tasks)
            assert server.server.active == 1  # everything was said, yet the reply waits for its reader
            text = bytearray()
            while not text.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
                text += await reader.read(1 << 20)
            assert text.count(b"x") >= 3 * times * len(word)

    run(scenario())


def test_a_whole_answer_with_a_choice_of_each_end() -> None:
    async def script(stream: RequestStream, request: GenerationRequest) -> None:
        await say("a", reason="length" if number(request) else "stop")(stream, request)

    async def scenario() -> None:
        async with live(FakeServing(script)) as server:
            choices = (await server.post(chat(n=2))).json()["choices"]
            assert [choice["finish_reason"] for choice in choices] == ["stop", "length"]

    run(scenario())
