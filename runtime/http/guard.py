"""Who may ask: host names, origins, keys.

A page in a user's browser can reach a loopback server, so on loopback the Host header must name this
machine or an allowed host (DNS rebinding), and a foreign Origin is refused unless it is configured.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from aiohttp import web

from .errors import HttpError
from .options import HttpOptions, is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.typedefs import Handler, Middleware

# Probes carry no keys; these two routes tell nothing about requests.
OPEN_ROUTES = frozenset({"/health", "/ready"})
_PREFLIGHT_AGE_S = 600


def guard_middleware(options: HttpOptions) -> Middleware:
    """Return the middleware that checks host, origin and key, in this order, and answers preflights."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_host(request, options)
        check_origin(request, options)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return _preflight(request)
        check_key(request, options)
        return await handler(request)

    return guard


def check_host(request: web.Request, options: HttpOptions) -> None:
    """Raise HttpError 403 when the Host header names somebody else."""
    hosts = request.headers.getall("Host", [])
    if options.unix_socket is not None or (not options.loopback_only and not options.allowed_hosts):
        return
    if len(hosts) > 1:
        raise HttpError(400, "duplicate_header", "The request has more than one Host header.")
    # Browsers always send Host; without it (HTTP/1.0 tools) there is nothing to rebind.
    if hosts and not _host_allowed(hosts[0], options.allowed_hosts):
        message = f"Host {hosts[0][:80]!r} is neither loopback nor in server.allowed_hosts."
        raise HttpError(403, "host_not_allowed", message)


def check_origin(request: web.Request, options: HttpOptions) -> None:
    """Raise HttpError 403 for a web page of another origin that is not configured."""
    origin = request.headers.get("Origin")
    if origin is None or allowed_origin(origin, options) or _same_origin(origin, request):
        return
    message = f"Origin {origin[:80]!r} is not in server.cors_origins."
    raise HttpError(403, "origin_not_allowed", message)


def check_key(request: web.Request, options: HttpOptions) -> None:
    """Raise HttpError 401 unless the bearer key fits the route. Admin keys open every route."""
    if request.path in OPEN_ROUTES:
        return
    if request.path.startswith("/admin/") and options.admin_keys:
        accepted: Sequence[str] = options.admin_keys
    elif options.api_keys:
        accepted = (*options.api_keys, *options.admin_keys)
    else:
        return
    if not _matches(_bearer(request), accepted):
        message = "A valid key is required: Authorization: Bearer KEY."
        raise HttpError(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})


def allowed_origin(origin: str, options: HttpOptions) -> bool:
    """Return whether pages of ``origin`` may read replies."""
    return origin in options.cors_origins or "*" in options.cors_origins


def cors_headers(request: web.BaseRequest, options: HttpOptions) -> dict[str, str]:
    """Return the CORS headers of a response; none unless the request's origin is configured."""
    origin = request.headers.get("Origin")
    if origin is None or not allowed_origin(origin, options):
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "x-request-id, Retry-After",
        "Vary": "Origin",
    }


def _preflight(request: web.Request) -> web.Response:
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "content-type"),
        "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
    }
    return web.Response(status=204, headers=headers)


def _host_allowed(host: str, allowed: Sequence[str]) -> bool:
    name = host.lower()
    bare = name.rpartition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]
    known = {entry.lower() for entry in allowed}
    return is_loopback(bare) or bare in known or name in known


def _same_origin(origin: str, request: web.Request) -> bool:
    return origin.partition("://")[2].lower() == request.headers.get("Host", "").lower() != ""


def _bearer(request: web.Request) -> bytes:
    given = request.headers.getall("Authorization", [])
    scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    return key.strip().encode(errors="surrogateescape") if scheme.lower() == "bearer" else b""


def _matches(key: bytes, accepted: Sequence[str]) -> bool:
    found = False
    for candidate in accepted:  # no early exit: the time taken tells nothing about which key came close
        found |= hmac.compare_digest(key, candidate.encode())
    return found and bool(key)
