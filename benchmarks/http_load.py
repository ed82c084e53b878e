"""The client side of benchmarks/http.py: many SSE readers that count cheaply and check a sample fully.

Prints a line when every client has its first event, and the figures of the window after it as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import orjson

from benchmarks.http_server import WORDS, loop_factory

EVENT = b"data: "
FOREVER = 10_000_000
SAMPLE_TOKENS = 100
SAMPLED = 4


def request_bytes(max_tokens: int) -> bytes:
    body = {"messages": [{"role": "user", "content": "Say much."}], "stream": True, "max_tokens": max_tokens}
    data = orjson.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Reader(asyncio.Protocol):
    """One client. Counts events and notes when data came; a sampled one keeps, checks and repeats."""

    def __init__(self, load: Load, sampled: bool) -> None:
        self._load = load
        self._sampled = sampled
        self._edge = b""
        self._kept = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._last_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.WriteTransport", transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Count what came."""
        now_s = time.perf_counter()
        joined = self._edge + data
        events = joined.count(EVENT)
        self._edge = joined[-len(EVENT) + 1 :]
        if self._last_s and self._load.counting:
            self._load.gaps_s.append(now_s - self._last_s)
        elif not self._last_s and events:
            self._load.first_event()
        self._last_s = now_s if events else self._last_s
        self._load.events += events
        if self._sampled:
            self._kept += data
            if self._kept.endswith(b"\r\n0\r\n\r\n"):
                self._load.checked.append(check(bytes(self._kept)))
                self._kept.clear()
                self._ask()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Note a connection that the server closed."""
        if not self._load.over:
            self._load.lost += 1

    def close(self) -> None:
        """Drop the connection."""
        assert self._transport is not None
        self._transport.abort()

    def _ask(self) -> None:
        assert self._transport is not None
        self._transport.write(request_bytes(SAMPLE_TOKENS if self._sampled else FOREVER))


class Load:
    """All clients of one run."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.events = 0
        self.lost = 0
        self.gaps_s: list[float] = []
        self.checked: list[int] = []
        self.counting = False
        self.over = False
        self._begun = 0
        self._all_begun = asyncio.Event()

    def first_event(self) -> None:
        """Note that one more client has its first event."""
        self._begun += 1
        if self._begun == self.clients:
            self._all_begun.set()

    async def run(self, port: int, seconds: float) -> dict[str, object]:
        """Connect all clients, then count for ``seconds``."""
        loop = asyncio.get_running_loop()
        readers: list[Reader] = []
        sampled = min(SAMPLED, self.clients // 2)  # at least half of the clients stream on without a pause
        for index in range(self.clients):
            reader = Reader(self, index < sampled)
            await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)
            readers.append(reader)
        async with asyncio.timeout(10.0):
            await self._all_begun.wait()
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        before, start_s, self.counting = self.events, time.perf_counter(), True
        await asyncio.sleep(seconds)
        events, took_s, self.over = self.events - before, time.perf_counter() - start_s, True
        for reader in readers:
            reader.close()
        return self._figures(events, took_s)

    def _figures(self, events: int, took_s: float) -> dict[str, object]:
        gaps = sorted(self.gaps_s)
        assert gaps, "no data came in the window"
        return {
            "events_per_s": events / took_s,
            "gap_ms_p50": gaps[len(gaps) // 2] * 1e3,
            "gap_ms_p99": gaps[int(len(gaps) * 0.99)] * 1e3,
            "replies_checked": len(self.checked),
            "connections_lost": self.lost,
        }


def check(raw: bytes) -> int:
    """Check one whole reply, byte by byte, and return its number of chunks. Raises AssertionError."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head[:200]
    body = bytearray()
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            break
        body += rest[:length]
        rest = rest[length + 2 :]
    *events, done, nothing = body.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    first, *middle, last = [chunk["choices"][0] for chunk in chunks]
    assert first["delta"]["role"] == "assistant"
    assert last["finish_reason"] == "length"
    wanted = "".join(WORDS[index % len(WORDS)] for index in range(SAMPLE_TOKENS))
    assert "".join(choice["delta"]["content"] for choice in middle) == wanted
    return len(chunks)


def main(loop_name: str, port: int, clients: int, seconds: float) -> None:
    async def load() -> dict[str, object]:
        return await Load(clients).run(port, seconds)

    with asyncio.Runner(loop_factory=loop_factory(loop_name)) as runner:
        sys.stdout.write(orjson.dumps(runner.run(load())).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
