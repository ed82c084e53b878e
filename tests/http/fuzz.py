"""Mutated bodies over all POST routes: whatever comes, the server keeps answering and never fails.

``python -m tests.http.fuzz --count 10000 --seed 1``; ``test_fuzz`` sends a few hundred of them.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

from .fakes import FakeCache, FakeServing, chat, live

if TYPE_CHECKING:
    from .fakes import Live, Reply

    Path = list[str | int]

LANES = 16
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
HISTORY = [
    {"role": "system", "content": PARTS},
    {"role": "user", "content": "go", "name": "Ann"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "c1", "content": "x"},
    {"role": "user", "content": PARTS},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["a", "b"],
    "stop_token_ids": [1, 2],
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.5},
    "max_tokens": 3,
}
BLOCKS = [
    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "x"}]},
]
MESSAGES = {
    "model": "default",
    "max_tokens": 3,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]},
        {"role": "user", "content": BLOCKS},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "x"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
]
SEEDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": HISTORY, "tools": [TOOL], "tool_choice": "auto", **SAMPLING}),
    ("/v1/chat/completions", chat(stream=True, stream_options={"include_usage": True}, n=2, logprobs=True)),
    (
        "/v1/chat/completions",
        chat(response_format=FORM, reasoning_effort="low", chat_template_kwargs={"a": 1}),
    ),
    ("/v1/chat/completions", chat(structured_outputs={"choice": ["a", "b"]}, cache_salt="s", session_id="s")),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "echo": True, "logprobs": None, **SAMPLING}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "logprobs": 2, "stream": True, "best_of": 1}),
    ("/v1/responses", {"input": ITEMS, "instructions": "i", "store": False, "temperature": 0.5}),
    ("/v1/responses", {"input": "hi", "stream": True, "text": {"format": {"type": "text"}}, "metadata": {}}),
    ("/v1/messages", MESSAGES),
    ("/v1/messages", {**MESSAGES, "stream": True, "stop_sequences": ["a"], "temperature": 0.5}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES["messages"], "system": "s"}),
    ("/admin/cache/explain", chat(session_id="s")),
    ("/admin/cache/explain", {"prompt": "a"}),
    ("/admin/cache/flush", {"timeout_s": 1}),
    ("/admin/drain", {"timeout_s": 1.5}),
    ("/admin/sessions/close", {"session_id": "s"}),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**64, -(2**63), 0.5, -0.0, 1e-320, 1e308),
    *("", "a", "none", "auto", "\u0000\u2028\ufeff", "\U0001f600", "x" * 300, "<object>", "a" * 5_000),
    *([], {}, [[]], [None], [0] * 40, ["a"] * 40, {"": ""}, {"type": "text"}, {"type": "function"}, [{}] * 5),
)
RAW = (
    b"",
    b"null",
    b"[]",
    b'"a"',
    b"\xff",
    b'{"a":NaN}',
    b'{"a":"\\ud83d"}',
    b"[" * 2000,
    b"{} {}",
    b"\xef\xbb\xbf{}",
)


def mutated(chance: random.Random) -> tuple[str, bytes]:
    """Return a route and a body: a good one with a few of its places changed, now and then its bytes too."""
    path, seed = chance.choice(SEEDS)
    if chance.random() < 0.03:
        return path, chance.choice(RAW)
    body = copy.deepcopy(seed)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 8))):
        change(body, chance)
    data = json.dumps(body).encode()
    return path, cut(data, chance) if chance.random() < 0.1 else data


def change(body: dict[str, Any], chance: random.Random) -> None:
    """Change one place of a body."""
    parent, last = place(body, chance)
    match chance.randrange(5):
        case 0 if isinstance(parent, dict):
            parent.pop(last, None)
        case 1 if isinstance(parent, dict):
            parent[chance.choice(NAMES)] = copy.deepcopy(chance.choice(VALUES))
        case 2 if isinstance(parent, list):
            parent.extend(copy.deepcopy(parent[-1:]) * chance.choice((1, 1, 20, 300)))
        case 3:
            parent[last] = nested(parent.get(last) if isinstance(parent, dict) else parent[last], chance)
        case _:
            parent[last] = copy.deepcopy(chance.choice(VALUES))


def nested(value: Any, chance: random.Random) -> Any:
    """Return a value inside some lists or objects."""
    for _ in range(chance.choice((1, 2, 60))):
        value = chance.choice(([value], {"a": value}))
    return value


def cut(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with one place cut out, doubled or overwritten."""
    start, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    middle = chance.choice((b"", data[start:end] * 2, bytes(chance.randrange(256) for _ in range(3))))
    return data[:start] + middle + data[end:]


def place(body: dict[str, Any], chance: random.Random) -> tuple[Any, Any]:
    """Return a container inside a body, itself perhaps, and a key or index of it."""
    parent: Any = body
    last: Any = chance.choice([*body] or ["x"])
    while isinstance(inner := parent.get(last) if isinstance(parent, dict) else parent[last], (dict, list)):
        if not inner or chance.random() < 0.3:
            break
        parent, last = inner, chance.choice([*inner] if isinstance(inner, dict) else range(len(inner)))
    return parent, last


def names_in(value: Any) -> set[str]:
    """Return every name of a field."""
    if isinstance(value, dict):
        return set(value).union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


NAMES = sorted(set().union(*(names_in(seed) for _, seed in SEEDS)))


@dataclass
class Outcome:
    """How the server answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[tuple[str, bytes, int, bytes]] = field(default_factory=list)

    def note(self, path: str, data: bytes, reply: Reply) -> None:
        self.statuses[reply.status] += 1
        if reply.status >= 500 or (reply.status >= 400 and "message" not in reply.json()["error"]):
            self.failures.append((path, data, reply.status, reply.body))
        if b'"internal_error"' in reply.body:  # an event of a stream that had begun
            self.failures.append((path, data, reply.status, reply.body))


async def fuzz(server: Live, count: int, seed: int) -> Outcome:
    """Send ``count`` bodies, some at a time; the server must answer a good one after each hundred."""
    outcome, chance = Outcome(), random.Random(seed)
    for start in range(0, count, 100):
        bodies = [mutated(chance) for _ in range(min(100, count - start))]
        for first in range(0, len(bodies), LANES):
            await asyncio.gather(*(_send(server, outcome, *each) for each in bodies[first : first + LANES]))
        assert (await server.post(chat())).status == 200
    return outcome


async def _send(server: Live, outcome: Outcome, path: str, data: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    outcome.note(path, data, await server.send("POST", path, data=BytesIO(data), headers=headers))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    async def work() -> Outcome:
        async with live(FakeServing(), FakeCache()) as server:
            return await fuzz(server, given.count, given.seed)

    with asyncio.Runner() as runner:
        outcome = runner.run(work())
    sys.stdout.write(f"{given.count} bodies, seed {given.seed}: {dict(sorted(outcome.statuses.items()))}\n")
    for path, data, status, body in outcome.failures[:20]:
        sys.stdout.write(f"{status} {path} {data[:400]!r} -> {body[:300]!r}\n")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
