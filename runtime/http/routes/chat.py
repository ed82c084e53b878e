"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from ..body import read_as
from ..errors import not_ready
from ..events import EventStream
from ..exchange import EXCHANGE
from ..replies.choices import Generation
from ..replies.chunks import ChunkEncoder
from ..replies.reply import WholeReply
from ..schema.chat import parse_chat

if TYPE_CHECKING:
    from ...metrics import Metrics
    from ..call import Call
    from ..options import HttpOptions
    from ..serving import Serving


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
        info, names = self._serving.model(), self._serving.aliases()
        call = await read_as(
            request, self._options.max_body_bytes, lambda body: parse_chat(body, request.headers, info, names)
        )
        generation = Generation(self._serving, self._metrics, request[EXCHANGE], call)
        if call.stream:
            return await self._streamed(request, generation, call)
        return await self._whole(generation, call)

    async def _streamed(self, request: web.Request, generation: Generation, call: Call) -> web.StreamResponse:
        events = request[EXCHANGE].events = EventStream(request, self._options.keep_alive_s)
        chunks = ChunkEncoder(call, int(time.time()))
        async with events.kept_alive(), generation:  # the wait for a row included
            pending, ended = chunks.roles(), 0
            async for progress in generation:
                data = chunks.progress(progress)
                ended += progress.end is not None
                if ended == len(call.requests):
                    await events.finish(pending + data + chunks.done(generation.usage()))
                elif data:
                    await events.write(pending + data)
                    pending = b""
        return events.response

    async def _whole(self, generation: Generation, call: Call) -> web.Response:
        reply = WholeReply(call, int(time.time()))
        async with generation:
            async for progress in generation:
                reply.add(progress)
            body = reply.body(generation.usage())
        return web.Response(body=body, content_type="application/json")
