"""What all generating routes do alike: take a request, run its generation, answer streamed or whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from aiohttp import web

from ..body import read_as
from ..errors import not_ready
from ..events import EventStream
from ..exchange import EXCHANGE
from ..replies.choices import Generation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....actors.requests import Admitted, GenerationRequest, Refused
    from ...engine.port import ModelInfo
    from ...metrics import Metrics
    from ..body import JsonObject
    from ..call import Call
    from ..errors import HttpError
    from ..options import HttpOptions
    from ..replies.pieces import Progress
    from ..replies.usage import Usage
    from ..serving import Serving

T = TypeVar("T")


class Encoder(Protocol):
    """Turns the progress of a call into the bytes of a stream."""

    def start(self, admitted: Admitted, /) -> bytes:
        """Return what the stream begins with; it goes with the first data: failures before are statuses."""
        ...

    def progress(self, progress: Progress) -> bytes:
        """Return what was added; nothing where there is nothing to tell."""
        ...

    def done(self, usage: Usage) -> bytes:
        """Return what follows the last choice's end."""
        ...


class Gathering(Protocol):
    """Turns the progress of a call into one body."""

    def add(self, progress: Progress) -> object:
        """Take what was added."""
        ...

    def body(self, usage: Usage) -> bytes:
        """Return the JSON of the answer, once every choice has ended."""
        ...


class Answering:
    """Runs calls for routes. A generation is cancelled on every way out but its own end. Loop thread only."""

    def __init__(self, serving: Serving, options: HttpOptions, metrics: Metrics) -> None:
        self._serving = serving
        self._options = options
        self._metrics = metrics

    def served(self) -> tuple[ModelInfo, Sequence[str]]:
        """Return the model and its further names. Raises HttpError 503 while no requests are taken."""
        readiness = self._serving.readiness()
        if not readiness.accepting:
            raise not_ready(draining=readiness.draining, retry_after_s=readiness.retry_after_s)
        return self._serving.model(), self._serving.aliases()

    async def read(self, request: web.Request, made: Callable[[JsonObject], T]) -> T:
        """Return what ``made`` makes of the body, in any thread. Raises HttpError."""
        return await read_as(request, self._options.max_body_bytes, made)

    async def count_tokens(self, request: GenerationRequest) -> int | Refused:
        """Return the length of a request's prompt."""
        return await self._serving.count_tokens(request)

    async def stream(
        self,
        request: web.Request,
        call: Call,
        encoder: Encoder,
        failed: Callable[[HttpError], bytes] | None = None,
    ) -> web.StreamResponse:
        """Answer with a stream of events; ``failed`` makes the one that ends it early."""
        exchange = request[EXCHANGE]
        events = exchange.events = EventStream(request, self._options.keep_alive_s)
        if failed is not None:
            events.failure_event = failed
        generation, left = self._generation(request, call), len(call.requests)
        async with events.kept_alive(), generation:  # the wait for a row included
            assert exchange.admitted is not None
            pending = encoder.start(exchange.admitted)
            async for progress in generation:
                data = encoder.progress(progress)
                left -= progress.end is not None
                if not left:
                    await events.finish(pending + data + encoder.done(generation.usage()))
                elif data:
                    await events.write(pending + data)
                    pending = b""
        return events.response

    async def whole(self, request: web.Request, call: Call, gathering: Gathering) -> web.Response:
        """Answer in one piece."""
        generation = self._generation(request, call)
        async with generation:
            async for progress in generation:
                gathering.add(progress)
            body = gathering.body(generation.usage())
        return json_response(body)

    def _generation(self, request: web.Request, call: Call) -> Generation:
        return Generation(self._serving, self._metrics, request[EXCHANGE], call)


def json_response(body: bytes) -> web.Response:
    """Return an answer of encoded JSON."""
    return web.Response(body=body, content_type="application/json")
