"""The Responses API in one piece: errors first, then what the real client makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from samovar.actors.requests import PrefixReuse, Refused
from samovar.runtime.engine.prompt import Constraint
from samovar.runtime.http.responses.store import ResponseStore, StoreLimits
from samovar.runtime.http.serving import Readiness

from .fakes import FakeServing, conversation, live, run
from .replies import say
from .responses_kit import ASK, CALLS, PATH, QUIET, THINKS, WEATHER, client, messages, openai
from .test_stream import fail_at_once

pytestmark = QUIET


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"input": None}, 400, "missing_required_parameter", "input"),
        ({"input": []}, 400, "missing_required_parameter", "input"),
        ({"input": [{"role": "tool", "content": ""}]}, 400, "invalid_value", "input[0].role"),
        ({"input": [{"type": "web_search_call"}]}, 400, "unsupported_parameter", "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, 404, "item_not_found", "input[0].id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            400,
            "unsupported_content",
            "input[0].content[0]",
        ),
        ({"previous_response_id": "resp_0"}, 400, "previous_response_not_found", "previous_response_id"),
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"max_tokens": 5}, 400, "unknown_parameter", "max_tokens"),
        ({"background": True}, 400, "unsupported_parameter", "background"),
        ({"truncation": "auto"}, 400, "unsupported_parameter", "truncation"),
        ({"conversation": "conv_1"}, 400, "unsupported_parameter", "conversation"),
        ({"stream_options": {}}, 400, "invalid_value", "stream_options"),
        ({"tools": [{"type": "web_search"}]}, 400, "unsupported_parameter", "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, 400, "invalid_value", "tools[1].name"),
        ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}},
            400,
            "invalid_value",
            "tool_choice.name",
        ),
        ({"tool_choice": {"type": "mcp"}}, 400, "unsupported_parameter", "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, 400, None, "text.format.schema"),
        (
            {"tools": [WEATHER], "text": {"format": {"type": "json_object"}}},
            400,
            "unsupported_parameter",
            "text.format",
        ),
        ({"include": ["everything"]}, 400, "invalid_value", "include[0]"),
        ({"chat_template_kwargs": {"tools": 1}}, 400, "invalid_value", "chat_template_kwargs.tools"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    fields: dict[str, Any], status: int, code: str | None, param: str
) -> None:
    async def scenario() -> None:
        async with live() as server:
            reply = await server.post(ASK | fields, PATH)
            assert (reply.status, reply.error["param"]) == (status, param)
            assert code in {None, reply.error["code"]}
            assert server.serving.requests == []

    run(scenario())


def test_errors_arrive_as_the_clients_own_classes() -> None:
    async def scenario() -> None:
        async with live(api_keys=("sk-1",)) as server, client(server) as api:
            with pytest.raises(openai.NotFoundError) as missing:
                await api.responses.create(**ASK | {"model": "gpt-9"})
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as lost:
                await api.responses.create(**ASK, previous_response_id="resp_0")
            assert lost.value.code == "previous_response_not_found"
            with pytest.raises(openai.AuthenticationError):
                await api.with_options(api_key="sk-2").responses.create(**ASK)
            server.serving.refuse = lambda _: Refused("queue_full", "64 wait already", retry_after_s=1.0)
            with pytest.raises(openai.RateLimitError):
                await api.responses.create(**ASK)
            server.serving.refuse = lambda _: Refused("context_length_exceeded", "9000 > 8192")
            with pytest.raises(openai.BadRequestError) as long:
                await api.responses.create(**ASK, stream=True)
            assert long.value.param == "input"
            server.serving.refuse = lambda _: None
            server.serving.script = fail_at_once
            with pytest.raises(openai.InternalServerError) as failed:
                await api.responses.create(**ASK)
            assert failed.value.code == "lane_crashed"

    run(scenario())


def test_stored_responses_that_are_not_there() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            for ask in (api.responses.retrieve, api.responses.delete, api.responses.cancel):
                with pytest.raises(openai.NotFoundError) as missing:
                    await ask("resp_0")
                assert missing.value.code == "response_not_found"
            kept = await api.responses.create(**ASK)
            with pytest.raises(openai.BadRequestError) as running:
                await api.responses.cancel(kept.id)
            assert running.value.code == "not_cancellable"
            with pytest.raises(openai.BadRequestError):
                await api.responses.retrieve(kept.id, stream=True)
            for query in ("limit=0", "limit=101", "order=up", "after=msg_0"):
                assert (await server.get(f"{PATH}/{kept.id}/input_items?{query}")).status == 400
            dropped = await api.responses.create(**ASK, store=False)
            with pytest.raises(openai.NotFoundError):
                await api.responses.retrieve(dropped.id)

    run(scenario())


def test_a_response_that_is_larger_than_the_store_is_answered_and_says_so() -> None:
    async def scenario() -> None:
        for limits in (StoreLimits(size_bytes=3000), StoreLimits(size_bytes=0), StoreLimits(ttl_s=0.0)):
            async with live(responses=ResponseStore(limits)) as server:
                made = (await server.post(ASK | {"instructions": "Be brief. " * 100}, PATH)).json()
                assert (made["status"], made["store"]) == ("completed", False)
                assert (await server.get(f"{PATH}/{made['id']}")).status == 404

    run(scenario())


@pytest.mark.parametrize("draining", [False, True])
def test_nothing_is_taken_while_not_ready(draining: bool) -> None:
    async def scenario() -> None:
        async with live(FakeServing(ready=Readiness(ready=False, draining=draining))) as server:
            reply = await server.post(ASK, PATH)
            assert (reply.status, reply.error["code"]) == (503, "draining" if draining else "not_ready")

    run(scenario())


def test_a_whole_response_as_the_client_reads_it() -> None:
    async def scenario() -> None:
        serving = FakeServing(reuse=PrefixReuse("ram", 4, 0.0, None))
        async with live(serving) as server, client(server) as api:
            found = await api.responses.create(
                **ASK,
                instructions="Be brief.",
                max_output_tokens=3,
                temperature=0,
                top_logprobs=1,
                include=["message.output_text.logprobs"],
                metadata={"team": "tea"},
                reasoning={"effort": "low"},
                service_tier="fast",
            )
            assert found.output_text == "It is Paris"
            assert (found.status, found.error, found.incomplete_details) == ("completed", None, None)
            assert (found.instructions, found.metadata, found.temperature) == (
                "Be brief.",
                {"team": "tea"},
                0.0,
            )
            assert found.usage is not None
            assert (found.usage.input_tokens, found.usage.output_tokens) == (7, 3)
            assert found.usage.input_tokens_details.cached_tokens == 4
            (item,) = found.output
            assert item.type == "message"
            (part,) = item.content
            assert part.type == "output_text"
            assert [entry.token for entry in part.logprobs or ()] == ["It is", " Par", "is"]
            assert part.annotations == []
            request = server.serving.requests[0]
            assert (request.max_tokens, request.service_class) == (3, "priority")
            assert found.service_tier == "priority"
            assert conversation(request).template_kwargs == {"reasoning_effort": "low"}
            assert messages(server) == [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Capital of France?"},
            ]

    run(scenario())


def test_a_reply_that_is_cut_is_incomplete_and_says_why() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            found = await api.responses.create(**ASK, max_output_tokens=1)
            assert found.status == "incomplete"
            assert found.incomplete_details is not None
            assert found.incomplete_details.reason == "max_output_tokens"
            assert found.output[0].type == "message"
            assert found.output[0].status == "incomplete"
            assert (await api.responses.retrieve(found.id)).status == "incomplete"

    run(scenario())


def test_a_chain_renders_the_whole_conversation_without_older_instructions() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            first = await api.responses.create(**ASK, instructions="Be brief.")
            second = await api.responses.create(
                model="gpt-4o", input="And of Spain?", previous_response_id=first.id, instructions="Shout."
            )
            assert second.previous_response_id == first.id
            assert messages(server) == [
                {"role": "system", "content": "Shout."},
                {"role": "user", "content": "Capital of France?"},
                {"role": "assistant", "content": "It is Paris"},
                {"role": "user", "content": "And of Spain?"},
            ]
            await api.responses.delete(first.id)
            await api.responses.create(model="gpt-4o", input="Thanks", previous_response_id=second.id)
            assert [message["content"] for message in messages(server)] == [
                "Capital of France?",
                "It is Paris",
                "And of Spain?",
                "It is Paris",
                "Thanks",
            ]

    run(scenario())


def test_stored_responses_are_read_listed_and_forgotten() -> None:
    async def scenario() -> None:
        said = [{"role": "user", "content": text, "id": f"msg_{text}"} for text in "abc"]
        async with live() as server, client(server) as api:
            made = await api.responses.create(model="gpt-4o", input=said)  # pyright: ignore[reportArgumentType]
            again = await api.responses.retrieve(made.id)
            assert again.to_dict() == made.to_dict()
            listed = [item.id async for item in api.responses.input_items.list(made.id, limit=2)]
            assert listed == ["msg_c", "msg_b", "msg_a"]
            page = (await server.get(f"{PATH}/{made.id}/input_items?order=asc&after=msg_a&limit=1")).json()
            assert (page["first_id"], page["last_id"], page["has_more"]) == ("msg_b", "msg_b", True)
            held = (await server.get("/stats")).json()["responses"]
            assert held["entries"] == 1
            assert 0 < held["bytes"] < held["max_bytes"]
            assert b"samovar_stored_responses_entries 1.0" in (await server.get("/metrics")).body
            await api.responses.delete(made.id)
            with pytest.raises(openai.NotFoundError):
                await api.responses.input_items.list(made.id)
            assert not [
                record for record in server.log.records if made.id in record.path
            ]  # who knows it may read it
            assert server.log.records[1].path == f"{PATH}/{{id}}"

    run(scenario())


def test_references_stand_for_stored_items() -> None:
    async def scenario() -> None:
        async with live() as server, client(server) as api:
            made = await api.responses.create(**ASK)
            asked = (await server.get(f"{PATH}/{made.id}/input_items")).json()["first_id"]
            refer: Any = [
                {"type": "item_reference", "id": asked},
                {"id": made.output[0].id},
                {"role": "user", "content": "Sure?"},
            ]
            await api.responses.create(model="gpt-4o", input=refer)
            assert messages(server) == [
                {"role": "user", "content": "Capital of France?"},
                {"role": "assistant", "content": "It is Paris"},
                {"role": "user", "content": "Sure?"},
            ]

    run(scenario())


def test_a_tool_goes_round_by_chain_and_by_resending() -> None:
    async def scenario() -> None:
        serving = FakeServing(say(*CALLS), reply=THINKS)
        async with live(serving) as server, client(server) as api:
            tools: Any = [WEATHER]
            made = await api.responses.create(**ASK, tools=tools, tool_choice="auto")
            (call,) = made.output
            assert call.type == "function_call"
            assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
            given: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            serving.script = say("Sunny.")
            done = await api.responses.create(
                model="gpt-4o", input=[given], previous_response_id=made.id, tools=tools
            )
            assert done.output_text == "Sunny."
            chained = messages(server)
            history: Any = [{"role": "user", "content": ASK["input"]}, call.to_dict(), given]
            await api.responses.create(model="gpt-4o", input=history, tools=tools, store=False)
            assert messages(server) == chained
            function = {"name": "get_weather", "arguments": call.arguments}
            assert chained[1:] == [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"},
            ]
            (offered,) = conversation(server.serving.requests[0]).tools
            assert offered["type"] == "function"

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}},
            "json_schema",
            "text.format.schema",
        ),
        ({"text": {"format": {"type": "json_object"}}}, "json_object", "text.format"),
        ({"text": {"format": {"type": "text"}}}, None, None),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tools", "tool_choice"),
    ],
)
def test_forms_and_demanded_calls_constrain_the_reply(
    fields: dict[str, Any], kind: str | None, param: str | None
) -> None:
    async def scenario() -> None:
        async with live() as server:
            assert (await server.post(ASK | fields, PATH)).status == 200
            found = server.serving.requests[0].constraint
            assert (
                (kind, param) == (None, None) if found is None else (found.kind, found.param) == (kind, param)
            )
            if kind == "json_schema":
                assert found == Constraint("json_schema", '{"type":"object"}', param="text.format.schema")

    run(scenario())


def test_the_clients_own_parsing_of_a_schema() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Capital", city=(str, ...))

    async def scenario() -> None:
        async with live(FakeServing(say('{"city": ', '"Paris"}'))) as server, client(server) as api:
            found = await api.responses.parse(**ASK, text_format=model)
            assert found.output_parsed is not None
            assert found.output_parsed.city == "Paris"

    run(scenario())


def test_reasoning_is_an_item_and_comes_back_by_chain_and_sealed() -> None:
    async def scenario() -> None:
        serving = FakeServing(say("<think>", "Hm.", "</think>", "Paris"), reply=THINKS)
        async with live(serving) as server, client(server) as api:
            made = await api.responses.create(**ASK, include=["reasoning.encrypted_content"])
            thought, said = made.output
            assert thought.type == "reasoning"
            assert (thought.summary, [part.text for part in thought.content or ()]) == ([], ["Hm."])
            assert said.type == "message"
            await api.responses.create(model="gpt-4o", input="Sure?", previous_response_id=made.id)
            chained = messages(server)
            assert chained[1] == {"role": "assistant", "content": "Paris", "reasoning_content": "Hm."}
            sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
            resent: Any = [
                {"role": "user", "content": ASK["input"]},
                sealed,
                said.to_dict(),
                {"role": "user", "content": "Sure?"},
            ]
            await api.responses.create(model="gpt-4o", input=resent)
            assert messages(server) == chained
            resent[1] = sealed | {"encrypted_content": "gAAAA-of-somebody-else"}
            await api.responses.create(model="gpt-4o", input=resent)
            assert messages(server)[1] == {"role": "assistant", "content": "Paris"}

    run(scenario())
