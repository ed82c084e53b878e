"""The outermost middleware: every request gets an id, a time limit, one well-formed answer and one record.

This is the HTTP boundary of the house rules: the only place that catches ``Exception``. A failure before
the first byte becomes a status with an error envelope; one after it becomes an error event in the stream.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import ClientConnectionResetError, web

from ..kernel.errors import ActorGone, AskError
from ..logs import request_context
from .errors import HttpError, envelope_for, internal, timed_out
from .exchange import EXCHANGE, Exchange, fresh_id, request_id
from .serving import RequestRecord

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

    from .serving import RequestLog

CLIENT_CLOSED_REQUEST = 499


class Boundary:
    """Wraps every handler. ``active`` holds the exchanges whose handlers are running. Loop thread only."""

    def __init__(self, log: RequestLog, request_timeout_s: float | None) -> None:
        self._log = log
        self._timeout_s = request_timeout_s
        self._idle = asyncio.Event()
        self._idle.set()
        self.active: set[Exchange] = set()

    async def idle_within(self, limit_s: float) -> bool:
        """Wait until no handler is running; False when some still are after ``limit_s``."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def unreadable(self, error: HttpError) -> web.Response:
        """Answer and record what could not be read as a request: it has no path and reaches no middleware."""
        known = fresh_id()
        record = RequestRecord(
            request_id=known,
            generation_id=None,
            method="-",
            path="-",
            status=error.status,
            duration_ms=0.0,
            error_code=error.code,
        )
        self._log.request_ended(record)
        headers = {**error.headers, "Server": "samovar", "x-request-id": known}
        return web.Response(
            status=error.status, headers=headers, body=error.envelope(), content_type="application/json"
        )

    def middleware(self) -> Middleware:
        """Return the aiohttp middleware."""

        @web.middleware
        async def boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
            known = request_id(request.headers)
            with request_context(known):
                return await self._answer(request, handler, known)

        return boundary

    async def _answer(self, request: web.Request, handler: Handler, known: str) -> web.StreamResponse:
        now_s = asyncio.get_running_loop().time()
        limit = asyncio.timeout(self._timeout_s)
        exchange = Exchange(known, now_s, limit)
        request[EXCHANGE] = exchange
        self.active.add(exchange)
        self._idle.clear()
        status, error, cause = CLIENT_CLOSED_REQUEST, None, None
        try:
            try:
                async with exchange.timeout:
                    response = await handler(request)
            except Exception as caught:  # noqa: BLE001 - the HTTP boundary
                error, cause = self._explain(caught, exchange)
                status = error.status
                response = await _render(error, exchange, request.path)
            else:
                status = response.status
        except (asyncio.CancelledError, ClientConnectionResetError):
            if exchange.events is not None and exchange.events.ended:
                status = exchange.events.response.status  # it had everything when it left
            elif exchange.stopped is not None:
                status, error = exchange.stopped.status, exchange.stopped
            raise
        finally:
            self.active.discard(exchange)
            if not self.active:
                self._idle.set()
            self._log.request_ended(exchange.record(request, status, error, cause))
        return response

    def _explain(self, caught: Exception, exchange: Exchange) -> tuple[HttpError, Exception | None]:
        """Return what the client is told and, for the log, a cause that nobody expected."""
        match caught:
            case HttpError():
                return caught, None
            case web.HTTPException():
                return _from_aiohttp(caught), None
            case web.RequestPayloadError():
                return HttpError(400, "invalid_body", "The body does not match its headers' encoding."), None
            case ClientConnectionResetError():
                raise caught  # the client left while it was being written to
            case TimeoutError() if exchange.timeout.expired():
                return exchange.stopped or timed_out(self._timeout_s), None
            case AskError() if caught.retryable or isinstance(caught, ActorGone):
                # A part that is gone restarts with one that crashed, or is shutting down.
                message = "A part of the server is restarting or too busy."
                return HttpError(503, caught.code, message, retry_after_s=1.0), caught
            case _:
                return internal(exchange.id), caught


async def _render(error: HttpError, exchange: Exchange, path: str) -> web.StreamResponse:
    events = exchange.events
    if events is not None and events.opened:
        await events.fail(error)
        return events.response
    body = envelope_for(path, error, exchange.id)
    return web.Response(
        status=error.status, headers=error.headers, body=body, content_type="application/json"
    )


def _from_aiohttp(caught: web.HTTPException) -> HttpError:
    """Return the envelope's version of what aiohttp's router or reader refused."""
    match caught:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(caught.allowed_methods))
            message = f"{caught.method} is not allowed here; use {allowed}."
            return HttpError(405, "method_not_allowed", message, headers={"Allow": allowed})
        case web.HTTPNotFound():
            message = "There is no such route. The API's routes begin with /v1 and have no trailing slash."
            return HttpError(404, "not_found", message)
        case _:
            return HttpError(caught.status, "http_error", caught.reason)
