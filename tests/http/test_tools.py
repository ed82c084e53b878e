"""Tool calls and reasoning as chat completions tell them, streamed and whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.port import Delta
from samovar.runtime.engine.prompt import ReplyFormat

from tests.cases.rig import logged

from .fakes import FakeServing, chat, finished, live, run
from .replies import HERMES, THINK, TOOLS, say

if TYPE_CHECKING:
    from samovar.actors.requests import GenerationRequest
    from samovar.actors.stream import RequestStream

FORM = ReplyFormat(HERMES, THINK)
OSLO = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
BERGEN = OSLO.replace("Oslo", "Bergen")
BAD = '<tool_call>{"name": "f", "arguments": {"p": "\\d+"}}</tool_call>'
ASK = chat("Weather in Oslo and Bergen?", tools=list(TOOLS))


def weather(*texts: str, **how: Any) -> FakeServing:
    """A model that says the texts, a few characters a token."""
    tokens = [text[at : at + 3] for text in texts for at in range(0, len(text), 3)]
    return FakeServing(say(*tokens, **how), reply=FORM)


class StrictAccumulator:
    """Puts a stream together and objects to all that clients stumble over."""

    def __init__(self, events: list[Any]) -> None:
        *chunks, done = events
        assert done == "[DONE]"
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        first, *middle, last = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert last["delta"] == {}
        assert all(choice["finish_reason"] is None for choice in (first, *middle))
        self.finish_reason = last["finish_reason"]
        self.content = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        for choice in middle:
            self._add(choice["delta"])

    def _add(self, delta: dict[str, Any]) -> None:
        (key,) = delta
        if key == "content":
            self.content += delta[key]
        elif key == "reasoning_content":
            self.reasoning += delta[key]
        else:
            assert key == "tool_calls"
            (call,) = delta[key]
            self._add_call(call)

    def _add_call(self, call: dict[str, Any]) -> None:
        if call["index"] == len(self.calls):
            assert set(call) == {"index", "id", "type", "function"}
            assert set(call["function"]) == {"name", "arguments"}
            assert call["function"]["arguments"] == ""
            assert call["id"] not in {known["id"] for known in self.calls}
            self.calls.append({key: call[key] for key in ("id", "type", "function")})
            return
        assert set(call) == {"index", "function"}
        assert set(call["function"]) == {"arguments"}
        self.calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]

    @property
    def spoken(self) -> tuple[object, ...]:
        return self.content, self.reasoning, spoken(self.calls), self.finish_reason


def spoken(calls: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


async def both(serving: FakeServing, body: dict[str, Any]) -> tuple[Any, StrictAccumulator]:
    """Return the whole answer's choice and the streamed one, which agree."""
    async with live(serving) as server:
        whole = (await server.post(body)).json()
        streamed = StrictAccumulator((await server.post(body | {"stream": True})).events())
    (choice,) = whole["choices"]
    message = choice["message"]
    calls = spoken(message.get("tool_calls", []))
    told = (message["content"] or "", message.get("reasoning_content", ""), calls, choice["finish_reason"])
    assert told == streamed.spoken
    return choice, streamed


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_was_not_offered_is_an_error_with_its_name(stream: bool) -> None:
    async def scenario() -> None:
        serving = weather("Let me. ", OSLO.replace("get_weather", "rm_rf"))
        async with live(serving) as server:
            reply = await server.post(ASK | {"stream": stream})
            if stream:
                *_, last = reply.events()
                error = last["error"]
                assert b"[DONE]" not in reply.body
            else:
                assert reply.status == 422
                error = reply.error
            assert (error["code"], error["param"]) == ("unknown_tool", "tools")
            assert "'rm_rf'" in error["message"]
            record = server.log.records[0]
            assert (record.status, record.error_code, record.error) == (422, "unknown_tool", None)
            serving.script = say(OSLO)
            assert (await server.post(ASK)).status == 200

    run(scenario())


def test_b061_a_bad_call_is_content_the_good_one_is_made_and_the_log_says_so_once() -> None:
    with logged() as log:
        choice, _ = run(both(weather("Both:\n", BAD, "\n", OSLO), ASK))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Both:\n" + BAD
    assert spoken(choice["message"]["tool_calls"]) == [("get_weather", {"city": "Oslo"})]
    warnings = [line for line in log.warnings() if line["event"] == "tool_call_unreadable"]
    assert len(warnings) == 2  # one for each of the two requests
    assert "\\d+" not in json.dumps(warnings)


def test_b064_two_calls_streamed_and_whole() -> None:
    thought = "<think>\nTwo calls.\n</think>\n\n"
    choice, streamed = run(both(weather(thought, OSLO, "\n", BERGEN), ASK))
    message = choice["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == "Two calls."
    assert spoken(streamed.calls) == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]
    assert choice["finish_reason"] == "tool_calls"
    for call in (*message["tool_calls"], *streamed.calls):
        assert call["type"] == "function"
        assert call["id"].startswith("call_")
        assert len(call["id"]) == 29


@pytest.mark.parametrize("choice", ["none", None])
def test_without_tools_such_text_is_content(choice: str | None) -> None:
    body = ASK | {"tool_choice": choice} if choice else chat()
    told, _ = run(both(weather("Look: ", OSLO), body))
    assert told["message"] == {"role": "assistant", "content": f"Look: {OSLO}", "refusal": None}
    assert told["finish_reason"] == "stop"


def test_a_call_cut_by_the_limit_is_content_and_the_reason_is_the_limit() -> None:
    told, _ = run(both(weather(OSLO[:40], reason="length"), ASK))
    assert told["message"]["content"] == OSLO[:40]
    assert "tool_calls" not in told["message"]
    assert told["finish_reason"] == "length"


def test_without_parallel_calls_the_reply_ends_with_the_first() -> None:
    async def script(stream: RequestStream, request: GenerationRequest) -> None:
        for token, text in enumerate(("Hm.", OSLO, "\n", BERGEN)):
            stream.push(Delta(request.id, text, (token,)))

    async def scenario() -> None:
        serving = FakeServing(script, reply=FORM)  # it never ends by itself
        body = ASK | {"parallel_tool_calls": False, "stream_options": {"include_usage": True}}
        async with live(serving) as server:
            whole = (await server.post(ASK | {"parallel_tool_calls": False})).json()
            (choice,) = whole["choices"]
            assert choice["message"]["content"] == "Hm."
            assert spoken(choice["message"]["tool_calls"]) == [("get_weather", {"city": "Oslo"})]
            assert choice["finish_reason"] == "tool_calls"
            assert whole["usage"]["completion_tokens"] == 2
            *events, usage, done = (await server.post(body | {"stream": True})).events()
            assert StrictAccumulator([*events, done]).calls[0]["function"]["name"] == "get_weather"
            assert usage["usage"]["completion_tokens"] == 2
            assert serving.cancelled == [request.id for request in serving.requests]
            await server.log.wait(2)
            assert [record.status for record in server.log.records] == [200, 200]

    run(scenario())


def test_reasoning_is_told_apart_and_counted() -> None:
    async def scenario() -> None:
        serving = FakeServing(say("hm", "</think>", "\n", "Yes", "."), reply=FORM, in_reasoning=True)
        async with live(serving) as server:
            body = chat(logprobs=True)
            whole = (await server.post(body)).json()
            (choice,) = whole["choices"]
            assert choice["message"] == {
                "role": "assistant",
                "content": "Yes.",
                "refusal": None,
                "reasoning_content": "hm",
            }
            assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["Yes", "."]
            assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
            events = (await server.post(body | {"stream": True})).events()[:-1]
            told = [event["choices"][0] for event in events]
            entries = [entry for each in told for entry in (each["logprobs"] or {"content": []})["content"]]
            assert entries == choice["logprobs"]["content"]
            assert {"reasoning_content": "hm"} in [each["delta"] for each in told]

    run(scenario())


def test_b071_a_stop_string_ends_reasoning_and_content_alike() -> None:
    """The lane holds stop strings back; what it leaves is read as far as it goes."""
    for texts, last, content, reasoning in (
        (("<think>I see", " the"), " STO", "", "I see the STO"),
        (("<think>a</think>", "Yes", ""), "", "Yes", "a"),
        (("<think>a</thi",), "", "", "a</thi"),
    ):
        choice, _ = run(both(FakeServing(say(*texts, last=last), reply=FORM), chat(stop=["STOP"])))
        message = choice["message"]
        assert (message["content"], message.get("reasoning_content", "")) == (content, reasoning)
        assert choice["finish_reason"] == "stop"


def test_many_small_pieces_keep_their_order() -> None:
    async def script(stream: RequestStream, request: GenerationRequest) -> None:
        text = f"<think>a</think>b{OSLO}c{BERGEN}d"
        for token, character in enumerate(text):
            stream.push(Delta(request.id, character, (token,)))
        stream.push(finished(request.id, len(text)))

    async def scenario() -> None:
        async with live(FakeServing(script, reply=FORM)) as server:
            events = (await server.post(ASK | {"stream": True})).events()[1:-2]
            deltas = [event["choices"][0]["delta"] for event in events]
            order = [("call" if key == "tool_calls" else delta[key]) for delta in deltas for key in delta]
            assert order == ["a", "b", "call", "call", "c", "call", "call", "d"]

    run(scenario())
