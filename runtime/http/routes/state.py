"""Routes that tell about the server: models, health, readiness, figures, the actor tree."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from ...metrics import CONTENT_TYPE
from ...version import version
from ..errors import HttpError, not_ready, unknown_model
from ..schema.calls import served_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...engine.port import ModelInfo
    from ...metrics import Metrics
    from ..options import HttpOptions
    from ..responses.store import ResponseStore
    from ..serving import Readiness, Serving


class StateRoutes:
    """Read-only routes, and the one that crashes an actor when fault injection is on. Loop thread only."""

    def __init__(
        self, serving: Serving, options: HttpOptions, metrics: Metrics, responses: ResponseStore
    ) -> None:
        self._serving = serving
        self._responses = responses
        self._options = options
        self._metrics = metrics
        self._started_s = time.monotonic()
        self._version = version()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        routes = [
            web.get("/health", self.health),
            web.get("/ready", self.ready),
            web.get("/stats", self.stats),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{name:.+}", self.model),
            web.get("/admin/tree", self.tree),
        ]
        if self._options.metrics:
            routes.append(web.get("/metrics", self.metrics))
        if self._options.fault_injection:
            routes.append(web.post("/admin/actors/{path:.+}/crash", self.crash))
        return routes

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 while the process lives, whatever its state."""
        readiness = self._serving.readiness()
        body = {
            "status": "alive",
            "version": self._version,
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "ready": readiness.ready,
            "draining": readiness.draining,
            "detail": _detail(readiness),
        }
        return _json(body)

    async def ready(self, _: web.Request) -> web.Response:
        """Answer 200 when requests are served, else 503 with what is missing."""
        readiness = self._serving.readiness()
        body = {"ready": readiness.ready, "draining": readiness.draining, "detail": _detail(readiness)}
        if readiness.ready:
            return _json(body)
        error = not_ready(draining=readiness.draining, retry_after_s=readiness.retry_after_s)
        return _json(body | orjson.loads(error.envelope()), status=error.status, headers=error.headers)

    async def stats(self, _: web.Request) -> web.Response:
        """Answer with the figures of every part."""
        return _json(await self._stats())

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer with the same figures, and what was observed here, as Prometheus reads them."""
        text = self._metrics.exposition(await self._stats())
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    async def models(self, _: web.Request) -> web.Response:
        """List every name that a request may give."""
        info = self._model()
        names = served_names(info, self._serving.aliases())
        return _json({"object": "list", "data": [_model_json(name, info) for name in names]})

    async def model(self, request: web.Request) -> web.Response:
        """Describe one served name."""
        info = self._model()
        name, names = request.match_info["name"], served_names(info, self._serving.aliases())
        if name not in names:
            raise unknown_model(name, names)
        return _json(_model_json(name, info))

    async def tree(self, _: web.Request) -> web.Response:
        """List the actors."""
        return _json({"actors": list(self._serving.tree())})

    async def crash(self, request: web.Request) -> web.Response:
        """Crash an actor on purpose."""
        path = request.match_info["path"]
        if not self._serving.crash(path):
            raise HttpError(404, "actor_not_found", f"There is no actor {path[:200]!r}.", param="path")
        return _json({"crashed": path})

    async def _stats(self) -> Mapping[str, object]:
        return {**await self._serving.stats(), "responses": self._responses.figures()}

    def _model(self) -> ModelInfo:
        readiness = self._serving.readiness()
        if not (readiness.ready or readiness.recovering or readiness.draining):
            raise not_ready(draining=False)
        return self._serving.model()


def _detail(readiness: Readiness) -> Mapping[str, object]:
    if readiness.degraded is None:
        return readiness.detail
    return {**readiness.detail, "degraded": readiness.degraded}


def _model_json(name: str, info: ModelInfo) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": info.created_s,
        "owned_by": "samovar",
        "root": info.id,
        "context_length": info.context_length,
        "dtype": info.dtype,
    }


def _json(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    data = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS, default=str)
    return web.Response(body=data, status=status, headers=headers, content_type="application/json")
