"""A server-sent event response that opens late, keeps itself alive and never ends in silence."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from aiohttp import ClientConnectionResetError, web

from .errors import error_event_for
from .exchange import EXCHANGE
from .replies.chunks import KEEP_ALIVE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from .errors import HttpError

_FAREWELL_S = 2.0
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """One SSE response.

    Nothing is sent, headers included, before the first ``write``, ``finish`` or keep-alive comment: until
    then the caller may still answer with a plain status. A write waits while a slow client's socket is
    full, so memory stays bounded. ``ended`` once ``finish`` has sent everything. Raises
    ClientConnectionResetError once the client is gone.

    ``failure_event`` makes the bytes that ``fail`` ends an open stream with: the route's error event, unless
    the route's reply sets its own, because its events are numbered or must be closed first.
    """

    __slots__ = (
        "_keep_alive_s",
        "_loop",
        "_over",
        "_poked",
        "_request",
        "_writing",
        "_wrote_s",
        "ended",
        "failure_event",
        "opened",
        "response",
    )

    def __init__(self, request: web.Request, keep_alive_s: float) -> None:
        self._request = request
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._wrote_s = self._loop.time()
        self._writing = False
        self._over = False
        self._poked = asyncio.Event()
        self.response = web.StreamResponse(headers=_HEADERS)
        self.opened = False
        self.ended = False
        self.failure_event: Callable[[HttpError], bytes] = self._event_of_route

    async def write(self, data: bytes) -> None:
        """Send some whole events."""
        if not self.opened:
            await self._open()
        self._wrote_s = self._loop.time()
        self._writing = True
        await self.response.write(data)
        self._writing = False

    async def finish(self, data: bytes) -> None:
        """Send the last events and end the response."""
        self._over = True
        if not self.opened:
            await self._open()
        transport = self._request.transport
        # The write comes before the first wait, so a client that is still there now gets everything, even
        # if it hangs up while its socket drains.
        self.ended = transport is not None and not transport.is_closing()
        await self.response.write_eof(data)

    async def fail(self, error: HttpError) -> None:
        """End an open stream with an error event; waits at most two seconds.

        The connection stays usable: closing it would race with the next request of a client that pools it.
        """
        self._over = True
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self.response.write_eof(self.failure_event(error))
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
        except ClientConnectionResetError:
            pass  # nobody is left to be told

    def probe(self) -> None:
        """Send a comment now, so that it shows whether the client is still there."""
        self._poked.set()

    @asynccontextmanager
    async def kept_alive(self) -> AsyncGenerator[None]:
        """Send comments whenever nothing else was sent for ``keep_alive_s``."""
        task = self._loop.create_task(self._comment_on_silence())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _event_of_route(self, error: HttpError) -> bytes:
        return error_event_for(self._request.path, error, self._request[EXCHANGE].id)

    async def _open(self) -> None:
        self.opened = True
        await self.response.prepare(self._request)

    async def _comment_on_silence(self) -> None:
        while not self._over:
            silent_s = self._loop.time() - self._wrote_s
            if silent_s < self._keep_alive_s and not self._poked.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._keep_alive_s - silent_s):
                        await self._poked.wait()
                continue
            self._poked.clear()
            if self._writing:  # the client is the slow one, and its buffer must not grow
                self._wrote_s = self._loop.time()
                continue
            try:
                await self.write(KEEP_ALIVE)
            except ClientConnectionResetError:
                return  # the handler learns of it by its own cancellation
