"""The listening server: routes, middlewares, binding, and an ordered end."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

from aiohttp import web

from ..metrics import Metrics
from .boundary import Boundary
from .errors import HttpError
from .exchange import EXCHANGE
from .guard import cors_headers, guard_middleware
from .routes.cache import CacheRoutes
from .routes.chat import ChatRoutes
from .routes.state import StateRoutes

if TYPE_CHECKING:
    from pathlib import Path

    from .cache_serving import CacheServing
    from .options import HttpOptions
    from .serving import RequestLog, RequestRecord, Serving

_BACKLOG = 1024
_FAREWELL_S = 1.0
_FORCED_S = 0.5
_SOCKET_MODE = 0o600


class HttpBindError(Exception):
    """The server cannot listen as configured. The message names the setting and the address."""

    code = "http_bind"
    retryable = False


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

    Holds no signal handlers and no loop of its own. ``start`` returns with the socket listening. ``metrics``
    should outlive it, so that counters survive a restart.
    """

    def __init__(
        self,
        serving: Serving,
        options: HttpOptions,
        log: RequestLog,
        *,
        cache: CacheServing | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._options = options
        self._metrics = Metrics() if metrics is None else metrics
        self._boundary = Boundary(_Counted(log, self._metrics), options.request_timeout_s)
        self._runner = web.AppRunner(
            self._application(serving, cache),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_FORCED_S,
        )
        self._site: web.BaseSite | None = None

    @property
    def port(self) -> int | None:
        """The TCP port; the real one when 0 was configured. None while not listening, or on a Unix socket."""
        addresses = self._runner.addresses
        if self._options.unix_socket is not None or not addresses:
            return None
        return int(addresses[0][1])

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

    async def start(self) -> None:
        """Bind and listen. Raises HttpBindError."""
        options = self._options
        if not (options.loopback_only or options.api_keys or options.allow_unauthenticated):
            message = f"server.host: {options.host} is reachable from elsewhere; set server.api_keys"
            raise HttpBindError(f"{message} or server.allow_unauthenticated")
        await self._runner.setup()
        try:
            self._site = self._make_site()
            await self._site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise _bind_error(error, options) from error
        except HttpBindError:
            await self._runner.cleanup()
            raise

    async def stop_accepting(self) -> None:
        """Close the listening socket; open connections go on. Idempotent."""
        if self._site is not None:
            site, self._site = self._site, None
            await site.stop()
            if self._options.unix_socket is not None:
                self._options.unix_socket.unlink(missing_ok=True)

    async def close(self, grace_s: float) -> None:
        """End everything within about ``grace_s`` + 2 seconds. Idempotent.

        Idle connections close at once. Running requests have ``grace_s`` to finish; then each is told that
        the server is shutting down, by status or error event; what still runs a second later is cancelled.
        """
        await self.stop_accepting()
        server = self._runner.server
        if server is None:
            return
        await asyncio.sleep(0)  # requests that have just arrived get their handlers first
        self._close_idle(server)
        if not await self._boundary.idle_within(grace_s):
            for exchange in list(self._boundary.active):
                exchange.stop(
                    HttpError(503, "shutting_down", "The server is shutting down.", retry_after_s=5.0)
                )
            await self._boundary.idle_within(_FAREWELL_S)
        await self._runner.cleanup()

    def _application(self, serving: Serving, cache: CacheServing | None) -> web.Application:
        options = self._options
        app = web.Application(
            middlewares=[self._boundary.middleware(), guard_middleware(options)],
            client_max_size=options.max_body_bytes,
        )
        app.add_routes(ChatRoutes(serving, options, self._metrics).routes())
        app.add_routes(StateRoutes(serving, options, self._metrics).routes())
        app.add_routes(CacheRoutes(serving, cache, options).routes())
        app.on_response_prepare.append(self._add_headers)
        return app

    async def _add_headers(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        response.headers["Server"] = "samovar"
        response.headers["x-request-id"] = request[EXCHANGE].id
        response.headers.update(cors_headers(request, self._options))

    def _close_idle(self, server: web.Server) -> None:
        server.pre_shutdown()  # busy connections close after their present answer
        busy = {exchange.transport for exchange in self._boundary.active}
        for connection in server.connections:
            if connection.transport not in busy:
                connection.force_close()

    def _make_site(self) -> web.BaseSite:
        path = self._options.unix_socket
        if path is not None:
            return web.SockSite(self._runner, _unix_listener(path), backlog=_BACKLOG)
        return web.TCPSite(self._runner, self._options.host, self._options.port, backlog=_BACKLOG)


def _unix_listener(path: Path) -> socket.socket:
    """Return a bound socket that only its owner may use; a stale one is replaced, a live one never."""
    if path.is_socket():
        if _answers(path):
            raise HttpBindError(f"server.unix_socket: {path} is already in use")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(_SOCKET_MODE)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _bind_error(error: OSError, options: HttpOptions) -> HttpBindError:
    if options.unix_socket is not None:
        return HttpBindError(f"server.unix_socket: cannot listen on {options.unix_socket}: {error.strerror}")
    where = f"{options.host}:{options.port}"
    if error.errno == errno.EADDRINUSE:
        return HttpBindError(f"server.port: {where} is already in use")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return HttpBindError(f"server.port: not permitted to listen on {where}")
    return HttpBindError(f"server.host: cannot listen on {where}: {error.strerror or error}")
