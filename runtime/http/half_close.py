"""Clients that say they send no more, and still read: nc, some proxies.

A client that has left altogether looks just the same at first: its system too says only that nothing more
will come. The difference shows once something is written to it, so something is: bytes that any client passes
over. A system without the client answers them with a reset, and the connection is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import HttpVersion11, web

from .exchange import EXCHANGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import StreamReader

PAUSES_S: Final = (0.0, 0.002, 0.02, 0.1, 1.0)
"""Before each probe; the last before all further ones. It takes two to notice: a reset answers the first."""
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Every client of HTTP/1.1 passes over this before its answer, asked for or not (RFC 9110, 15.2)."""


class PatientConnection(web.RequestHandler):
    """A connection that answers a client that has closed its side. Loop thread only."""

    __slots__ = ()

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] - asyncio's own contract
        """Keep the connection while whole requests are to be answered; else it closes."""
        if self.idle or any(not payload.is_eof() for payload in self._payloads()):
            return False
        self._probe_later(0)
        return True

    @property
    def idle(self) -> bool:
        """Whether every whole request that came is answered."""
        return self._waiter is not None and not self._messages

    def _payloads(self) -> Iterable[StreamReader]:
        if self._current_request is not None:
            yield self._current_request.content
        yield from (payload for _, payload in self._messages)

    def _probe_later(self, count: int) -> None:
        pause_s = PAUSES_S[min(count, len(PAUSES_S) - 1)]
        self._loop.call_later(pause_s, self._probe, count + 1)

    def _probe(self, count: int) -> None:
        transport, request = self.transport, self._current_request
        if transport is None or transport.is_closing():
            return
        if self.idle:
            transport.close()
            return
        exchange = None if request is None else request.get(EXCHANGE)
        if request is not None and exchange is not None:
            if exchange.events is not None and exchange.events.opened:
                exchange.events.probe()
            elif not request.writer.output_size:
                if request.version < HttpVersion11:
                    transport.close()  # it knows no interim answers
                    return
                transport.write(_INTERIM)
        self._probe_later(count)
