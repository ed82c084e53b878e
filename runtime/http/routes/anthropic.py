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
from ..errors import refusal
from ..schema.anthropic import CountBody, MessagesBody
from ..schema.base import M, parse
from .answering import json_response

if TYPE_CHECKING:
    from .answering import Answering


class AnthropicRoutes:
    """Messages, streamed and whole, and their counting. Loop thread only."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [
            web.post("/v1/messages", self.create),
            web.post("/v1/messages/count_tokens", self.count_tokens),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Answer with one message."""
        info, names = self._answering.served()
        body = await self._body(request, MessagesBody)
        call = message_call(body, request.headers, info, names)
        thoughts = body.thinking is None or body.thinking.display != "omitted"
        if call.stream:
            return await self._answering.stream(request, call, EventEncoder(call, thoughts=thoughts))
        return await self._answering.whole(request, call, WholeMessage(call, thoughts=thoughts))

    async def count_tokens(self, request: web.Request) -> web.Response:
        """Answer with the length of the prompt that the same body would give a message."""
        info, names = self._answering.served()
        body = await self._body(request, CountBody)
        answer = await self._answering.count_tokens(counted_request(body, info, names))
        if isinstance(answer, Refused):
            raise refusal(answer)
        return json_response(orjson.dumps({"input_tokens": answer}))

    async def _body(self, request: web.Request, model: type[M]) -> M:
        return await self._answering.read(request, lambda body: parse(model, body))
