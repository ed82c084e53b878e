"""The real ``anthropic`` client against the server: whole messages, streams, tools, errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from samovar.actors.requests import PrefixReuse, Refused

from .anthropic_kit import ASK, CALL, MARKS, THINKS, WEATHER, anthropic, client, says
from .fakes import FakeServing, conversation, live, run
from .test_stream import fail_after_text, fail_at_once, say_one_word

pytestmark = MARKS


@pytest.mark.parametrize(
    ("refused", "kind", "name"),
    [
        (Refused("queue_full", "64 wait already", retry_after_s=1.0), "RateLimitError", "rate_limit_error"),
        (Refused("draining", "stopping"), "ServiceUnavailableError", "overloaded_error"),
        (Refused("context_length_exceeded", "9 > 8"), "BadRequestError", "invalid_request_error"),
        (Refused("lane_crashed", "twice"), "InternalServerError", "api_error"),
    ],
)
def test_refusals_arrive_as_the_clients_own_classes(refused: Refused, kind: str, name: str) -> None:
    async def scenario() -> None:
        async with live(FakeServing(refuse=lambda _: refused)) as server, client(server) as api:
            for call in (
                api.messages.create(**ASK),
                api.messages.create(**ASK, stream=True),
                api.messages.count_tokens(model="default", messages=ASK["messages"]),
            ):
                with pytest.raises(anthropic.APIStatusError) as caught:
                    await call
                assert type(caught.value).__name__ == kind
                body: Any = caught.value.body
                assert (body["type"], body["error"]["type"]) == ("error", name)
                assert body["error"]["code"] == refused.code
                assert caught.value.request_id == body["request_id"]

    run(scenario())


def test_mistakes_arrive_as_the_clients_own_classes() -> None:
    async def scenario() -> None:
        async with live(api_keys=("sk-1",), max_body_bytes=2000) as server, client(server) as api:
            with pytest.raises(anthropic.NotFoundError, match="claude-9"):
                await api.messages.create(**ASK | {"model": "claude-9"})
            with pytest.raises(anthropic.NotFoundError, match="claude-9"):
                await api.messages.count_tokens(model="claude-9", messages=ASK["messages"])
            block = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
            shown = ASK | {"messages": [{"role": "user", "content": [block]}]}
            with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].*image"):
                await api.messages.create(**shown)
            with pytest.raises(anthropic.APIStatusError) as large:
                await api.messages.create(**ASK, system="a" * 3000)
            assert large.value.status_code == 413
            assert "request_too_large" in str(large.value)
            async with client(server, "sk-2") as stranger:
                with pytest.raises(anthropic.AuthenticationError):
                    await stranger.messages.create(**ASK)
            assert server.serving.requests == []

    run(scenario())


def test_a_failure_is_a_status_before_the_first_byte_and_an_event_behind_it() -> None:
    async def scenario() -> None:
        async with live(FakeServing(fail_at_once)) as server, client(server) as api:
            with pytest.raises(anthropic.InternalServerError, match="lane_crashed"):
                await api.messages.create(**ASK, stream=True)
            server.serving.script = fail_after_text
            stream = await api.messages.create(**ASK, stream=True)
            seen: list[str] = []
            with pytest.raises(anthropic.APIStatusError, match="lane_crashed"):
                await gather(stream, seen)
            assert "content_block_delta" in seen
            assert "message_stop" not in seen

    run(scenario())


def test_a_model_that_calls_what_was_not_offered_is_an_error_that_can_be_read() -> None:
    async def scenario() -> None:
        script = says('<tool_call>{"name": "rain", "arguments": {}}</tool_call>')
        async with live(FakeServing(script)) as server, client(server) as api:
            with pytest.raises(anthropic.UnprocessableEntityError, match="rain"):
                await api.messages.create(**ASK, tools=[WEATHER])

    run(scenario())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_message(streamed: bool) -> None:
    async def scenario() -> None:
        serving = FakeServing(reuse=PrefixReuse("ram", 5, 0.0, None))
        async with live(serving) as server, client(server) as api:
            message = await told(api, streamed=streamed)
            assert (message.type, message.role, message.model) == ("message", "assistant", "smollm2")
            assert message.id.startswith("msg_")
            assert [block.text for block in message.content] == ["It is Paris"]
            assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
            usage = message.usage
            assert (usage.input_tokens, usage.cache_read_input_tokens) == (2, 5)
            assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, 3)
            assert (await server.log.wait(1)).generation_id == message.id

    run(scenario())


def test_samovars_own_figures_are_in_the_usage() -> None:
    async def scenario() -> None:
        async with live(FakeServing(reuse=PrefixReuse("ssd", 5, 1.5, "untrimmable"))) as server:
            usage = (await server.post(ASK, "/v1/messages")).json()["usage"]
            assert usage["samovar"]["tier"] == "ssd"
            assert usage["samovar"]["miss_reason"] == "untrimmable"
            assert usage["samovar"]["cached_tokens"] == usage["cache_read_input_tokens"] == 5

    run(scenario())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("reason", "stopped_by", "expected"),
    [
        ("length", None, ("max_tokens", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("stop", None, ("end_turn", None)),
    ],
)
def test_why_a_message_ended(
    streamed: bool, reason: str, stopped_by: str | None, expected: tuple[str, str | None]
) -> None:
    async def scenario() -> None:
        serving = FakeServing(says("Par", "is", reason=reason, stopped_by=stopped_by))
        async with live(serving) as server, client(server) as api:
            message = await told(api, streamed=streamed, stop_sequences=["END", "STOP"])
            assert (message.stop_reason, message.stop_sequence) == expected
            assert message.content[0].text == "Paris"
            assert serving.requests[0].stop == ("END", "STOP")

    run(scenario())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_of_nothing_has_a_block_of_no_text(streamed: bool) -> None:
    async def scenario() -> None:
        async with live(FakeServing(says())) as server, client(server) as api:
            message = await told(api, streamed=streamed)
            assert [(block.type, block.text) for block in message.content] == [("text", "")]

    run(scenario())


@pytest.mark.parametrize("streamed", [False, True])
def test_tools_go_around(streamed: bool) -> None:
    async def scenario() -> None:
        serving = FakeServing(says("Let me", " see. ", *CALL, CALL))
        async with live(serving) as server, client(server) as api:
            message = await told(api, streamed=streamed, tools=[WEATHER])
            assert message.stop_reason == "tool_use"
            said, first, second = message.content
            assert said.text == "Let me see."
            assert (first.type, first.name, first.input) == ("tool_use", "weather", {"city": "Paris"})
            assert second.input == first.input
            assert first.id.startswith("toolu_")
            assert first.id != second.id
            results = [
                {"type": "tool_result", "tool_use_id": b.id, "content": "sun"} for b in (first, second)
            ]
            serving.script = says("Sun.")
            history = [*ASK["messages"], message.to_param(), {"role": "user", "content": results}]
            answer = await told(api, streamed=streamed, tools=[WEATHER], messages=history)
            assert answer.content[0].text == "Sun."
        prompt = conversation(serving.requests[1])
        assert [turn["role"] for turn in prompt.messages] == ["user", "assistant", "tool", "tool"]
        calls: Any = prompt.messages[1]["tool_calls"]
        assert [call["id"] for call in calls] == [first.id, second.id]
        assert calls[0]["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
        assert prompt.messages[2]["tool_call_id"] == first.id
        assert prompt.tools == conversation(serving.requests[0]).tools

    run(scenario())


def test_one_call_is_enough_where_parallel_use_is_disabled() -> None:
    async def scenario() -> None:
        async with live(FakeServing(says(CALL, CALL))) as server, client(server) as api:
            choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
            message = await api.messages.create(**ASK, tools=[WEATHER], tool_choice=choice)
            assert [block.type for block in message.content] == ["tool_use"]

    run(scenario())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("display", [None, "omitted"])
def test_thoughts_are_a_block_of_their_own_unless_the_client_wants_none(
    streamed: bool, display: str | None
) -> None:
    async def scenario() -> None:
        serving = FakeServing(says("<think>", "Easy", ".", "</think>", "Paris"), reply=THINKS)
        async with live(serving) as server, client(server) as api:
            thinking = {"type": "adaptive"} | ({"display": display} if display else {})
            message = await told(api, streamed=streamed, thinking=thinking)
            *thoughts, said = message.content
            assert said.text == "Paris"
            found = [(block.type, block.thinking, block.signature) for block in thoughts]
            assert found == ([] if display else [("thinking", "Easy.", "")])
        assert conversation(serving.requests[0]).template_kwargs == {"enable_thinking": True}

    run(scenario())


def test_tokens_are_counted_without_a_generation() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            prompt: Any = ASK | {"tools": [WEATHER], "system": "Be brief."}
            await api.messages.create(**prompt)
            del prompt["max_tokens"]
            counted = await api.messages.count_tokens(**prompt)
            assert counted.input_tokens == 7
            (asked,), (sent,) = server.serving.counted, server.serving.requests
            assert asked.prompt == sent.prompt

    run(scenario())


def test_beta_calls_are_taken_too() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            betas = ["context-management-2025-06-27", "interleaved-thinking-2025-05-14"]
            edits: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
            message = await api.beta.messages.create(**ASK, betas=betas, context_management=edits)
            assert message.content[0].text == "It is Paris"
            counted = await api.beta.messages.count_tokens(
                model="default", messages=ASK["messages"], betas=betas, context_management=edits
            )
            assert counted.input_tokens == 7

    run(scenario())


def test_a_refusal_behind_a_comment_is_an_event_that_the_client_raises() -> None:
    async def scenario() -> None:
        refused = Refused("context_length_exceeded", "9 > 8")
        serving = FakeServing(refuse=lambda _: refused, queued=asyncio.Event())
        async with live(serving, keep_alive_s=0.01) as server, client(server) as api:
            stream = await api.messages.create(**ASK, stream=True)  # only a comment can have opened it
            assert serving.queued is not None
            serving.queued.set()
            with pytest.raises(anthropic.APIStatusError, match="context_length_exceeded"):
                await gather(stream, [])

    run(scenario())


def test_a_client_that_leaves_ends_the_generation() -> None:
    async def scenario() -> None:
        serving = FakeServing(say_one_word)
        async with live(serving) as server, client(server) as api:
            stream = await api.messages.create(**ASK, stream=True)
            async for event in stream:
                if event.type == "content_block_delta":
                    break
            await stream.close()
            await serving.cancel_seen.wait()
            assert serving.cancelled == [serving.requests[0].id]
            assert (await server.log.wait(1)).status == 499

    run(scenario())


async def gather(stream: Any, kinds: list[str]) -> None:
    async for event in stream:
        kinds.append(event.type)  # noqa: PERF401 - what came before a failure counts


async def told(api: Any, *, streamed: bool, **fields: Any) -> Any:
    """Return the message that comes of a call, whole or gathered from a stream by the client itself."""
    if not streamed:
        return await api.messages.create(**ASK | fields)
    async with api.messages.stream(**ASK | fields) as stream:
        return await stream.get_final_message()
