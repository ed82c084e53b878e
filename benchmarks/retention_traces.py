"""Recorded prompts as paths in a trie: what trace replay (``benchmarks/retention.py``) reads.

The traces name blocks of a prompt, not its tokens. Each block becomes a node of a trie, by (parent, block id,
tokens in it), numbered in order of appearance; every token of the block gets the node's number as its id. So
two prompts share exactly the tokens that the trace says they share: equal blocks behind equal prefixes are
equal ids, anything else differs from its first token on. Files are read line by line; what stays in memory is
one int32 a block of each chosen request, and the trie.

Replies are in the traces only where a later prompt contains them. Nobody, the bounds included, gets them
earlier.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from samovar.storage.tokens import TokenIds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

DECODE_TPS: Final = 50.0
START_GAP_S: Final = 60.0
TOOL_S, PERSON_S = 2.0, 20.0
WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
WORD_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: its blocks as nodes, root first. ``reply_tokens`` says how long it holds its row."""

    at_s: float
    nodes: np.ndarray
    reply_tokens: int


@dataclass(slots=True)
class Trace:
    """Requests in order of arrival.

    ``sizes``: tokens of each node; ``lengths``: the same as an array. ``note``: what was left out or assumed.
    """

    name: str
    note: str
    block: int
    requests: list[Request] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _edges: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def path(self, blocks: Iterable[tuple[int, int]], parent: int = -1) -> list[int]:
        """Return the nodes of (block id, tokens) pairs beneath ``parent``."""
        nodes: list[int] = []
        for block, size in blocks:
            known = self._edges.get((parent, block, size))
            if known is None:
                known = self._edges[parent, block, size] = len(self.sizes)
                self.sizes.append(size)
            nodes.append(known)
            parent = known
        return nodes

    def add(self, at_s: float, nodes: list[int], reply_tokens: int) -> None:
        """Note a request."""
        self.requests.append(Request(at_s, np.array(nodes, dtype=np.int32), reply_tokens))

    def close(self) -> Trace:
        """Put the requests in order and forget what only reading needs."""
        self.requests.sort(key=lambda request: request.at_s)
        self._edges.clear()
        self.lengths = np.array(self.sizes, dtype=np.int64)
        return self

    def tokens_of(self, request: Request) -> TokenIds:
        """Return the prompt as token ids."""
        nodes = request.nodes.astype("<u4")
        return TokenIds(np.repeat(nodes, self.lengths[request.nodes]))

    @property
    def unique_tokens(self) -> int:
        """Tokens of all distinct prefixes: what a cache that forgets nothing and repeats nothing holds."""
        return sum(self.sizes)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(int(self.lengths[request.nodes].sum()) for request in self.requests)


def _lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for line in file:
            yield orjson.loads(line)


def _split(blocks: list[int], tokens: int, block: int) -> Iterator[tuple[int, int]]:
    for place, name in enumerate(blocks):
        yield name, min(block, tokens - place * block)


def mooncake(folder: Path, name: str, limit: int) -> Trace:
    """Read a Mooncake trace, or its first ``limit`` requests; its last blocks may be partial."""
    trace = Trace(f"mooncake {name}", f"first {limit} requests" if limit else "whole", 512)
    for count, line in enumerate(_lines(folder / f"mooncake/{name}_trace.jsonl")):
        if limit and count >= limit:
            break
        nodes = trace.path(_split(line["hash_ids"], line["input_length"], 512))
        trace.add(line["timestamp"] / 1000, nodes, line["output_length"])
    return trace.close()


def claude(folder: Path, sessions: int) -> Trace:
    """Read every n-th Claude Code session, ``sessions`` in all, one beginning a minute after the other.

    Sessions of equal tool and system sizes are taken to share those tokens (an assumption of the data set's
    reader too); otherwise ids are a session's own. Tokens behind the last whole block have no id and are left
    out.
    """
    path = folder / "claude_code_kvct/all.jsonl"
    total = sum(1 for _ in _lines(path))
    stride = max(1, total // sessions)
    trace = Trace("claude code", f"{min(sessions, total)} of {total} sessions, every {stride}th", 64)
    for count, line in enumerate(_lines(path)):
        if count % stride == 0 and count // stride < sessions:
            _claude_session(trace, line, count, count // stride * START_GAP_S)
    return trace.close()


def _claude_session(trace: Trace, line: dict[str, Any], number: int, start_s: float) -> None:
    tools, system = line["tool_tokens"] or 0, line["system_tokens"] or 0
    shared = (tools + system) // line["block_size"]
    common = -1 - zlib.crc32(f"{tools} {system}".encode())

    def name(place: int, block: int, *, main: bool) -> int:
        return common * 100_000 - place if main and place < shared else (number << 32) | block

    def walk(requests: list[dict[str, Any]], *, main: bool) -> None:
        nodes: list[int] = []
        for request in requests:
            if "requests" in request:
                walk(request["requests"], main=False)
                continue
            del nodes[request["keep"] :]
            new = [block for first, length in request["new"] for block in range(first, first + length)]
            named = [(name(len(nodes) + place, block, main=main), 64) for place, block in enumerate(new)]
            nodes += trace.path(named, nodes[-1] if nodes else -1)
            if nodes:
                trace.add(start_s + request["t"], nodes, request["out"])

    walk(line["requests"], main=True)


def agentic(folder: Path) -> Trace:
    """Read the synthetic agent sessions; their turns are increments, each of whole and one partial block."""
    trace = Trace("agentic synth", "whole; a session starts each minute", 512)
    now_s, nodes, last, starts = 0.0, list[int](), None, 0
    for line in _lines(folder / "agentic_synth/agentic_code_40s_seed7.jsonl"):
        if line["session_id"] != last:
            last, nodes, now_s, starts = line["session_id"], [], starts * START_GAP_S, starts + 1
        now_s += (line.get("delay") or 0.0) / 1000
        blocks = _split(line["hash_ids"], line["input_length"], 512)
        nodes += trace.path(blocks, nodes[-1] if nodes else -1)
        trace.add(now_s, nodes, line["output_length"])
        now_s += line["output_length"] / DECODE_TPS
    return trace.close()


def tau(folder: Path) -> Trace:
    """Read tau-bench's conversations: a request for each reply of the agent, of all text before it.

    Words, spaces and signs stand for tokens, 16 of them for a block; tools answer after 2 s, people after 20.
    """
    trace = Trace("tau-bench", "whole; a token is a word; a conversation starts each minute", WORD_BLOCK)
    for count, line in enumerate(_lines(folder / "agent/taubench_airline_gpt4o.jsonl")):
        now_s, words = count * START_GAP_S, list[str]()
        for message in line["messages"]:
            text = orjson.dumps(message, option=orjson.OPT_SORT_KEYS).decode()
            said = WORDS.findall(text)
            if message["role"] == "assistant":
                trace.add(now_s, trace.path(_word_blocks(words)), len(said))
                now_s += len(said) / DECODE_TPS
            else:
                now_s += TOOL_S if message["role"] == "tool" else PERSON_S
            words += said
    return trace.close()


def _word_blocks(words: list[str]) -> Iterator[tuple[int, int]]:
    for start in range(0, len(words), WORD_BLOCK):
        part = words[start : start + WORD_BLOCK]
        yield zlib.crc32("\0".join(part).encode()), len(part)


def traces(folder: Path, *, sessions: int, limit: int) -> dict[str, Callable[[], Trace]]:
    """Return what can be read, by name."""
    return {
        "claude": lambda: claude(folder, sessions),
        "conversation": lambda: mooncake(folder, "conversation", limit),
        "synthetic": lambda: mooncake(folder, "synthetic", limit),
        "agentic": lambda: agentic(folder),
        "tau": lambda: tau(folder),
    }
