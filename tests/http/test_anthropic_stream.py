"""The bytes of Anthropic's event streams."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from samovar.actors.requests import PrefixReuse
from samovar.runtime.engine.port import Delta

from .anthropic_kit import ASK, CALL, MARKS, THINKS, WEATHER, client, says
from .fakes import FakeServing, finished, live, run

if TYPE_CHECKING:
    from samovar.actors.requests import GenerationRequest
    from samovar.actors.stream import RequestStream

pytestmark = MARKS


def events_of(serving: FakeServing, **fields: Any) -> list[dict[str, Any]]:
    """The data of every event; each is named by an ``event`` line as its type says."""

    async def scenario() -> bytes:
        async with live(serving) as server:
            reply = await server.post(ASK | {"stream": True} | fields, "/v1/messages")
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            return reply.body

    found = []
    blocks = run(scenario()).decode().removesuffix("\n\n").split("\n\n")
    for block in blocks:
        named, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert named == f"event: {found[-1]['type']}"
    return found


def test_the_order_of_events() -> None:
    events = events_of(FakeServing(reuse=PrefixReuse("ram", 4, 0.0, None)))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start, last = events[0]["message"], events[-2]
    assert (start["content"], start["stop_reason"], start["stop_sequence"]) == ([], None, None)
    assert (start["usage"]["input_tokens"], start["usage"]["cache_read_input_tokens"]) == (3, 4)
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (last["usage"]["output_tokens"], last["usage"]["input_tokens"]) == (3, 3)
    assert last["usage"]["samovar"]["tier"] == "ram"


def test_each_block_is_opened_once_filled_and_closed_before_the_next() -> None:
    serving = FakeServing(says("<think>", "Hm", "</think>", "First. ", CALL, CALL), reply=THINKS)
    open_index, blocks = None, []
    for event in events_of(serving, tools=[WEATHER]):
        match event["type"]:
            case "content_block_start":
                assert open_index is None
                open_index = event["index"]
                assert open_index == len(blocks)
                blocks.append((event["content_block"]["type"], ""))
            case "content_block_delta":
                assert event["index"] == open_index
                kind, text = blocks[-1]
                (field,) = set(event["delta"]) - {"type"}
                blocks[-1] = (kind, text + event["delta"][field])
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
    assert open_index is None
    kinds, texts = zip(*blocks, strict=True)
    assert kinds == ("thinking", "text", "tool_use", "tool_use")
    assert texts[:2] == ("Hm", "First.")
    assert [json.loads(text) for text in texts[2:]] == [{"city": "Paris"}] * 2


def test_the_client_lets_comments_pass() -> None:
    async def late(stream: RequestStream, request: GenerationRequest) -> None:
        stream.push(Delta(request.id, "Par", (1,)))
        await asyncio.sleep(0.05)  # real time: what keeps a stream alive goes by it
        stream.push(finished(request.id, text="is"))

    async def scenario() -> None:
        async with live(FakeServing(late), keep_alive_s=0.01) as server, client(server) as api:
            reply = await server.post(ASK | {"stream": True}, "/v1/messages")
            assert b"\n\n: keep-alive\n\n" in reply.body
            async with api.messages.stream(**ASK) as stream:
                assert await stream.get_final_text() == "Paris"

    run(scenario())
