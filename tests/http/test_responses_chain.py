"""A chain of responses against a whole server with a tiny model: what the store gives back hits the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.http.actor import GetAddress

from tests.cases.rig import run, serving, tiny

from .responses_kit import PATH

if TYPE_CHECKING:
    from tests.cases.rig import Server

pytestmark = pytest.mark.timeout(60)
QUESTION = "Which samovar keeps the most cups of tea hot, and for how long does it do so?"


async def respond(server: Server, text: str, **fields: Any) -> dict[str, Any]:
    status, body = await server.call("POST", PATH, {"input": text, "max_output_tokens": 8, **fields})
    assert status == 200, body
    return body


def fed(body: dict[str, Any]) -> int:
    """How many tokens of a response the model was fed at least: all but the last that it gave."""
    return body["usage"]["input_tokens"] + body["usage"]["output_tokens"] - 1


def cached(body: dict[str, Any]) -> int:
    return body["usage"]["input_tokens_details"]["cached_tokens"]


def test_a_chain_prefills_only_what_is_new_also_after_a_crash_of_http() -> None:
    async def scenario() -> None:
        async with serving(tiny()) as server:
            first = await respond(server, QUESTION, instructions="Be brief.")
            assert cached(first) == 0
            follow = {"instructions": "Be brief.", "temperature": 0}
            second = await respond(server, "Why?", previous_response_id=first["id"], **follow)
            assert cached(second) >= fed(first)
            server.system.crash("http")
            server.base = await server.tree.http.ref.ask(GetAddress(), 5.0)
            third = await respond(server, "How?", previous_response_id=second["id"], **follow)
            assert cached(third) >= fed(second)
            assert third["usage"]["samovar"]["tier"] == "ram"
            branch = await respond(server, "Where?", previous_response_id=first["id"], **follow)
            assert cached(branch) >= fed(first)

    run(scenario())


def test_a_chain_and_the_same_conversation_sent_whole_say_the_same() -> None:
    async def scenario() -> None:
        async with serving(tiny()) as server:
            first = await respond(server, QUESTION, temperature=0)
            chained = await respond(server, "Why?", previous_response_id=first["id"], temperature=0)
            whole: list[Any] = [{"role": "user", "content": QUESTION}, *first["output"]]
            whole.append({"role": "user", "content": "Why?"})
            body = {"input": whole, "max_output_tokens": 8, "temperature": 0, "store": False}
            status, sent = await server.call("POST", PATH, body)
            assert status == 200
            assert sent["output"][0]["content"] == chained["output"][0]["content"]
            assert sent["usage"]["input_tokens"] == chained["usage"]["input_tokens"]
            status, gone = await server.call("GET", f"{PATH}/{sent['id']}")
            assert (status, gone["error"]["code"]) == (404, "response_not_found")

    run(scenario())
