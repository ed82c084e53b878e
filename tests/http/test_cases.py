"""Bodies that real clients send, from the case list beside the checkout where there is one."""

from __future__ import annotations

import json
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from .fakes import PROMPT_TOKENS, FakeServing, Live, Reply, chat, conversation, live, run

CASES_FILE = Path(__file__).parents[2].parent / "shared" / "cases" / "requests.jsonl"
PATIENCE_S = 5.0  # what is refused is refused at once, however large it is


def tool(name: str, description: str = "") -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


REFUSED = {
    "R005": "messages[0].content",
    "R010b": "messages[0].role",
    "R025": "stop[0]",
    "R032": "stream_options",
    "R043b": "top_logprobs",
    "R043c": "top_logprobs",
    "R046": "logprobs",
    "R050": "prompt",
    "R052": "prompt",
    "R052b": "prompt[0]",
    "R052c": "prompt",
    "R056": "best_of",
    "R059": "max_tokens",
    "R073": "messages",
    "R074": "messages[0].role",
    "R076": "temperature",
    "R076b": "temperature",
    "R076d": "temperature",
    "R077b": "top_p",
    "R088": None,  # more values than a body may hold
    "R089": None,
    "R091": None,
}
NOT_JSON = {"R037", "R037s", "R038", "R076c"}
OTHER = {"R068": 404, "R070": 404, "R079": 404, "R080": 415, "R092": 404, "R094": 404}
CONSTRAINED = {"R064": "json_object", "R065": "json_schema"}
TWO_CHOICES = {"R049", "R055"}
GENERATED: dict[str, dict[str, object]] = {
    "R082": chat("hi", max_tokens=4, tools=[tool(f"t{index}", "x" * 3400) for index in range(320)]),
    "R088": chat("hi", stop=["abcde"] * 100_000),
    "R089": chat("hi", logit_bias={str(token): 0 for token in range(49_152)}),
    "R091": chat("hi", tools=[tool(f"t{index}") for index in range(10_000)]),
}


def load() -> list[dict[str, Any]]:
    if not CASES_FILE.exists():
        return []
    return [json.loads(line) for line in CASES_FILE.read_text().rstrip("\n").split("\n")]


CASES = load()


async def send(server: Live, case: dict[str, Any], body: object) -> Reply:
    if case.get("method") == "GET":
        return await server.get(case["path"])
    data = case["raw"].encode() if "raw" in case else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | case.get("headers", {})
    return await server.send("POST", case["path"], data=BytesIO(data), headers=headers, allow_redirects=False)


def check(case: dict[str, Any], reply: Reply, serving: FakeServing) -> None:
    number, body = case["id"], case.get("body") or {}
    if number in NOT_JSON:
        assert (reply.status, reply.error["code"]) == (400, "invalid_json")
    elif number in REFUSED:
        assert (reply.status, reply.error["param"]) == (400, REFUSED[number])
    elif number in OTHER:
        assert reply.status == OTHER[number]
        assert reply.error["message"]
    else:
        assert reply.status == 200
        check_answer(number, body, reply, serving)


def check_answer(number: str, body: dict[str, Any], reply: Reply, serving: FakeServing) -> None:
    """What a scripted engine can show; the same bodies meet a real one in tests/cases/test_requests.py."""
    events = [reply.json()] if not body.get("stream") else reply.events()
    if body.get("stream"):
        assert events.pop() == "[DONE]"
    assert all("error" not in event for event in events)
    choices = [choice for event in events for choice in event.get("choices", ())]
    assert {choice["index"] for choice in choices} <= ({0, 1} if number in TWO_CHOICES else {0})
    if number in CONSTRAINED:
        assert serving.requests[0].constraint is not None
        assert serving.requests[0].constraint.kind == CONSTRAINED[number]
    if "cache_salt" in body:
        assert serving.requests[0].cache_salt == body["cache_salt"]
    if body.get("echo"):
        assert choices[0]["text"].startswith(body["prompt"])
    if body.get("tools"):
        assert len(conversation(serving.requests[0]).tools) == len(body["tools"])


@pytest.mark.skipif(not CASES, reason=f"no case list at {CASES_FILE}")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_clients_body_is_answered_as_expected(case: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with live() as server:
            started_s = time.monotonic()
            reply = await send(server, case, GENERATED.get(case["id"], case["body"]))
            assert time.monotonic() - started_s < PATIENCE_S
            check(case, reply, server.serving)
            assert (await server.post(chat())).status == 200

    run(scenario())


def test_the_newer_limit_wins_and_openai_labels_pass() -> None:
    async def scenario() -> None:
        async with live() as server:
            labels = {
                "store": True,
                "metadata": {"a": "b"},
                "service_tier": "auto",
                "user": "u",
                "verbosity": "low",
            }
            reply = await server.post(chat(max_tokens=8, max_completion_tokens=2, **labels))
            usage = reply.json()["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, 2)

    run(scenario())
