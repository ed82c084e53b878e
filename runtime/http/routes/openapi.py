"""``GET /openapi.json``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aiohttp import web

from ..openapi.document import described

if TYPE_CHECKING:
    from collections.abc import Iterable

# aiohttp's placeholders may carry a pattern: {name:.+}
_PATTERN = re.compile(r"{(\w+)(:[^}]*)?}")


class OpenApiRoutes:
    """Tells what the server's routes take and answer. Loop thread only; the document is made at the start."""

    def __init__(self, routes: Iterable[web.RouteDef]) -> None:
        known = {(route.method.lower(), _PATTERN.sub(r"{\1}", route.path)) for route in routes}
        self._document = described({("get", "/openapi.json"), *known})

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [web.get("/openapi.json", self.document)]

    async def document(self, _: web.Request) -> web.Response:
        """Return the document."""
        return web.Response(body=self._document, content_type="application/json")
