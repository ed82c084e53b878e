"""Where the server listens, and what becomes of bytes that are not HTTP."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage

from .errors import HttpError
from .half_close import PatientConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .options import HttpOptions

MAX_LINE_BYTES = 8 << 10
MAX_FIELD_BYTES = 8 << 10
MAX_HEADERS = 100
"""Bounds of a request's line, of one header and of their number: under a MiB in all."""

_BACKLOG = 1024
_SOCKET_MODE = 0o600

Unreadable: TypeAlias = "Callable[[HttpError], web.Response]"


class HttpBindError(Exception):
    """The server cannot listen as configured. The message names the setting and the address."""

    code = "http_bind"
    retryable = False


class Connection(PatientConnection):
    """One connection. What cannot be read as HTTP is answered like any other error.

    Nothing of it is kept. aiohttp itself would write the offending header, a key say, into log and reply.
    """

    __slots__ = ("_between", "_unreadable")

    def __init__(self, server: web.Server, unreadable: Unreadable) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # pyright: ignore[reportArgumentType] - how aiohttp spells "none"
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_HEADERS,
        )
        self._unreadable = unreadable
        self._between = False

    @property
    def between(self) -> bool:
        """Whether it waits for another request of which nothing has come. The first is always on its way."""
        return self.idle and self._between

    def data_received(self, data: bytes) -> None:
        """Take bytes. Tell a handler whose body they break off; aiohttp would let it wait."""
        super().data_received(data)
        request = self._current_request
        self._between = bool(self._messages) or request is not None  # else a head has begun
        broken = bool(self._messages) and not isinstance(self._messages[-1][0], RawRequestMessage)
        if broken and request is not None and not request.content.is_eof():
            request.content.set_exception(web.RequestPayloadError("the body's framing is broken"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the parser refused; leave other failures to aiohttp."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        response = self._unreadable(explain_unreadable(exc))
        response.force_close()
        return response

    def log_exception(self, *args: object, **kwargs: object) -> None:
        """Pass on what is the server's fault. A body that cannot be read has been answered and recorded."""
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)


def explain_unreadable(error: HttpProcessingError) -> HttpError:
    """Return what a client is told of bytes that are not acceptable HTTP. Quotes nothing of them."""
    if isinstance(error, LineTooLong) or "Too many headers" in error.message:
        limits = f"{MAX_LINE_BYTES:,} bytes a line or header, {MAX_HEADERS} headers"
        return HttpError(431, "headers_too_large", f"The request's headers exceed the limits: {limits}.")
    if "HTTPS" in error.message:
        return HttpError(400, "bad_request", "The server speaks HTTP here, not HTTPS.")
    return HttpError(400, "bad_request", "The request is not valid HTTP/1.1.")


class Listener:
    """The listening socket. One open and any number of closes; loop thread only."""

    def __init__(self, options: HttpOptions, connect: Callable[[], Connection]) -> None:
        self._options = options
        self._connect = connect
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int | None:
        """The TCP port; the real one when 0 was configured. None while not listening, or on a Unix socket."""
        if self._server is None or self._options.unix_socket is not None:
            return None
        return int(self._server.sockets[0].getsockname()[1])

    async def open(self) -> None:
        """Bind and listen. Raises HttpBindError."""
        try:
            self._server = await self._bind()
        except OSError as error:
            raise _bind_error(error, self._options) from error

    def close(self) -> None:
        """Take no more connections; open ones go on."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        if self._options.unix_socket is not None:
            self._options.unix_socket.unlink(missing_ok=True)

    async def _bind(self) -> asyncio.Server:
        loop, options = asyncio.get_running_loop(), self._options
        if options.unix_socket is not None:
            return await loop.create_server(
                self._connect, sock=_unix_listener(options.unix_socket), backlog=_BACKLOG
            )
        return await loop.create_server(self._connect, options.host, options.port, backlog=_BACKLOG)


def _unix_listener(path: Path) -> socket.socket:
    """Return a bound socket that only its owner may use; a stale one is replaced, a live one never."""
    if path.is_socket():
        if _answers(path):
            raise HttpBindError(f"server.unix_socket: {path} is already in use")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(_SOCKET_MODE)  # nobody can connect before it listens
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
