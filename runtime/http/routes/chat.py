"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from ..replies.chunks import ChunkEncoder
from ..replies.reply import WholeReply
from ..schema.chat import parse_chat

if TYPE_CHECKING:
    from .answering import Answering


class ChatRoutes:
    """Chat completions, streamed and whole. Loop thread only."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [web.post("/v1/chat/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer one call."""
        info, names = self._answering.served()
        call = await self._answering.read(
            request, lambda body: parse_chat(body, request.headers, info, names)
        )
        created_s = int(time.time())
        if call.stream:
            return await self._answering.stream(request, call, ChunkEncoder(call, created_s))
        return await self._answering.whole(request, call, WholeReply(call, created_s))
