"""``POST /v1/completions``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from ..body import read_as
from ..errors import not_ready
from ..events import EventStream
from ..exchange import EXCHANGE
from ..replies.choices import Generation
from ..replies.completions import CompletionChunks, WholeCompletion
from ..schema.completions import parse_completion

if TYPE_CHECKING:
    from ...metrics import Metrics
    from ..options import HttpOptions
    from ..schema.completions import CompletionCall
    from ..serving import Serving


class CompletionRoutes:
    """Legacy completions, streamed and whole. Loop thread only."""

    def __init__(self, serving: Serving, options: HttpOptions, metrics: Metrics) -> None:
        self._serving = serving
        self._options = options
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [web.post("/v1/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer one call. The generations are cancelled on every way out but their own end."""
        readiness = self._serving.readiness()
        if not readiness.accepting:
            raise not_ready(draining=readiness.draining, retry_after_s=readiness.retry_after_s)
        info, names = self._serving.model(), self._serving.aliases()
        completion = await read_as(
            request,
            self._options.max_body_bytes,
            lambda body: parse_completion(body, request.headers, info, names),
        )
        generation = Generation(self._serving, self._metrics, request[EXCHANGE], completion.call)
        if completion.call.stream:
            return await self._streamed(request, generation, completion)
        return await self._whole(generation, completion)

    async def _streamed(
        self, request: web.Request, generation: Generation, completion: CompletionCall
    ) -> web.StreamResponse:
        events = request[EXCHANGE].events = EventStream(request, self._options.keep_alive_s)
        chunks, open_choices = CompletionChunks(completion, int(time.time())), len(completion.echoes)
        async with events.kept_alive(), generation:  # the wait for a row included
            async for progress in generation:
                data = chunks.progress(progress)
                open_choices -= progress.end is not None
                if not open_choices:
                    await events.finish(data + chunks.done(generation.usage()))
                elif data:
                    await events.write(data)
        return events.response

    async def _whole(self, generation: Generation, completion: CompletionCall) -> web.Response:
        reply = WholeCompletion(completion, int(time.time()))
        async with generation:
            async for progress in generation:
                reply.add(progress)
            body = reply.body(generation.usage())
        return web.Response(body=body, content_type="application/json")
