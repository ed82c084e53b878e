"""What one client that hardly reads and many that do nothing cost the others.

    python -m benchmarks.slow_reader [--json PATH] [--seconds 2] [--rounds 6]

One server process over the real actor tree with a paced engine (benchmarks/http_tree.py), one load process,
on loopback. Streams run all the time. Each round has a window with them alone and one beside a reader of one
byte a second and 200 idle keep-alive connections, in alternating order; its ratio is that of the text that
the streams received. Goal: within 5 %. Takes about 30 seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import statistics
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from benchmarks.http import Child, about
from benchmarks.http_load import FOREVER, request_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

STREAMS = 32
STEPS_PER_S = 50.0
IDLE = 200
GOAL = 0.05
CONTENT = re.compile(rb'"content":"((?:[^"\\]|\\.)+)"')
_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Streams:
    """The streams that matter: how much text they received, and the gaps between."""

    def __init__(self) -> None:
        self.characters = 0
        self.gaps_s: list[float] = []
        self._begun = 0
        self.all_begun = asyncio.Event()

    async def read(self, port: int) -> None:
        """Read one stream for ever. What came between two line ends is one event."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(FOREVER))
        last_s = 0.0
        try:
            while line := await reader.readline():
                found = CONTENT.search(line)
                if found is None:
                    continue
                now_s = time.perf_counter()
                self.characters += len(found[1])
                if last_s:
                    self.gaps_s.append(now_s - last_s)
                else:
                    self._note_first()
                last_s = now_s
        finally:
            writer.transport.abort()
        raise SystemExit("a stream has ended")

    def _note_first(self) -> None:
        self._begun += 1
        if self._begun == STREAMS:
            self.all_begun.set()

    async def window(self, seconds: float) -> dict[str, float]:
        """Count for a while."""
        before, start_s = self.characters, time.perf_counter()
        self.gaps_s.clear()
        await asyncio.sleep(seconds)
        took_s, gaps = time.perf_counter() - start_s, sorted(self.gaps_s)
        return {
            "characters_per_s": (self.characters - before) / took_s,
            "gap_ms_p99": gaps[int(len(gaps) * 0.99)] * 1e3,
        }


async def read_slowly(port: int) -> None:
    """Ask for an endless stream and read a byte of it every second, with as small a buffer as there is."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, request_bytes(FOREVER))
        while await loop.sock_recv(sock, 1):  # noqa: ASYNC110 - this is how slow it is
            await asyncio.sleep(1.0)


async def stay_idle(port: int) -> asyncio.StreamWriter:
    """Return a connection that has had one answer and is kept alive."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_HEALTH)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return writer


@asynccontextmanager
async def company(port: int) -> AsyncGenerator[None]:
    """The slow reader and the idle connections, for as long as the context lasts."""
    slow = asyncio.ensure_future(read_slowly(port))
    idle = [await stay_idle(port) for _ in range(IDLE)]
    await asyncio.sleep(0.5)  # until the slow one's buffers are full
    try:
        assert not slow.done(), "the slow reader was cut off"
        yield
        assert not slow.done(), "the slow reader was cut off"
    finally:
        slow.cancel()
        with suppress(asyncio.CancelledError):
            await slow
        for writer in idle:
            writer.close()


async def compare(port: int, rounds: int, seconds: float) -> list[dict[str, float]]:
    """Return what each round gave."""
    streams = Streams()
    tasks = [asyncio.ensure_future(streams.read(port)) for _ in range(STREAMS)]
    await streams.all_begun.wait()
    found: list[dict[str, float]] = []
    for number in range(rounds):
        windows: dict[bool, dict[str, float]] = {}
        for beside in (False, True) if number % 2 else (True, False):
            if beside:
                async with company(port):
                    windows[True] = await streams.window(seconds)
            else:
                windows[False] = await streams.window(seconds)
        ratio = windows[True]["characters_per_s"] / windows[False]["characters_per_s"]
        names = {False: "alone", True: "beside"}
        figures = {f"{names[b]}_{key}": value for b, each in windows.items() for key, value in each.items()}
        found.append({"ratio": ratio, **figures})
    assert not any(task.done() for task in tasks), "a stream has ended"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0.5)  # until the server knows that nobody listens
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.slow_reader", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    facts = about()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    serving = ("uvloop", "benchmarks.http_tree:over_tree", str(STEPS_PER_S))
    server = Child.start(cores[0] if len(cores) > 1 else None, "benchmarks.http_server", *serving)
    try:
        if len(cores) > 1:
            os.sched_setaffinity(0, {cores[-1]})
        rounds = asyncio.run(compare(int(server.line()), options.rounds, options.seconds))
    finally:
        server.end()
    for each in rounds:
        print("  ".join(f"{key} {value:,.3f}" for key, value in each.items()))
    ratio = statistics.median(each["ratio"] for each in rounds)
    print(f"median ratio {ratio:.4f}: {'within' if abs(ratio - 1) <= GOAL else 'NOT within'} {GOAL:.0%}")
    if options.json:
        asked = {"streams": STREAMS, "steps_per_s": STEPS_PER_S, "idle": IDLE, "goal": GOAL}
        results = asked | {"median_ratio": ratio, "rounds": rounds}
        options.json.write_bytes(orjson.dumps(facts | {"results": results}, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
