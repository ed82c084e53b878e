"""``POST /v1/responses``, and what may be asked of stored responses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from ..body import read_as
from ..errors import HttpError, not_ready, unsupported
from ..events import EventStream
from ..exchange import EXCHANGE
from ..replies.choices import Generation
from ..responses.answer import Answer
from ..responses.events import ResponseEvents
from ..responses.listing import page_of
from ..responses.request import parsed, responses_call

if TYPE_CHECKING:
    from ...metrics import Metrics
    from ..options import HttpOptions
    from ..responses.store import ResponseStore, StoredResponse
    from ..serving import Serving


class ResponsesRoutes:
    """OpenAI's Responses API. Loop thread only."""

    def __init__(
        self, serving: Serving, options: HttpOptions, metrics: Metrics, store: ResponseStore
    ) -> None:
        self._serving = serving
        self._options = options
        self._metrics = metrics
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
        """Answer one call. The generation is cancelled on every way out but its own end."""
        readiness = self._serving.readiness()
        if not readiness.accepting:
            raise not_ready(draining=readiness.draining, retry_after_s=readiness.retry_after_s)
        info, names = self._serving.model(), self._serving.aliases()
        body = await read_as(request, self._options.max_body_bytes, parsed)
        asked = responses_call(body, request.headers, info, names, self._store)
        answer = Answer(asked, self._store, int(time.time()))
        generation = Generation(self._serving, self._metrics, request[EXCHANGE], asked.call)
        try:
            if asked.call.stream:
                return await self._streamed(request, generation, answer)
            return await self._whole(generation, answer)
        except HttpError as error:
            raise _in_words_of_responses(error) from error

    async def retrieve(self, request: web.Request) -> web.Response:
        """Return a stored response. It is never streamed again."""
        if request.query.get("stream", "false").lower() == "true":
            raise unsupported("stream", "a stored response is given whole.")
        return _json(self._found(request).body)

    async def delete(self, request: web.Request) -> web.Response:
        """Forget a stored response; what others took over from it stays with them."""
        found = self._found(request)
        self._store.delete(found.id)
        return _json(orjson.dumps({"id": found.id, "object": "response", "deleted": True}))

    async def input_items(self, request: web.Request) -> web.Response:
        """Return a page of the items that a stored response was asked with."""
        return _json(orjson.dumps(page_of(orjson.loads(self._found(request).inputs), request.query)))

    async def cancel(self, request: web.Request) -> web.Response:
        """Refuse: only responses in the background can be cancelled so, and there are none."""
        found = self._found(request)
        message = f"Response {found.id} does not run in the background; to cancel one, close its connection."
        raise HttpError(400, "not_cancellable", message)

    async def _streamed(
        self, request: web.Request, generation: Generation, answer: Answer
    ) -> web.StreamResponse:
        events = request[EXCHANGE].events = EventStream(request, self._options.keep_alive_s)
        reply = ResponseEvents(answer)
        events.failure_event = lambda error: reply.failed(_in_words_of_responses(error))
        async with events.kept_alive(), generation:  # the wait for a row included
            async for progress in generation:
                data = reply.progress(progress)
                if progress.end is not None:
                    last = reply.done(progress.end, generation.usage(), int(time.time()))
                    await events.finish(data + last)
                elif data:
                    await events.write(data)
        return events.response

    async def _whole(self, generation: Generation, answer: Answer) -> web.Response:
        body: dict[str, object] = {}
        async with generation:
            async for progress in generation:
                answer.output.add(progress)
                if progress.end is not None:
                    body = answer.finished(progress.end, generation.usage(), int(time.time()))
        return _json(orjson.dumps(body))

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


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
