"""The server side of benchmarks/http.py: HttpServer over a fake engine, in a process of its own.

Talks to its parent in lines: prints its port, then answers every line read with the figures since the
line before, as JSON. Ends when its input ends.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import orjson
from samovar.actors.requests import Admission, Admitted, GenerationRequest
from samovar.actors.stream import RequestStream
from samovar.runtime.engine.port import Cancelled, Delta, Finished, ModelInfo
from samovar.runtime.http.options import HttpOptions
from samovar.runtime.http.server import HttpServer
from samovar.runtime.http.serving import Readiness, RequestRecord, Serving

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    # Takes the steps a second (0 = as fast as possible); what it serves counts tokens in stats()["tokens"].
    Factory = Callable[[float], AbstractAsyncContextManager[Serving]]

WORDS = (" the", " cat", " sat", " on", " a", " mat", ",", " and", ' "purred"', "\n")
INFO = ModelInfo("fake", 1 << 24, 50_000, "none", 0.0, 0)
LAG_PERIOD_S = 0.002


class FakeServing:
    """Steps every stream at once: one token and one event per stream and step."""

    def __init__(self) -> None:
        self._left: dict[RequestStream, int] = {}
        self._arrived = asyncio.Event()
        self.tokens = 0
        self.steps = 0

    def model(self) -> ModelInfo:
        """Return a model without limits."""
        return INFO

    def aliases(self) -> Sequence[str]:
        """Return no aliases."""
        return ()

    async def submit(self, request: GenerationRequest) -> Admission:
        """Admit everything."""

        def cancel(_: str) -> None:
            self._left.pop(stream, None)
            stream.push(Cancelled(request.id))

        stream = RequestStream(request.id, cancel)
        self._left[stream] = request.max_tokens or 16
        self._arrived.set()
        return Admitted(stream, 8)

    def readiness(self) -> Readiness:
        """Be ready."""
        return Readiness(ready=True)

    async def stats(self) -> Mapping[str, object]:
        """Return the tokens and steps so far."""
        return {"tokens": self.tokens, "steps": self.steps}

    def tree(self) -> Sequence[Mapping[str, object]]:
        """Return no actors."""
        return []

    def crash(self, path: str) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False: there are no actors."""
        return False

    async def run(self, steps_per_s: float) -> None:
        """Return False: there are no actors."""
        """Step for ever, at a fixed rate or, with 0, whenever every consumer has had its turn."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            if not self._left:
                self._arrived.clear()
                await self._arrived.wait()
                due_s = loop.time()
            self._step()
            due_s += 1 / steps_per_s if steps_per_s else 0.0
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    def _step(self) -> None:
        self.steps += 1
        self.tokens += len(self._left)
        for stream, left in list(self._left.items()):
            stream.push(Delta(stream.id, WORDS[stream.emitted_tokens % len(WORDS)], (stream.emitted_tokens,)))
            if left > 1:
                self._left[stream] = left - 1
                continue
            del self._left[stream]
            stream.push(Finished(stream.id, "length", "", 8, stream.emitted_tokens, 0.0, 0.0))


@asynccontextmanager
async def fake_serving(steps_per_s: float) -> AsyncGenerator[Serving]:
    """The default factory."""
    serving = FakeServing()
    stepping = asyncio.ensure_future(serving.run(steps_per_s))
    try:
        yield serving
    finally:
        stepping.cancel()
        await asyncio.wait([stepping])


class NoLog:
    """A request log that nobody reads."""

    def request_ended(self, record: RequestRecord) -> None:
        """Complain about failures; forget the rest."""
        if record.status >= 500:
            sys.stderr.write(f"request failed: {record}\n")


class LoopLag:
    """How late a timer fires, sampled every two milliseconds."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late_s: list[float] = []
        self._due_s = 0.0
        self._wait()

    def _fire(self) -> None:
        self._late_s.append(time.perf_counter() - self._due_s)
        self._wait()

    def _wait(self) -> None:
        self._due_s = time.perf_counter() + LAG_PERIOD_S
        self._loop.call_later(LAG_PERIOD_S, self._fire)

    def take(self) -> dict[str, float]:
        """Return the figures since the last call."""
        late, self._late_s = sorted(self._late_s), []
        p99, worst = (late[int(len(late) * 0.99)], late[-1]) if late else (0.0, 0.0)
        return {"lag_ms_p99": p99 * 1e3, "lag_ms_max": worst * 1e3}


async def serve(factory: Factory, steps_per_s: float) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with factory(steps_per_s) as serving:
        server = HttpServer(serving, HttpOptions(port=0), NoLog())
        await server.start()
        settle_memory()
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        lag = LoopLag()
        while await lines.readline():
            own = {"cpu_s": sum(os.times()[:2]), "wait_s": run_queue_wait_s(), "now_s": time.perf_counter()}
            figures = {**await serving.stats(), **lag.take(), **own}
            sys.stdout.write(orjson.dumps(figures).decode() + "\n")
            sys.stdout.flush()
        await server.close(0.0)


def run_queue_wait_s() -> float:
    """Return how long this thread was ready to run and had no core: what other processes took from it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0  # not Linux


def settle_memory() -> None:
    """Keep the cycle collector off everything that lives as long as the process.

    Each full collection walks all of it: 85 to 100 ms here, which stops every stream.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def main(loop_name: str, factory_name: str, steps_per_s: float) -> None:
    module, _, name = factory_name.partition(":")
    factory = cast("Factory", getattr(importlib.import_module(module), name))
    with asyncio.Runner(loop_factory=loop_factory(loop_name)) as runner:
        runner.run(serve(factory, steps_per_s))


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the maker of a named event loop."""
    return importlib.import_module("uvloop").new_event_loop if name == "uvloop" else None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
