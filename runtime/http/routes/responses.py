"""``POST /v1/responses``, and what may be asked of stored responses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from ..errors import HttpError, unsupported
from ..responses.answer import Answer
from ..responses.events import ResponseEvents
from ..responses.listing import page_of
from ..responses.request import parsed, responses_call
from .answering import json_response

if TYPE_CHECKING:
    from ..responses.store import ResponseStore, StoredResponse
    from .answering import Answering


class ResponsesRoutes:
    """OpenAI's Responses API. Loop thread only."""

    def __init__(self, answering: Answering, store: ResponseStore) -> None:
        self._answering = answering
        self._store = store

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [
            web.post("/v1/responses", self.create),
            web.get("/v1/responses/{id}", self.retrieve, allow_head=False),
            web.delete("/v1/responses/{id}", self.delete),
            web.get("/v1/responses/{id}/input_items", self.input_items, allow_head=False),
            web.post("/v1/responses/{id}/cancel", self.cancel),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Answer one call."""
        info, names = self._answering.served()
        body = await self._answering.read(request, parsed)
        asked = responses_call(body, request.headers, info, names, self._store)
        answer = Answer(asked, self._store, int(time.time()))
        try:
            if asked.call.stream:
                events = ResponseEvents(answer)
                return await self._answering.stream(
                    request, asked.call, events, lambda error: events.failed(_in_words_of_responses(error))
                )
            return await self._answering.whole(request, asked.call, answer)
        except HttpError as error:
            raise _in_words_of_responses(error) from error

    async def retrieve(self, request: web.Request) -> web.Response:
        """Return a stored response. It is never streamed again."""
        if request.query.get("stream", "false").lower() == "true":
            raise unsupported("stream", "a stored response is given whole.")
        return json_response(self._found(request).body)

    async def delete(self, request: web.Request) -> web.Response:
        """Forget a stored response; what others took over from it stays with them."""
        found = self._found(request)
        self._store.delete(found.id)
        return json_response(orjson.dumps({"id": found.id, "object": "response", "deleted": True}))

    async def input_items(self, request: web.Request) -> web.Response:
        """Return a page of the items that a stored response was asked with."""
        return json_response(orjson.dumps(page_of(orjson.loads(self._found(request).inputs), request.query)))

    async def cancel(self, request: web.Request) -> web.Response:
        """Refuse: only responses in the background can be cancelled so, and there are none."""
        found = self._found(request)
        message = f"Response {found.id} does not run in the background; to cancel one, close its connection."
        raise HttpError(400, "not_cancellable", message)

    def _found(self, request: web.Request) -> StoredResponse:
        wanted = request.match_info["id"]
        found = self._store.get(wanted)
        if found is None:
            shown = wanted[:80]
            message = f"Response with id {shown!r} is not, or no longer, stored here."
            raise HttpError(404, "response_not_found", message)
        return found


def _in_words_of_responses(error: HttpError) -> HttpError:
    """Return ``error`` with the name that the prompt has in this API."""
    if error.param == "messages":
        error.param = "input"
    return error
