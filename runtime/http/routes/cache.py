"""``/admin/cache``, ``/admin/drain``, ``/admin/sessions``: looking into the cache and steering it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from ....actors.requests import Refused
from ..body import read_as, read_object
from ..errors import HttpError, bad_value, not_ready, refusal
from ..schema.admin import ClearQuery, PageQuery, SessionBody, WaitBody
from ..schema.base import parse
from ..schema.chat import parse_chat
from ..schema.completions import parse_completion

if TYPE_CHECKING:
    from ....actors.requests import GenerationRequest
    from ..body import JsonObject
    from ..cache_serving import CacheServing
    from ..options import HttpOptions
    from ..serving import Serving

FLUSH_S = 60.0
DRAIN_S = 60.0
PAGE_ENTRIES = 100
_RETRY_AFTER_S = 1.0

# miss_reason -> what a person is told. An unknown word is given as it stands.
_REASONS = {
    "cache_off": "The RAM tier is switched off.",
    "too_short": "A prompt of one token has no prefix to reuse.",
    "empty": "Nothing is stored.",
    "no_match": "Nothing that is stored begins like this prompt.",
    "untrimmable": "What begins like this prompt cannot be shortened to the part in common.",
    "below_min_tokens": "The part in common is shorter than cache.ram.min_tokens.",
    "below_restore_min": "SSD would add fewer tokens than cache.ssd.restore_min_tokens.",
    "restore_slower": "Prefilling is estimated to be faster than reading from SSD.",
    "restore_failed": "The file could not be read; it was set aside.",
    "lookup_failed": "The SSD tier did not answer.",
    "busy": "Too many requests are waiting for the SSD tier.",
    "cleared": "The cache was being cleared.",
}


class CacheRoutes:
    """Administration of the cache; 501 for everything while there is none. Loop thread only."""

    def __init__(self, serving: Serving, cache: CacheServing | None, options: HttpOptions) -> None:
        self._serving = serving
        self._cache = cache
        self._options = options

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to an application."""
        return [
            web.get("/admin/cache", self.list),
            web.delete("/admin/cache", self.clear),
            web.post("/admin/cache/flush", self.flush),
            web.post("/admin/cache/explain", self.explain),
            web.post("/admin/drain", self.drain),
            web.post("/admin/sessions/close", self.close_session),
        ]

    async def flush(self, request: web.Request) -> web.Response:
        """Answer 200 when all that was published is durable, else 503; the same figures in both."""
        cache = self._present()
        timeout_s = await self._timeout(request, FLUSH_S)
        reply = await cache.flush(timeout_s)
        body = asdict(reply)
        if reply.durable:
            return _json(body)
        message = f"Not everything is durable: {reply.reason or 'see the figures'}."
        error = HttpError(503, "not_durable", message, retry_after_s=_RETRY_AFTER_S)
        return _json(body | orjson.loads(error.envelope()), status=error.status, headers=error.headers)

    async def list(self, request: web.Request) -> web.Response:
        """List entries, most recently used first; a page at a time."""
        cache = self._present()
        query = parse(PageQuery, _query(request))
        limit, offset = query.limit or PAGE_ENTRIES, query.offset or 0
        page = await cache.cache_page(query.tier or "all", offset, limit)
        entries = [asdict(entry) | {"idle_s": round(entry.idle_s, 3)} for entry in page.entries]
        end = offset + len(entries)
        body = {
            "entries": entries,
            "total": page.total,
            "bytes": page.bytes,
            "offset": offset,
            "limit": limit,
        }
        return _json(body | {"next_offset": end if entries and end < page.total else None})

    async def clear(self, request: web.Request) -> web.Response:
        """Let the entries of a tier go."""
        cache = self._present()
        tier = parse(ClearQuery, _query(request)).tier
        return _json({"tier": tier, "removed": asdict(await cache.clear_cache(tier))})

    async def explain(self, request: web.Request) -> web.Response:
        """Tell what a chat or completion request would reuse, and why not more."""
        cache = self._present()
        readiness = self._serving.readiness()
        if not readiness.accepting:
            raise not_ready(draining=readiness.draining)
        asked = await read_as(request, self._options.max_body_bytes, lambda body: self._asked(request, body))
        answer = await cache.explain(asked)
        if isinstance(answer, Refused):
            raise refusal(answer)
        text = None if answer.reason is None else _REASONS.get(answer.reason, answer.reason)
        return _json(asdict(answer) | {"message": text})

    async def drain(self, request: web.Request) -> web.Response:
        """Demote everything durable and free its RAM."""
        cache = self._present()
        return _json(asdict(await cache.drain_cache(await self._timeout(request, DRAIN_S))))

    async def close_session(self, request: web.Request) -> web.Response:
        """Forget a session; closing one that is unknown is no mistake."""
        cache = self._present()
        body = await read_object(request, self._options.max_body_bytes)
        session_id = parse(SessionBody, body).session_id
        return _json({"session_id": session_id, "closed": await cache.close_session(session_id)})

    def _asked(self, request: web.Request, body: JsonObject) -> GenerationRequest:
        """Return the generation that ``body`` asks for; of a completion's prompts, the only one."""
        info, names = self._serving.model(), self._serving.aliases()
        if "messages" in body or "prompt" not in body:
            return parse_chat(body, request.headers, info, names).request
        call = parse_completion(body, request.headers, info, names).call
        if len(call.prompt_starts) > 1:
            raise bad_value("prompt", "prompt: one prompt at a time can be explained.")
        return call.request

    def _present(self) -> CacheServing:
        if self._cache is None:
            raise HttpError(501, "no_cache", "This server has no prompt cache.")
        return self._cache

    async def _timeout(self, request: web.Request, default_s: float) -> float:
        """Return ``timeout_s`` of an optional body."""
        if not request.body_exists:
            return default_s
        body = await read_object(request, self._options.max_body_bytes)
        timeout_s = parse(WaitBody, body).timeout_s
        return default_s if timeout_s is None else timeout_s


def _query(request: web.Request) -> JsonObject:
    """Return the query's parameters, whole numbers as such."""
    values: JsonObject = {}
    for name, text in request.query.items():
        if name in values:
            raise bad_value(name[:64], f"{name[:64]} is given more than once.")
        whole = text.isascii() and text.isdigit() and len(text) < len("1000000000")
        values[name] = int(text) if whole else text
    return values


def _json(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )
