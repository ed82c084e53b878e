from __future__ import annotations

from hashlib import sha256

import pytest
from samovar.runtime.http.access import Access
from samovar.runtime.http.options import HttpOptions

from .fakes import FakeServing, chat, live, raw, raw_chat, run

KEY = {"Authorization": "Bearer sk-1"}
ADMIN = {"Authorization": "Bearer adm"}
EVIL = "https://evil.example"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::2]:80", "0.0.0.0"]
)
def test_a_foreign_host_is_refused_on_loopback(host: str) -> None:
    async def scenario() -> None:
        async with live() as server:
            for reply in (
                await server.post(chat(), headers={"Host": host}),
                await server.get("/health", headers={"Host": host}),
            ):
                assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")
            assert not server.serving.requests

    run(scenario())


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1:8080",
        "127.9.9.9",
        "[::1]:8080",
        "app.localhost",
        "box.lan",
        "box.lan:80",
    ],
)
def test_loopback_and_allowed_hosts_pass(host: str) -> None:
    async def scenario() -> None:
        async with live(allowed_hosts=("Box.lan",)) as server:
            assert (await server.get("/health", headers={"Host": host})).status == 200

    run(scenario())


def test_two_hosts_are_refused_and_none_is_fine_for_old_tools() -> None:
    async def scenario() -> None:
        async with live() as server:
            async with raw(server, b"GET /health HTTP/1.0\r\n\r\n") as (reader, _):
                assert (await reader.readline()).split()[1] == b"200"
            two = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
            async with raw(server, two) as (reader, _):
                assert (await reader.readline()).split()[1] == b"400"

    run(scenario())


def test_a_foreign_page_is_refused_and_sees_no_cors_header() -> None:
    async def scenario() -> None:
        async with live() as server:
            for origin in (EVIL, "null"):
                reply = await server.post(chat(), headers={"Origin": origin})
                assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")
                assert "Access-Control-Allow-Origin" not in reply.headers
            ask = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
            assert (await server.send("OPTIONS", "/v1/chat/completions", headers=ask)).status == 403
            assert not server.serving.requests
            own = f"http://127.0.0.1:{server.server.port}"
            assert (await server.post(chat(), headers={"Origin": own})).status == 200

    run(scenario())


@pytest.mark.parametrize("configured", ["https://ui.example", "*"])
def test_a_configured_page_may_ask_and_read(configured: str) -> None:
    origin = "https://ui.example"

    async def scenario() -> None:
        async with live(cors_origins=(configured,), api_keys=("sk-1",)) as server:
            ask = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type",
            }
            reply = await server.send("OPTIONS", "/v1/chat/completions", headers=ask)
            assert (reply.status, reply.headers["Access-Control-Allow-Headers"]) == (
                204,
                "authorization,content-type",
            )
            for body in (chat(stream=True), chat(temperature=9)):
                reply = await server.post(body, headers={"Origin": origin} | KEY)
                assert reply.headers["Access-Control-Allow-Origin"] == origin
                assert reply.headers["Vary"] == "Origin"

    run(scenario())


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ",
        "Bearer sk-2",
        "Bearer sk-11",
        "Basic sk-1",
        "sk-1",
        "Bearer sk-1 x",
        "Bearer sk-ü",
    ],
)
def test_a_wrong_key_opens_nothing(header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}

    async def scenario() -> None:
        async with live(api_keys=("sk-1",), fault_injection=True) as server:
            replies = [
                await server.post(chat(), headers=headers),
                await server.post(b"", "/admin/actors/serving/lanes/0/crash", headers=headers),
                await server.get("/v1/chat/completions?api_key=sk-1", headers=headers),
            ]
            paths = ("/v1/models", "/v1/models/smollm2", "/stats", "/admin/tree", "/nothing")
            replies += [await server.get(path, headers=headers) for path in paths]
            for reply in replies:
                assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
                assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert not server.serving.requests
            assert not server.serving.crashed
            for path in ("/health", "/ready"):
                assert (await server.get(path, headers=headers)).status == 200

    run(scenario())


def test_a_right_key_opens_everything_and_admin_keys_guard_administration() -> None:
    async def scenario() -> None:
        async with live(api_keys=("sk-0", "sk-1"), admin_keys=("adm",)) as server:
            assert (await server.post(chat(), headers=KEY)).status == 200
            assert (await server.post(chat(), headers={"Authorization": "bearer sk-1"})).status == 200
            assert (await server.get("/admin/tree", headers=KEY)).status == 401
            assert (await server.get("/admin/tree", headers=ADMIN)).status == 200
            assert (await server.post(chat(), headers=ADMIN)).status == 200
        async with live(admin_keys=("adm",)) as server:
            assert (await server.post(chat())).status == 200
            assert (await server.get("/admin/tree")).status == 401

    run(scenario())


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1_2.3:4", True), ("a" * 129, False), ("a b", False), ("é", False)]
)
def test_a_sane_request_id_is_kept(given: str, kept: bool) -> None:
    async def scenario() -> None:
        async with live() as server:
            reply = await server.get("/nothing", headers={"x-request-id": given})
            assert (reply.headers["x-request-id"] == given) is kept
            assert server.log.records[0].request_id == reply.headers["x-request-id"]

    run(scenario())


def test_errors_do_not_name_the_software_behind() -> None:
    async def scenario() -> None:
        async with live(FakeServing()) as server:
            reply = await server.get("/nothing")
            assert reply.headers["Server"] == "samovar"

    run(scenario())


@pytest.mark.parametrize(
    "name", ["Authorization", "Origin", "Content-Type", "Content-Encoding", "x-session-id", "x-request-id"]
)
def test_bytes_that_are_no_text_in_a_header_are_the_clients_fault(name: str) -> None:
    async def scenario() -> None:
        async with live(api_keys=("sk-1",)) as server:
            key = b"" if name == "Authorization" else b"Authorization: Bearer sk-1\r\n"
            data = raw_chat(chat()).replace(
                b"\r\n", b"\r\n" + key + name.encode() + b": Bearer \xff\xfe\r\n", 1
            )
            async with raw(server, data) as (reader, _):
                status = int((await reader.readline()).split()[1])
            assert status == 200 if name == "x-request-id" else 400 <= status < 500

    run(scenario())


def test_keys_may_be_configured_as_digests() -> None:
    digest = "sha256:" + sha256(b"sk-1").hexdigest().upper()

    async def scenario() -> None:
        async with live(api_keys=(digest,)) as server:
            assert (await server.post(chat(), headers={"Authorization": f"Bearer {digest}"})).status == 401
            assert (await server.post(chat(), headers={"x-api-key": digest})).status == 401
            assert (await server.post(chat(), headers=KEY)).status == 200

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((("x-api-key", "sk-2"),), 401),
        ((("x-api-key", ""),), 401),
        ((("x-api-key", "Bearer sk-1"),), 401),
        ((("x-api-key", "sk-1"), ("x-api-key", "sk-1")), 401),
        ((("Authorization", "Bearer sk-1"), ("Authorization", "Bearer sk-1")), 401),
        ((("x-api-key", "sk-1"),), 200),
        ((("X-API-Key", " sk-1 "),), 200),
        # Some clients send a key of another service in the header that they do not mean.
        ((("x-api-key", "sk-2"), ("Authorization", "Bearer sk-1")), 200),
        ((("x-api-key", "sk-1"), ("Authorization", "Bearer sk-2")), 200),
    ],
)
def test_anthropics_key_header_is_as_good(headers: tuple[tuple[str, str], ...], status: int) -> None:
    async def scenario() -> None:
        async with live(api_keys=("sk-0", "sk-1")) as server:
            for path in ("/v1/models", "/stats", "/metrics", "/admin/tree"):
                assert (await server.get(path, headers=headers)).status == status, path

    run(scenario())


def test_rules_that_are_replaced_hold_from_the_next_request_on() -> None:
    async def scenario() -> None:
        access = Access(HttpOptions(api_keys=("sk-1",)))
        async with live(access=access) as server:
            assert (await server.get("/stats", headers=KEY)).status == 200
            access.replace(HttpOptions(api_keys=("sk-2",), allowed_hosts=("box.lan",)))
            assert (await server.get("/stats", headers=KEY)).status == 401
            elsewhere = {"Host": "box.lan", "x-api-key": "sk-2"}
            assert (await server.get("/stats", headers=elsewhere)).status == 200

    run(scenario())
