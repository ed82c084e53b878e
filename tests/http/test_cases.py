"""Bodies that real clients send, from the case list beside the checkout where there is one."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from .fakes import PROMPT_TOKENS, Live, Reply, chat, live, run

CASES_FILE = Path(__file__).parents[2].parent / "shared" / "cases" / "requests.jsonl"
CHAT = "/v1/chat/completions"

# Isolation by salt comes with the cache.
SALTED = {"R100": "cache_salt", "R101": "cache_salt"}
# Cases whose feature comes later; until then the answer is a 400 that names the field.
LATER = {"R017": "tools", "R055": "n", "R064": "response_format", "R065": "response_format", **SALTED}
REFUSED = {
    "R005": "messages[0].content",
    "R010b": "messages[0].role",
    "R025": "stop[0]",
    "R043b": "top_logprobs",
    "R043c": "top_logprobs",
    "R032": "stream_options",
    "R059": "max_tokens",
    "R073": "messages",
    "R074": "messages[0].role",
    "R076": "temperature",
    "R076b": "temperature",
    "R076d": "temperature",
    "R077b": "top_p",
    "R082": "tools",
    "R088": None,  # more values than a body may hold
    "R089": None,
    "R091": "tools",
}
NOT_JSON = {"R037", "R037s", "R038", "R076c"}
OTHER = {"R068": 404, "R070": 404, "R079": 404, "R080": 415, "R092": 404, "R094": 404}
GENERATED: dict[str, dict[str, object]] = {
    "R082": chat(
        "hi", max_tokens=4, tools=[{"type": "function", "function": {"description": "x" * 3400}}] * 320
    ),
    "R088": chat("hi", stop=["abcde"] * 100_000),
    "R089": chat("hi", logit_bias={str(token): 0 for token in range(49_152)}),
    "R091": chat("hi", tools=[{"type": "function"}] * 10_000),
}
# The length of a prompt is the scheduler's to judge; a scripted one has no tokenizer.
NEEDS_A_TOKENIZER = {"R061"}


def load() -> list[dict[str, Any]]:
    if not CASES_FILE.exists():
        return []
    cases = [json.loads(line) for line in CASES_FILE.read_text().rstrip("\n").split("\n")]
    return [
        case for case in cases if case["path"] != "/v1/completions" and case["id"] not in NEEDS_A_TOKENIZER
    ]


CASES = load()


async def send(server: Live, case: dict[str, Any], body: object) -> Reply:
    if case.get("method") == "GET":
        return await server.get(case["path"])
    data = case["raw"].encode() if "raw" in case else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | case.get("headers", {})
    return await server.send("POST", case["path"], data=BytesIO(data), headers=headers, allow_redirects=False)


def check(case: dict[str, Any], reply: Reply, stream: bool) -> None:
    number = case["id"]
    if number in NOT_JSON:
        assert (reply.status, reply.error["code"]) == (400, "invalid_json")
    elif number in REFUSED or number in LATER:
        wanted = (REFUSED | LATER)[number]
        assert (reply.status, reply.error["param"]) == (400, wanted)
        assert number not in LATER or reply.error["code"] == "unsupported_parameter"
    elif number in OTHER:
        assert reply.status == OTHER[number]
        assert reply.error["message"]
    elif stream:
        assert reply.status == 200
        assert reply.events()[-1] == "[DONE]"
    else:
        assert reply.status == 200
        assert "error" not in reply.json()


@pytest.mark.skipif(not CASES, reason=f"no case list at {CASES_FILE}")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_clients_body_is_answered_as_expected(case: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with live() as server:
            body = GENERATED.get(case["id"], case["body"])
            stream = isinstance(body, dict) and body.get("stream") is True
            if isinstance(body, dict) and body.get("tools") and case["id"] not in REFUSED | LATER:
                first = await send(server, case, body)
                assert (first.status, first.error["param"]) == (400, "tools")
                body = {name: value for name, value in body.items() if name != "tools"}
            check(case, await send(server, case, body), stream)
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
