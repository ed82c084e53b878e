"""Who may ask: host names, origins, keys.

A page in a user's browser can reach a loopback server, so on loopback the Host header must name this
machine or an allowed host (DNS rebinding), and a foreign Origin is refused unless it is configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from .errors import HttpError
from .expectations import check_expectation

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

    from .access import Access, AccessRules
    from .options import HttpOptions

# Probes carry no keys; these two routes tell nothing about requests.
OPEN_ROUTES = frozenset({"/health", "/ready"})
_PREFLIGHT_AGE_S = 600


def guard_middleware(options: HttpOptions, access: Access) -> Middleware:
    """Return the middleware that checks Expect, Host, Origin, key, in this order; it answers preflights."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        rules = access.rules
        check_expectation(request)
        check_host(request, options, rules)
        check_origin(request, rules)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return _preflight(request)
        check_key(request, rules)
        return await handler(request)

    return guard


def check_host(request: web.Request, options: HttpOptions, rules: AccessRules) -> None:
    """Raise HttpError 403 when the Host header names somebody else."""
    hosts = request.headers.getall("Host", [])
    if options.unix_socket is not None or (not options.loopback_only and not rules.hosts):
        return
    if len(hosts) > 1:
        raise HttpError(400, "duplicate_header", "The request has more than one Host header.")
    # Browsers always send Host; without it (HTTP/1.0 tools) there is nothing to rebind.
    if hosts and not rules.knows_host(hosts[0]):
        message = f"Host {hosts[0][:80]!r} is neither loopback nor in server.allowed_hosts."
        raise HttpError(403, "host_not_allowed", message)


def check_origin(request: web.Request, rules: AccessRules) -> None:
    """Raise HttpError 403 for a web page of another origin that is not configured."""
    origin = request.headers.get("Origin")
    if origin is None or rules.knows_origin(origin) or _same_origin(origin, request):
        return
    message = f"Origin {origin[:80]!r} is not in server.cors_origins."
    raise HttpError(403, "origin_not_allowed", message)


def check_key(request: web.Request, rules: AccessRules) -> None:
    """Raise HttpError 401 unless a key that was sent fits the route."""
    ring = None if request.path in OPEN_ROUTES else rules.ring_for(request.path)
    if ring is not None and not ring.opens(_keys(request)):
        message = "A valid key is required: Authorization: Bearer KEY, or x-api-key: KEY."
        raise HttpError(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})


def cors_headers(request: web.BaseRequest, rules: AccessRules) -> dict[str, str]:
    """Return the CORS headers of a response; none unless the request's origin is configured."""
    origin = request.headers.get("Origin")
    if origin is None or not rules.knows_origin(origin):
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "x-request-id, request-id, Retry-After",
        "Vary": "Origin",
    }


def _preflight(request: web.Request) -> web.Response:
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "content-type"),
        "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
    }
    return web.Response(status=204, headers=headers)


def _same_origin(origin: str, request: web.Request) -> bool:
    return origin.partition("://")[2].lower() == request.headers.get("Host", "").lower() != ""


def _keys(request: web.Request) -> list[bytes]:
    """Return the keys sent as a bearer token (OpenAI's clients) and as ``x-api-key`` (Anthropic's)."""
    bearer = _only(request, "Authorization").partition(" ")
    found = [bearer[2] if bearer[0].lower() == "bearer" else "", _only(request, "x-api-key")]
    return [key.strip().encode(errors="surrogateescape") for key in found if key.strip()]


def _only(request: web.Request, name: str) -> str:
    """Return the header; nothing where it was sent twice, since proxies may disagree which one counts."""
    values = request.headers.getall(name, [])
    return values[0] if len(values) == 1 else ""
