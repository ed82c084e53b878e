"""The HTTP server as a supervised child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..kernel import Actor, Ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from .server import HttpServer

CLOSE_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class GetAddress(Ask[str]):
    """Where the server listens, as a URL or a socket's path."""


HttpMessage: TypeAlias = GetAddress


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
        """Tell where the server listens."""
        self.ctx.reply(message, self._server.address)
