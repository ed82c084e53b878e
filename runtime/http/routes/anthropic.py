"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's API.

``?beta=true`` and ``anthropic-beta`` headers change nothing: beta fields are taken with and without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from ....actors.requests import Refused
from ..anthropic.events import EventEncoder
from ..anthropic.translation import counted_request, message_call
from ..anthropic.whole import WholeMessage
from ..body import read_as
from ..errors import not_ready, refusal
from ..events import EventStream
from ..exchange import EXCHANGE
from ..replies.choices import Generation
from ..schema.anthropic import CountBody, MessagesBody
from ..schema.base import M, parse

if TYPE_CHECKING:
    from ...metrics import Metrics
    from ..options import HttpOptions
    from ..serving import Serving


class AnthropicRoutes:
    """Messages, streamed and whole, and their counting. Loop thread only."""

    def __init__(self, serving: Serving, options: HttpOptions, metrics: Metrics) -> None:
        self._serving = serving
        self._options = options
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [
            web.post("/v1/messages", self.create),
            web.post("/v1/messages/count_tokens", self.count_tokens),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Answer with one message. The generation is cancelled on every way out but its own end."""
        body = await self._body(request, MessagesBody)
        call = message_call(body, request.headers, self._serving.model(), self._serving.aliases())
        generation = Generation(self._serving, self._metrics, request[EXCHANGE], call)
        thoughts = body.thinking is None or body.thinking.display != "omitted"
        if call.stream:
            return await self._streamed(request, generation, EventEncoder(call, thoughts=thoughts))
        return await self._whole(generation, WholeMessage(call, thoughts=thoughts))

    async def count_tokens(self, request: web.Request) -> web.Response:
        """Answer with the length of the prompt that the same body would give a message."""
        body = await self._body(request, CountBody)
        counted = counted_request(body, self._serving.model(), self._serving.aliases())
        answer = await self._serving.count_tokens(counted)
        if isinstance(answer, Refused):
            raise refusal(answer)
        return _json(orjson.dumps({"input_tokens": answer}))

    async def _body(self, request: web.Request, model: type[M]) -> M:
        readiness = self._serving.readiness()
        if not readiness.accepting:
            raise not_ready(draining=readiness.draining, retry_after_s=readiness.retry_after_s)
        return await read_as(request, self._options.max_body_bytes, lambda body: parse(model, body))

    async def _streamed(
        self, request: web.Request, generation: Generation, encoder: EventEncoder
    ) -> web.StreamResponse:
        exchange = request[EXCHANGE]
        events = exchange.events = EventStream(request, self._options.keep_alive_s)
        async with events.kept_alive(), generation:  # the wait for a row included
            assert exchange.admitted is not None
            pending = encoder.start(exchange.admitted)
            async for progress in generation:
                data = encoder.progress(progress)
                if progress.end is not None:
                    await events.finish(pending + data + encoder.done(generation.usage()))
                elif data:
                    await events.write(pending + data)
                    pending = b""
        return events.response

    async def _whole(self, generation: Generation, message: WholeMessage) -> web.Response:
        async with generation:
            async for progress in generation:
                message.add(progress)
            body = message.body(generation.usage())
        return _json(body)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
