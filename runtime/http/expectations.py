"""The Expect header: ``100-continue`` is met, anything else is refused with an answer like any other.

aiohttp would refuse it before any middleware, in plain text, unrecorded and without looking at keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import HttpVersion11, web

from .errors import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONTINUE: Final = "100-continue"
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def with_expectations(routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """Return the routes so that an Expect header reaches the middlewares."""
    return [
        web.RouteDef(each.method, each.path, each.handler, {**each.kwargs, "expect_handler": _meet})
        for each in routes
    ]


def check_expectation(request: web.Request) -> None:
    """Raise HttpError 417 over an expectation that the server does not know."""
    if not _expected(request) <= {_CONTINUE}:
        raise HttpError(417, "expectation_failed", f"The only Expect header taken is {_CONTINUE}.")


async def _meet(request: web.Request) -> None:
    """Tell the client to send its body, if it waits for that."""
    if _CONTINUE in _expected(request):
        await request.writer.write(_INTERIM)
        request.writer.output_size = 0  # what was sent is no part of the answer


def _expected(request: web.Request) -> set[str]:
    """Return what is expected; HTTP/1.0 knows no expectations (RFC 9110, 10.1.1)."""
    if request.version < HttpVersion11:
        return set()
    return {value.strip().lower() for value in request.headers.getall("Expect", [])}
