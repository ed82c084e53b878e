"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from ....actors.requests import Refused
from ...engine.port import Cancelled, Failed, Finished
from ..body import read_object
from ..errors import HttpError, not_ready
from ..events import EventStream
from ..exchange import EXCHANGE, Exchange
from ..replies.chunks import ChunkEncoder
from ..replies.reply import WholeReply, failure, settle
from ..schema.chat import ChatCall, parse_chat

if TYPE_CHECKING:
    from ....actors.requests import Admitted
    from ...metrics import Metrics
    from ..options import HttpOptions
    from ..serving import Serving

# A refusal's code -> status; whatever is not listed is the client's mistake.
_REFUSALS = {"queue_full": 429, "draining": 503, "lane_crashed": 500}
_RETRYABLE = {429, 503}
_RETRY_AFTER_S = 1.0


class ChatRoutes:
    """Chat completions, streamed and whole. Loop thread only."""

    def __init__(self, serving: Serving, options: HttpOptions, metrics: Metrics) -> None:
        self._serving = serving
        self._options = options
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [web.post("/v1/chat/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer one call. The generation is cancelled on every way out but its own end."""
        readiness = self._serving.readiness()
        if not readiness.accepting:
            raise not_ready(draining=readiness.draining, retry_after_s=readiness.retry_after_s)
        body = await read_object(request, self._options.max_body_bytes)
        call = parse_chat(body, request.headers, self._serving.model(), self._serving.aliases())
        exchange = request[EXCHANGE]
        exchange.call = call
        if call.stream:
            return await self._streamed(request, exchange, call)
        return await self._whole(exchange, call)

    async def _admit(self, call: ChatCall, exchange: Exchange) -> Admitted:
        admission = await self._serving.submit(call.request)
        if isinstance(admission, Refused):
            raise refusal(admission)
        exchange.admitted = admission
        return admission

    async def _streamed(self, request: web.Request, exchange: Exchange, call: ChatCall) -> web.StreamResponse:
        events = exchange.events = EventStream(request, self._options.keep_alive_s)
        chunks = ChunkEncoder(call, int(time.time()))
        async with events.kept_alive():  # the wait for a row included
            admitted = await self._admit(call, exchange)
            try:
                await self._pump(admitted, events, chunks, exchange)
            finally:
                admitted.stream.cancel()
        return events.response

    async def _whole(self, exchange: Exchange, call: ChatCall) -> web.Response:
        admitted = await self._admit(call, exchange)
        stream, pace = admitted.stream, self._metrics.pace(admitted.stream)
        reply = WholeReply(call, int(time.time()))
        try:
            ending = None
            while ending is None:
                text, entries, ending = settle(await stream.take())
                pace.tick()
                reply.add(text, entries)
            body = reply.body(_finished(ending, exchange), stream.times, admitted.reuse)
        finally:
            stream.cancel()
        return web.Response(body=body, content_type="application/json")

    async def _pump(
        self, admitted: Admitted, events: EventStream, chunks: ChunkEncoder, exchange: Exchange
    ) -> None:
        """Write what the stream brings until it ends; one write for all that has collected."""
        stream, pace = admitted.stream, self._metrics.pace(admitted.stream)
        pending = chunks.role()
        while True:
            text, entries, ending = settle(await stream.take())
            pace.tick()
            data = chunks.delta(text, entries)
            if ending is not None:
                finished = _finished(ending, exchange)
                await events.finish(pending + data + chunks.last(finished, stream.times, admitted.reuse))
                return
            if data:
                await events.write(pending + data)
                pending = b""


def _finished(ending: Finished | Cancelled | Failed, exchange: Exchange) -> Finished:
    if isinstance(ending, Finished):
        exchange.finished = ending
        return ending
    raise failure(ending, exchange.id)


def refusal(refused: Refused) -> HttpError:
    """Return the response to a request that the scheduler would not take."""
    status = _REFUSALS.get(refused.code, 400)
    param = refused.param or ("messages" if refused.code == "context_length_exceeded" else None)
    retry_after_s = refused.retry_after_s
    if status in _RETRYABLE and retry_after_s is None:
        retry_after_s = _RETRY_AFTER_S
    return HttpError(status, refused.code, refused.message, param=param, retry_after_s=retry_after_s)
