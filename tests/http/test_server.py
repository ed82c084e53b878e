from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import aiohttp
import pytest
from samovar.runtime.engine.port import Delta
from samovar.runtime.http.options import HttpOptions
from samovar.runtime.http.server import HttpBindError, HttpServer
from samovar.runtime.http.serving import Readiness

from .fakes import FakeServing, RecordingLog, chat, finished, live, raw, raw_chat, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samovar.actors.requests import GenerationRequest
    from samovar.actors.stream import RequestStream

    from .fakes import Script


def listening(**options: object) -> HttpServer:
    return HttpServer(FakeServing(), HttpOptions(**options), RecordingLog())  # pyright: ignore[reportArgumentType]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.001)


def paris_until(release: asyncio.Event) -> Script:
    async def held(stream: RequestStream, request: GenerationRequest) -> None:
        stream.push(Delta(request.id, "Paris", (1,)))
        await release.wait()
        stream.push(finished(request.id, 1))

    return held


async def refused_start(server: HttpServer) -> str:
    with pytest.raises(HttpBindError) as caught:
        await server.start()
    return str(caught.value)


def test_a_port_in_use_is_named() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            message = await refused_start(listening(port=port))
            assert message == f"server.port: 127.0.0.1:{port} is already in use"

    run(scenario())


def test_a_host_that_is_not_ours_is_named() -> None:
    assert run(refused_start(listening(host="192.0.2.1", port=0, api_keys=("k",)))).startswith(
        "server.host: cannot listen"
    )


def test_an_open_bind_needs_keys_or_consent() -> None:
    message = run(refused_start(listening(host="0.0.0.0", port=0)))
    assert "server.api_keys" in message
    assert "server.allow_unauthenticated" in message


@pytest.mark.parametrize("options", [{"api_keys": ("k",)}, {"allow_unauthenticated": True}])
def test_an_open_bind_with_keys_or_consent_answers_any_host(options: dict[str, object]) -> None:
    async def scenario() -> None:
        async with live(host="0.0.0.0", **options) as server:
            assert (await server.get("/health", headers={"Host": "box.lan"})).status == 200

    run(scenario())


def test_unix_socket_is_private_replaced_when_stale_and_never_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    async def scenario() -> None:
        server = listening(unix_socket=path)
        await server.start()
        assert server.address == str(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert "already in use" in await refused_start(listening(unix_socket=path))
        connector = aiohttp.UnixConnector(str(path))
        url = "http://anything/health"
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as response:
            assert response.status == 200
        await server.close(0.0)
        assert not path.exists()

    run(scenario())


def test_an_impossible_unix_socket_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "s"
    assert run(refused_start(listening(unix_socket=path))).startswith(
        f"server.unix_socket: cannot listen on {path}"
    )


def test_the_real_port_is_known_and_the_same_address_can_be_bound_again() -> None:
    async def scenario() -> None:
        server = listening(port=0)
        await server.start()
        port = server.port
        assert server.address == f"http://127.0.0.1:{port}"
        await server.close(0.0)
        await server.close(0.0)
        again = listening(port=port)
        await again.start()
        await again.close(0.0)

    run(scenario())


def test_closing_lets_running_requests_finish_and_drops_idle_connections() -> None:
    release = asyncio.Event()

    async def scenario() -> None:
        async with live(FakeServing(paris_until(release))) as server:
            port = server.server.port
            idle = raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with idle as (idle_reader, _), raw(server, raw_chat(chat(stream=True))) as (reader, _):
                await idle_reader.readuntil(b"}")
                await reader.readuntil(b"Paris")
                closing = asyncio.ensure_future(server.server.close(10.0))
                assert b"HTTP" not in await idle_reader.read()  # closed at once
                with pytest.raises(ConnectionError):
                    await asyncio.open_connection("127.0.0.1", port)
                release.set()
                assert b"[DONE]" in await reader.read()
                await closing

    run(scenario())


@pytest.mark.parametrize("sent", [0, 10, 200, -1], ids=["nothing", "half a head", "half a body", "all"])
def test_a_request_that_is_on_its_way_when_idle_connections_close_is_answered(sent: int) -> None:
    request = raw_chat(chat("x" * 200))
    sent %= len(request) + 1

    async def scenario() -> None:
        async with live() as server, raw(server, request[:sent]) as (reader, writer):
            await until(lambda: len(server.server.connections) == 1)
            if sent:
                await asyncio.sleep(0.02)
            server.server.close_idle()
            writer.write(request[sent:])
            answer = await reader.read()  # which ends: it is closed after its answer
            assert answer.startswith(b"HTTP/1.1 200")
            assert sent == len(request) or b"Connection: close" in answer

    run(scenario())


def test_one_that_arrived_in_the_same_turn_of_the_loop_is_answered() -> None:
    async def scenario() -> None:
        async with live() as server:
            for turns in range(8):
                async with raw(server, b"") as (reader, writer):
                    await until(lambda: any(one.idle for one in server.server.connections))
                    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    server.server.close_idle()
                    assert (await reader.read()).startswith(b"HTTP/1.1 200"), turns

    run(scenario())


def test_connections_that_had_their_answer_close_with_the_idle_ones_and_streams_after_theirs() -> None:
    release = asyncio.Event()

    async def scenario() -> None:
        async with live(FakeServing(paris_until(release))) as server:
            idle = raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with idle as (idle_reader, _), raw(server, raw_chat(chat(stream=True))) as (reader, _):
                await idle_reader.readuntil(b"}")
                await reader.readuntil(b"Paris")
                server.server.close_idle()
                assert b"HTTP" not in await idle_reader.read()
                release.set()
                assert b"[DONE]" in await reader.read()

    run(scenario())


def test_closing_tells_requests_that_do_not_finish() -> None:
    async def endless(stream: RequestStream, request: GenerationRequest) -> None:
        if request.sampling.seed == 1:
            stream.push(Delta(request.id, "Paris", (1,)))

    async def scenario() -> None:
        async with live(FakeServing(endless)) as server:
            begun, waiting = raw_chat(chat(stream=True, seed=1)), raw_chat(chat())
            async with raw(server, begun) as (first, _), raw(server, waiting) as (second, _):
                await first.readuntil(b"Paris")
                await server.serving.arrived()
                await server.serving.arrived()
                await server.server.close(0.0)
                text = await first.read()
                assert b'"code":"shutting_down"' in text
                assert b"[DONE]" not in text
                answer = await second.read()
                assert answer.startswith(b"HTTP/1.1 503")
                assert b"Retry-After: 5" in answer
            assert len(server.serving.cancelled) == 2
            assert [record.error_code for record in server.log.records] == ["shutting_down"] * 2

    run(scenario())


def test_a_handler_that_does_not_listen_is_cancelled_in_the_end() -> None:
    class Deaf(FakeServing):
        async def submit(self, request: GenerationRequest):
            self.arrivals.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(1.1)  # past the farewell
                raise

    async def scenario() -> None:
        async with live(Deaf()) as server, raw(server, raw_chat(chat())) as (reader, _):
            await server.serving.arrived()
            await server.server.close(0.0)
            assert server.server.active == 0
            await reader.read()

    run(scenario())


def test_readiness_liveness_and_their_reasons() -> None:
    async def scenario() -> None:
        serving = FakeServing(ready=Readiness(ready=False, detail={"serving/lanes/0": "starting"}))
        async with live(serving) as server:
            ready = await server.get("/ready")
            assert (ready.status, ready.headers["Retry-After"]) == (503, "1")
            assert ready.json()["detail"] == {"serving/lanes/0": "starting"}
            assert ready.json()["error"]["code"] == "not_ready"
            assert (await server.get("/health")).json()["ready"] is False
            assert (await server.get("/v1/models")).status == 503
            serving.ready = Readiness(ready=False, draining=True)
            assert (await server.get("/ready")).json()["draining"] is True
            serving.ready = Readiness(ready=True)
            assert (await server.get("/ready")).status == 200

    run(scenario())


def test_models_list_every_name_and_each_can_be_looked_up() -> None:
    async def scenario() -> None:
        async with live(FakeServing(names=("org/some-model",))) as server:
            listed = (await server.get("/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == ["smollm2", "org/some-model", "default"]
            for model in listed:
                assert (await server.get(f"/v1/models/{model['id']}")).json() == model
            missing = await server.get("/v1/models/gpt-9")
            assert (missing.status, missing.error["code"]) == (404, "model_not_found")

    run(scenario())


def test_stats_and_tree() -> None:
    async def scenario() -> None:
        async with live() as server:
            await server.post(chat())
            stats = (await server.get("/stats")).json()
            assert stats["scheduler"] == {"admitted": 1}
            assert stats["responses"]["entries"] == 0
            assert (await server.get("/admin/tree")).json()["actors"][0]["path"] == "serving/lanes/0"

    run(scenario())


def test_actors_are_crashed_only_with_fault_injection() -> None:
    async def scenario() -> None:
        async with live() as server:
            assert (await server.post(b"", "/admin/actors/serving/lanes/0/crash")).status == 404
            assert not server.serving.crashed
        async with live(fault_injection=True) as server:
            assert (await server.post(b"", "/admin/actors/serving/lanes/0/crash")).status == 200
            assert server.serving.crashed == ["serving/lanes/0"]
            reply = await server.post(b"", "/admin/actors/nobody/crash")
            assert (reply.status, reply.error["code"]) == (404, "actor_not_found")

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/nothing", 404, "not_found"),
        ("POST", "/chat/completions", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
    ],
)
def test_routes_that_do_not_exist(method: str, path: str, status: int, code: str) -> None:
    async def scenario() -> None:
        async with live() as server:
            reply = await server.send(
                method, path, json=chat() if method == "POST" else None, allow_redirects=False
            )
            assert (reply.status, reply.error["code"]) == (status, code)
            assert (status == 405) == ("Allow" in reply.headers)

    run(scenario())
