"""The listening server: routes, middlewares, headers of every reply, and an ordered end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from ..metrics import Metrics
from .access import Access
from .boundary import Boundary
from .errors import HttpError, is_anthropic
from .exchange import EXCHANGE, fresh_id
from .expectations import with_expectations
from .guard import cors_headers, guard_middleware
from .listening import Connection, HttpBindError, Listener
from .responses.store import ResponseStore
from .routes.answering import Answering
from .routes.anthropic import AnthropicRoutes
from .routes.cache import CacheRoutes
from .routes.chat import ChatRoutes
from .routes.completions import CompletionRoutes
from .routes.openapi import OpenApiRoutes
from .routes.responses import ResponsesRoutes
from .routes.state import StateRoutes

if TYPE_CHECKING:
    from .cache_serving import CacheServing
    from .options import HttpOptions
    from .serving import RequestLog, RequestRecord, Serving

__all__ = ["HttpBindError", "HttpServer"]

_FAREWELL_S = 1.0
_FORCED_S = 1.0
_TURNS = 2
"""Of the loop, until a request that has arrived has its handler: one wakes its connection, one starts it."""


class _Counted:
    """A request log that also counts."""

    def __init__(self, log: RequestLog, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics

    def request_ended(self, record: RequestRecord) -> None:
        self._metrics.request_ended(record)
        self._log.request_ended(record)


class HttpServer:
    """Serves a ``Serving`` over HTTP until closed. One start and one close; loop thread only.

    Holds no signal handlers and no loop of its own. ``start`` returns with the socket listening. ``metrics``,
    ``access`` and ``responses`` should outlive it, so that counters, replaced rules and stored responses
    survive a restart.
    """

    def __init__(
        self,
        serving: Serving,
        options: HttpOptions,
        log: RequestLog,
        *,
        cache: CacheServing | None = None,
        metrics: Metrics | None = None,
        access: Access | None = None,
        responses: ResponseStore | None = None,
    ) -> None:
        self._options = options
        self._access = Access(options) if access is None else access
        self._metrics = Metrics() if metrics is None else metrics
        self._responses = ResponseStore() if responses is None else responses
        self._boundary = Boundary(_Counted(log, self._metrics), options.request_timeout_s)
        self._runner = web.AppRunner(
            self._application(serving, cache), handler_cancellation=True, shutdown_timeout=_FORCED_S
        )
        self._listener = Listener(options, self._connect)
        self._closing = False

    @property
    def port(self) -> int | None:
        """The TCP port; the real one when 0 was configured. None while not listening, or on a Unix socket."""
        return self._listener.port

    @property
    def address(self) -> str:
        """Where the server listens: a URL, or the path of the Unix socket."""
        if self._options.unix_socket is not None:
            return str(self._options.unix_socket)
        host = self._options.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def active(self) -> int:
        """How many requests are being answered."""
        return len(self._boundary.active)

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        server = self._runner.server
        return [] if server is None else [one for one in server.connections if isinstance(one, Connection)]

    async def start(self) -> None:
        """Bind and listen. Raises HttpBindError."""
        options = self._options
        if not (options.loopback_only or options.api_keys or options.allow_unauthenticated):
            message = f"server.host: {options.host} is reachable from elsewhere; set server.api_keys"
            raise HttpBindError(f"{message} or server.allow_unauthenticated")
        await self._runner.setup()
        try:
            await self._listener.open()
        except HttpBindError:
            await self._runner.cleanup()
            raise

    async def stop_accepting(self) -> None:
        """Close the listening socket; open connections go on. Idempotent."""
        self._listener.close()

    def close_idle(self, *, new: bool = False) -> None:
        """Close connections that wait for another request; busy ones after their present answer.

        Those whose next request is on its way, the first above all, are closed with ``new`` alone, and
        further ones are taken: each gets an answer, and is closed after it.
        """
        self._closing = True
        for exchange in self._boundary.active:
            if exchange.events is not None:
                exchange.events.response.force_close()  # too late for its headers
        for connection in self.connections:
            if connection.between or (new and connection.idle):
                connection.force_close()

    async def end_requests(self) -> None:
        """Tell every running request that the server is shutting down, by status or error event.

        Returns when all have ended, or after a second; what still runs then goes on.
        """
        for exchange in list(self._boundary.active):
            exchange.stop(HttpError(503, "shutting_down", "The server is shutting down.", retry_after_s=5.0))
        await self._boundary.idle_within(_FAREWELL_S)

    async def close(self, grace_s: float) -> None:
        """End everything within about ``grace_s`` + 3 seconds. Idempotent.

        Idle connections close at once. Running requests have ``grace_s`` to finish; then each is told that
        the server is shutting down, by status or error event; what still runs a second later is cancelled.
        """
        await self.stop_accepting()
        if self._runner.server is None:
            return
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.close_idle(new=True)
        if not await self._boundary.idle_within(grace_s):
            await self.end_requests()
        await self._runner.cleanup()

    def _application(self, serving: Serving, cache: CacheServing | None) -> web.Application:
        options = self._options
        app = web.Application(
            middlewares=[self._boundary.middleware(), guard_middleware(options, self._access)],
            client_max_size=options.max_body_bytes,
        )
        answering = Answering(serving, options, self._metrics)
        routes = [
            *ChatRoutes(answering).routes(),
            *CompletionRoutes(answering).routes(),
            *ResponsesRoutes(answering, self._responses).routes(),
            *AnthropicRoutes(answering).routes(),
            *StateRoutes(serving, options, self._metrics, self._responses).routes(),
            *CacheRoutes(serving, cache, options).routes(),
        ]
        app.add_routes(with_expectations([*routes, *OpenApiRoutes(routes).routes()]))
        app.on_response_prepare.append(self._add_headers)
        return app

    async def _add_headers(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        exchange = request.get(EXCHANGE)  # none where aiohttp answers before all middlewares
        request_id = fresh_id() if exchange is None else exchange.id
        response.headers["Server"] = "samovar"
        response.headers["x-request-id"] = request_id
        if is_anthropic(request.path):
            response.headers["request-id"] = request_id
        response.headers.update(cors_headers(request, self._access.rules))
        if self._closing:
            response.force_close()
            response.headers["Connection"] = "close"

    def _connect(self) -> Connection:
        assert self._runner.server is not None
        return Connection(self._runner.server, self._boundary.unreadable)
