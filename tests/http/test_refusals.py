"""How a refusal of the scheduler, or a request that it gave up, looks to a client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from samovar.actors.requests import Refused
from samovar.runtime.engine.port import Delta, Failed
from samovar.runtime.http.serving import Readiness

from .fakes import FakeServing, chat, live, run
from .test_validation import refused, request

if TYPE_CHECKING:
    from samovar.actors.requests import GenerationRequest, ServiceClass
    from samovar.actors.stream import RequestStream

CAUSE = "this request crashed the lane that served it, twice: decode failed: RuntimeError: device lost"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "retry_after"),
    [
        (Refused("queue_full", "64 requests are waiting already", retry_after_s=12.3), 429, "13"),
        (Refused("draining", "the server is shutting down", retry_after_s=40.0), 503, "40"),
        (Refused("memory_exceeded", "needs 9 bytes; there are 8", "max_tokens"), 400, None),
        (Refused("lane_crashed", CAUSE), 500, None),
    ],
)
def test_a_refusal_has_its_status_and_its_time(
    refusal: Refused, status: int, retry_after: str | None, stream: bool
) -> None:
    async def scenario() -> None:
        async with live(FakeServing(refuse=lambda _: refusal)) as server:
            reply = await server.post(chat(stream=stream))
            assert (reply.status, reply.error["code"]) == (status, refusal.code)
            assert reply.error["message"] == refusal.message
            assert reply.error["param"] == refusal.param
            assert reply.headers.get("Retry-After") == retry_after

    run(scenario())


def test_a_draining_server_says_when_it_will_be_done() -> None:
    async def scenario() -> None:
        ready = Readiness(ready=True, draining=True, retry_after_s=17.0)
        async with live(FakeServing(ready=ready)) as server:
            reply = await server.post(chat())
            assert (reply.status, reply.headers["Retry-After"]) == (503, "17")

    run(scenario())


async def fail_for_a_reason(stream: RequestStream, request: GenerationRequest) -> None:
    stream.push(Failed(request.id, "lane_crashed", CAUSE, shown=True))


async def fail_late(stream: RequestStream, request: GenerationRequest) -> None:
    stream.push(Delta(request.id, "It", (1,)))
    for _ in range(3):  # rounds in which the handler takes and writes it
        await asyncio.sleep(0)
    await fail_for_a_reason(stream, request)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_crashed_its_lane_is_told_the_cause(stream: bool) -> None:
    async def scenario() -> None:
        async with live(FakeServing(fail_for_a_reason)) as server:
            reply = await server.post(chat(stream=stream))
            assert (reply.status, reply.error["code"]) == (500, "lane_crashed")
            assert CAUSE in reply.error["message"]
            server.serving.script = fail_late
            reply = await server.post(chat(stream=True))
            assert reply.status == 200
            assert CAUSE in reply.events()[-1]["error"]["message"]

    run(scenario())


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        (None, "default"),
        ("auto", "default"),
        ("default", "default"),
        ("scale", "default"),
        ("flex", "flex"),
        ("priority", "priority"),
    ],
)
def test_service_tiers_are_classes(tier: str | None, expected: ServiceClass) -> None:
    assert request(service_tier=tier).service_class == expected


@pytest.mark.parametrize("tier", ["slow", "", 3])
def test_other_service_tiers_are_refused(tier: object) -> None:
    error = refused(chat(service_tier=tier))
    assert (error.status, error.param) == (400, "service_tier")
