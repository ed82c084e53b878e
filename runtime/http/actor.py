"""The HTTP server as a supervised child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, assert_never

from ..kernel import Actor, Ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from .server import HttpServer

CLOSE_GRACE_S = 3.0
SHUTDOWN_S = 10.0
"""More than closing takes, on a busy machine too: a server whose close is cut short tells clients nothing."""


@dataclass(frozen=True, slots=True)
class GetAddress(Ask[str]):
    """Where the server listens, as a URL or a socket's path."""


@dataclass(frozen=True, slots=True)
class CloseIdle:
    """Close connections on which nothing is going on: the server is about to stop."""


@dataclass(frozen=True, slots=True)
class EndRequests(Ask[None]):
    """Tell every request that still runs that the server is shutting down; about a second."""


HttpMessage: TypeAlias = GetAddress | CloseIdle | EndRequests


@dataclass(slots=True)
class Binding:
    """The TCP port to listen on; once bound, the real one, so that a restart finds the same again."""

    port: int


class HttpActor(Actor[HttpMessage]):
    """Listens from ``started`` until its end, whatever ends it; a restart binds the same address again."""

    def __init__(self, server: Callable[[], HttpServer], binding: Binding) -> None:
        self._server = server()
        self._binding = binding

    async def started(self) -> None:
        """Bind and listen. Raises what binding raises."""
        self.ctx.on_end(lambda: self._server.close(CLOSE_GRACE_S))
        await self._server.start()
        if self._server.port is not None:
            self._binding.port = self._server.port

    async def receive(self, message: HttpMessage) -> None:
        """Do what a message asks for."""
        match message:
            case GetAddress():
                self.ctx.reply(message, self._server.address)
            case CloseIdle():
                self._server.close_idle()
            case EndRequests():
                await self._server.end_requests()
                self.ctx.reply(message, None)
            case _:
                assert_never(message)
