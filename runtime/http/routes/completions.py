"""``POST /v1/completions``: text that goes on from text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from ..replies.completions import CompletionChunks, WholeCompletion
from ..schema.completions import parse_completion

if TYPE_CHECKING:
    from .answering import Answering


class CompletionRoutes:
    """Legacy completions, streamed and whole. Loop thread only."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [web.post("/v1/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer one call."""
        info, names = self._answering.served()
        asked = await self._answering.read(
            request, lambda body: parse_completion(body, request.headers, info, names)
        )
        created_s = int(time.time())
        if asked.call.stream:
            return await self._answering.stream(request, asked.call, CompletionChunks(asked, created_s))
        return await self._answering.whole(request, asked.call, WholeCompletion(asked, created_s))
