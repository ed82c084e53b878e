"""Errors wear the envelope of the API that the route belongs to: as an answer and amid a stream."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from samovar.runtime.http.errors import HttpError, envelope_for, error_event_for, is_anthropic
from samovar.runtime.http.events import EventStream
from samovar.runtime.http.exchange import EXCHANGE, Exchange

from .fakes import chat, live, run

TOO_MANY = HttpError(429, "queue_full", "64 requests are waiting already", retry_after_s=3.0)


@pytest.mark.parametrize(
    ("path", "anthropic"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messagesque", False),
        ("/v1/chat/completions", False),
        ("/admin/v1/messages", False),
    ],
)
def test_the_path_alone_decides(path: str, anthropic: bool) -> None:
    assert is_anthropic(path) == anthropic
    body = json.loads(envelope_for(path, TOO_MANY, "req-1"))
    assert ("request_id" in body) == anthropic


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_anthropics_types_follow_the_status(status: int, kind: str) -> None:
    error = HttpError(status, "some_code", "Some message.", param="max_tokens")
    assert json.loads(error.anthropic_envelope("req-1")) == {
        "type": "error",
        "error": {"type": kind, "message": "Some message.", "code": "some_code", "param": "max_tokens"},
        "request_id": "req-1",
    }


def test_events_carry_the_same_envelopes() -> None:
    ours = error_event_for("/v1/completions", TOO_MANY, "req-1")
    assert ours == b"data: " + TOO_MANY.envelope() + b"\n\n"
    theirs = error_event_for("/v1/messages", TOO_MANY, "req-1")
    assert theirs == b"event: error\ndata: " + TOO_MANY.anthropic_envelope("req-1") + b"\n\n"


def test_refusals_before_any_handler_fit_the_route_too() -> None:
    async def scenario() -> None:
        async with live(api_keys=("sk-1",)) as server:
            reply = await server.post(chat(), path="/v1/messages", headers={"x-request-id": "mine"})
            assert reply.status == 401
            body = reply.json()
            assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
            assert body["request_id"] == reply.headers["x-request-id"] == "mine"
            assert (await server.post(chat())).error["code"] == body["error"]["code"] == "invalid_api_key"

    run(scenario())


@pytest.mark.parametrize("own", [None, b'event: error\ndata: {"sequence_number":7}\n\n'])
def test_an_open_stream_ends_with_the_routes_event_or_its_own(own: bytes | None) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        request[EXCHANGE] = Exchange("req-1", loop.time(), asyncio.timeout(None), request.transport)
        events = EventStream(request, keep_alive_s=60.0)
        if own is not None:
            events.failure_event = lambda _: own
        await events.write(b"event: ping\ndata: {}\n\n")
        await events.fail(TOO_MANY)
        return events.response

    async def scenario() -> None:
        async with live() as server:
            app = web.Application()
            app.router.add_get("/v1/messages", handler)
            runner = web.AppRunner(app)
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/messages"
                async with server.session.get(url) as response:
                    body = await response.read()
            finally:
                await runner.cleanup()
            expected = own or error_event_for("/v1/messages", TOO_MANY, "req-1")
            assert body == b"event: ping\ndata: {}\n\n" + expected

    run(scenario())
