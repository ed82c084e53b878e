"""A server over fakes on a loop of its own, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvloop

from .fakes import live

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .fakes import FakeCache, FakeServing

_LIMIT_S = 15.0


@contextmanager
def served(
    serving: FakeServing | None = None, cache: FakeCache | None = None, **options: Any
) -> Iterator[str]:
    """Serve on a thread; yields the URL."""
    url: Future[str] = Future()
    stop: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def work() -> None:
        ended = asyncio.Event()
        async with live(serving, cache, **options) as server:
            stop.set_result((asyncio.get_running_loop(), ended))
            url.set_result(f"http://127.0.0.1:{server.server.port}")
            await ended.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work())

    thread = threading.Thread(target=run, name="served")
    thread.start()
    try:
        yield url.result(_LIMIT_S)
    finally:
        loop, ended = stop.result(_LIMIT_S)
        loop.call_soon_threadsafe(ended.set)
        thread.join(_LIMIT_S)
        assert not thread.is_alive()
