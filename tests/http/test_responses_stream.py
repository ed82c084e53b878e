"""The Responses API as a stream: how it breaks, which events come in which order, and the client's helper."""

from __future__ import annotations

import asyncio
import json
from io import BytesIO
from typing import Any

import pytest
from samovar.actors.requests import Refused
from samovar.runtime.http.replies.pieces import Progress, ToolArguments
from samovar.runtime.http.responses.output import Output

from .fakes import FakeServing, Reply, live, run
from .replies import say
from .responses_kit import (
    ASK,
    CALLS,
    PATH,
    QUIET,
    THINKS,
    WEATHER,
    client,
    events_of,
    kinds,
    messages,
    openai,
)
from .test_stream import fail_after_text, fail_at_once, say_one_word

pytestmark = QUIET
STREAM = ASK | {"stream": True}
OPENING = ["created", "in_progress"]
MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
REASONING = [name.replace("output_text", "reasoning_text") for name in MESSAGE]
CALL = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]


def test_what_fails_before_the_first_event_is_a_status() -> None:
    async def scenario() -> None:
        async with live(FakeServing(fail_at_once)) as server:
            reply = await server.post(STREAM, PATH)
            assert (reply.status, reply.error["code"]) == (500, "lane_crashed")
            server.serving.refuse = lambda _: Refused("queue_full", "64 wait already")
            assert (await server.post(STREAM, PATH)).status == 429

    run(scenario())


def test_what_fails_later_ends_the_response_and_raises_in_the_client() -> None:
    async def scenario() -> None:
        async with live(FakeServing(fail_after_text)) as server, client(server) as api:
            *_, failed, error = events_of(await server.post(STREAM, PATH))
            assert failed["type"] == "response.failed"
            assert failed["response"]["status"] == "failed"
            assert failed["response"]["error"]["code"] == "server_error"
            assert failed["response"]["output"][0]["status"] == "incomplete"
            assert failed["response"]["output"][0]["content"][0]["text"] == "It"
            assert (error["type"], error["code"]) == ("error", "lane_crashed")
            assert error["error"]["type"] == "server_error"
            assert "srv" not in json.dumps([failed, error])
            assert (await server.get(f"{PATH}/{failed['response']['id']}")).status == 404
            with pytest.raises(openai.APIError) as caught:
                async for _ in await api.responses.create(**ASK, stream=True):
                    pass
            assert caught.value.code == "lane_crashed"
            async with api.responses.stream(**ASK) as stream:
                with pytest.raises(openai.APIError):
                    await stream.get_final_response()

    run(scenario())


def test_a_time_limit_amid_the_stream_is_told_in_numbered_events() -> None:
    async def scenario() -> None:
        async with live(FakeServing(say_one_word), request_timeout_s=0.05) as server:
            *_, failed, error = events_of(await server.post(STREAM, PATH))
            assert (failed["type"], error["code"]) == ("response.failed", "request_timeout")

    run(scenario())


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (Refused("queue_full", "64 wait already"), "rate_limit_exceeded"),
        (Refused("context_length_exceeded", "9000 > 8192"), "context_length_exceeded"),
        (Refused("template_error", "roles must alternate"), "invalid_prompt"),
        (Refused("draining", "stopping"), "server_error"),
    ],
)
def test_what_is_refused_after_a_keep_alive_begins_only_to_fail(refused: Refused, code: str) -> None:
    async def scenario() -> None:
        queued = asyncio.Event()
        serving = FakeServing(refuse=lambda _: refused, queued=queued)
        async with live(serving, keep_alive_s=0.01) as server:
            url = f"http://127.0.0.1:{server.server.port}{PATH}"
            async with server.session.post(url, json=STREAM) as response:
                assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
                queued.set()
                events = events_of(Reply(response.status, response.headers, await response.read()))
            assert kinds(events) == [*OPENING, "failed", "error"]
            assert events[-2]["response"]["error"]["code"] == code
            assert events[-2]["response"]["output"] == []
            assert events[-1]["code"] == refused.code

    run(scenario())


def test_a_client_that_leaves_amid_the_stream_cancels_and_leaves_nothing_stored() -> None:
    async def scenario() -> None:
        async with live(FakeServing(say_one_word)) as server:
            url = f"http://127.0.0.1:{server.server.port}{PATH}"
            data = BytesIO(json.dumps(STREAM).encode())
            async with server.session.post(
                url, data=data, headers={"Content-Type": "application/json"}
            ) as response:
                first = await response.content.readuntil(b"\n\n")
                made = json.loads(first.split(b"data: ")[1])["response"]["id"]
            await server.serving.cancel_seen.wait()
            assert server.serving.cancelled == [made]
            assert (await server.log.wait(1)).status == 499
            assert (await server.get(f"{PATH}/{made}")).status == 404

    run(scenario())


def test_text_comes_in_the_order_that_clients_expect() -> None:
    async def scenario() -> None:
        async with live() as server:
            reply = await server.post(STREAM, PATH)
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            events = events_of(reply)
            assert kinds(events) == [*OPENING, *MESSAGE, "completed"]
            assert [event["delta"] for event in events if event["type"].endswith("delta")] == [
                "It is",
                " Par",
                "is",
            ]
            final = events[-1]["response"]
            assert final["output"] == [events[-2]["item"]]
            assert final["usage"]["samovar"]["tier"] == "none"
            assert (await server.get(f"{PATH}/{final['id']}")).json() == final

    run(scenario())


def test_a_cut_stream_ends_as_incomplete() -> None:
    async def scenario() -> None:
        async with live() as server:
            events = events_of(await server.post(STREAM | {"max_output_tokens": 1}, PATH))
            assert kinds(events) == [*OPENING, *MESSAGE, "incomplete"]
            assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}

    run(scenario())


def test_an_empty_reply_is_an_empty_message() -> None:
    async def scenario() -> None:
        async with live(FakeServing(say())) as server:
            events = events_of(await server.post(STREAM, PATH))
            assert kinds(events) == [
                *OPENING,
                *[name for name in MESSAGE if "delta" not in name],
                "completed",
            ]
            assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""

    run(scenario())


def test_reasoning_text_and_calls_each_have_their_events() -> None:
    async def scenario() -> None:
        script = say("<think>", "Hm", ".", "</think>", "Let me see. ", *CALLS, *CALLS)
        async with live(FakeServing(script, reply=THINKS)) as server:
            events = events_of(await server.post(STREAM | {"tools": [WEATHER]}, PATH))
            assert kinds(events) == [*OPENING, *REASONING, *MESSAGE, *CALL, *CALL, "completed"]
            final = events[-1]["response"]
            assert [item["type"] for item in final["output"]] == [
                "reasoning",
                "message",
                "function_call",
                "function_call",
            ]
            assert [event["item"] for event in events if event["type"].endswith("item.done")] == final[
                "output"
            ]
            assert len({item["id"] for item in final["output"]}) == len(final["output"])
            for index, item in enumerate(final["output"]):
                deltas = [e["delta"] for e in events if "delta" in e and e["output_index"] == index]
                parts = item.get("content") or [{"text": item.get("arguments")}]
                assert "".join(deltas) == parts[0]["text"]
                assert item["status"] == "completed"
            assert final["usage"]["output_tokens_details"]["reasoning_tokens"] > 0

    run(scenario())


def test_a_call_that_is_cut_short_is_left_out_of_the_next_turn() -> None:
    async def scenario() -> None:
        output = Output(logprobs=False, portable_reasoning=False)
        with pytest.raises(RuntimeError, match="tool call 0"):
            output.add(Progress(0, (ToolArguments(0, "{"),)))
        script = say("Let me see. ", *CALLS[:-30], reason="length")
        async with live(FakeServing(script, reply=THINKS)) as server:
            final = events_of(await server.post(STREAM | {"tools": [WEATHER]}, PATH))[-1]["response"]
            assert final["status"] == final["output"][-1]["status"] == "incomplete"
            server.serving.script = say("Fine.")
            again = ASK | {"input": "Go on", "previous_response_id": final["id"]}
            assert (await server.post(again, PATH)).status == 200
            assert not any("tool_calls" in message for message in messages(server))

    run(scenario())


def test_the_clients_helper_accumulates_text_and_arguments() -> None:
    async def scenario() -> None:
        tools: Any = [WEATHER]
        serving = FakeServing(say("See: ", *CALLS), reply=THINKS)
        async with live(serving) as server, client(server) as api:
            async with api.responses.stream(**ASK, tools=tools) as stream:
                seen = [event async for event in stream]
                final = await stream.get_final_response()
            texts = [event.snapshot for event in seen if event.type == "response.output_text.delta"]
            assert texts[-1].startswith("See:")
            call = final.output[-1]
            assert call.type == "function_call"
            assert call.parsed_arguments == {"city": "Paris"}
            ends = [event for event in seen if event.type == "response.function_call_arguments.delta"]
            assert ends[-1].snapshot == call.arguments

    run(scenario())
