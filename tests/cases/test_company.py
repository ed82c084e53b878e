"""Scenarios of rows that share a batch: the same words together and alone, each by its own sampling."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from .rig import Answer, run, serving, tiny, user

if TYPE_CHECKING:
    from .rig import Server

pytestmark = pytest.mark.timeout(60)

OFF = ("cache.ram.max=0",)
PROMPT = "Which of the seven wizards drinks tea from the old copper samovar?"


async def send(server: Server, body: bytes) -> Answer:
    """Send these very bytes."""
    headers = {"Content-Type": "application/json"}
    async with server.session.post(
        server.base + "/v1/chat/completions", data=body, headers=headers
    ) as response:
        assert response.status == 200, await response.read()
        return Answer.of(await response.json())


async def shared_by(server: Server, rows: int) -> None:
    """Check that so many rows shared a batch; a lane's figures are a moment old."""
    await server.until(lambda stats: stats["lanes"][0]["peak_rows"] == rows)


@pytest.mark.parametrize(("family", "tokens"), [("llama", 200), ("gemma3_text", 80)])
def test_b028_the_same_body_gives_the_same_text_at_once_and_in_turn(family: str, tokens: int) -> None:
    """B028: four byte-identical bodies at once, then serially, then on a server that never saw them."""
    fields = {"messages": [user(PROMPT)], "seed": 1, "temperature": 0, "max_tokens": tokens}
    body = json.dumps(fields).encode()

    async def scenario() -> None:
        async with serving(tiny(family)) as server:
            at_once = await asyncio.gather(*[send(server, body) for _ in range(4)])
            await shared_by(server, 4)
            in_turn = [await send(server, body) for _ in range(2)]
        async with serving(tiny(family), None, *OFF) as server:
            fresh = await send(server, body)
        assert fresh.completion_tokens == tokens
        assert {answer.text for answer in (*at_once, *in_turn)} == {fresh.text}

    run(scenario())


GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.5, "seed": 7}
HOT_BUT_BEST = {"temperature": 2, "top_k": 1}
NEARLY_BEST = {"temperature": 1, "min_p": 0.9, "logprobs": True, "top_logprobs": 1}


async def ask(server: Server, fields: dict[str, Any]) -> Any:
    status, body = await server.call(
        "POST", "/v1/chat/completions", {"messages": [user(PROMPT)], "max_tokens": 100, **fields}
    )
    assert status == 200, body
    return body["choices"][0]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_b029_every_row_is_sampled_by_its_own_parameters(order: tuple[int, ...]) -> None:
    """B029: greedy, seeded, hot with top_k 1 and min_p 0.9 side by side, whichever comes first."""
    kinds = (GREEDY, SEEDED, HOT_BUT_BEST, NEARLY_BEST)

    async def scenario() -> None:
        async with serving(None, None, *OFF) as server:
            greedy, seeded = [text(await ask(server, fields)) for fields in (GREEDY, SEEDED)]
        async with serving(None, None, *OFF) as server:
            asked = {kind: asyncio.ensure_future(ask(server, kinds[kind])) for kind in order}
            a, b, c, d = [await asked[kind] for kind in range(4)]
            await shared_by(server, 4)
        assert text(a) == text(c) == greedy
        assert text(b) == seeded != greedy
        assert seeded[0] != greedy[0]  # its first token too was drawn
        chosen = d["logprobs"]["content"]
        assert len(chosen) > 20
        least = math.log(0.9) - 1e-3
        assert all(entry["logprob"] - entry["top_logprobs"][0]["logprob"] > least for entry in chosen)

    run(scenario())


def text(choice: Any) -> str:
    return choice["message"]["content"]


def test_b025_a_window_model_and_a_plain_one_side_by_side_share_nothing() -> None:
    """B025: two lanes of the window model next to a plain one; 20 requests in turn, half of them repeats."""
    contents = [f"{number}: {PROMPT * (1 + number % 3)}" for number in range(4)]

    async def cold(family: str) -> list[str]:
        async with serving(tiny(family), None, *OFF) as server:
            return [(await server.talk(content, max_tokens=16)).text for content in contents]

    async def scenario() -> None:
        expected = {family: await cold(family) for family in ("gemma3_text", "llama")}
        async with (
            serving(tiny("gemma3_text"), None, "lanes.count=2", "lanes.batch=1") as window,
            serving(tiny("llama")) as plain,
        ):
            for _ in range(2):
                for number in range(4):
                    # Both lanes of the window model and the plain one work at the same time.
                    pair = (contents[number], contents[(number + 1) % 4])
                    asked = [window.talk(content, max_tokens=16) for content in pair]
                    first, second, other = await asyncio.gather(
                        *asked, plain.talk(contents[number], max_tokens=16)
                    )
                    assert first.text == expected["gemma3_text"][number]
                    assert second.text == expected["gemma3_text"][(number + 1) % 4]
                    assert other.text == expected["llama"][number]
            assert [lane["restarts"] for lane in await window.part("lanes")] == [0, 0]
            assert all(lane["decoded_tokens"] for lane in await window.part("lanes"))

    run(scenario())
