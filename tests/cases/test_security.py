"""Scenarios of people who should not: foreign pages, other tenants, callers without keys, silly sizes."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.app.process import ServerProcess
from tests.http.fakes import Live, chat, live, raw, raw_chat
from tests.http.fakes import run as run_http

from .rig import logged, run, serving, tiny, user

if TYPE_CHECKING:
    from pathlib import Path

    from .rig import Server

pytestmark = pytest.mark.timeout(60)

EVIL = "https://evil.example"
KEY, ADMIN = "sk-client-1", "sk-admin-1"
OPEN = {"/health", "/ready"}
TENANTS = ("cache.ram.min_tokens=16", "cache.ssd.restore_min_tokens=16")
SECRET = "the lamp in the window of the old mill stands for a secret"


# --- B080 -------------------------------------------------------------------------------------------


def test_b080_a_web_page_gets_nothing_done_and_reads_nothing() -> None:
    """B080: foreign origins, preflights, foreign hosts: refused, and no CORS header for anyone."""

    async def scenario() -> None:
        async with live() as server:
            preflight = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
            replies = [
                await server.post(chat(), headers={"Origin": EVIL}),
                await server.send("OPTIONS", "/v1/chat/completions", headers=preflight),
                await server.post(chat(), headers={"Host": "evil.example:8080"}),
                await server.get("/stats", headers={"Host": "evil.example"}),
                await server.get("/v1/models", headers={"Origin": "null"}),
            ]
            for reply in replies:
                assert reply.status == 403
                assert not [name for name in reply.headers if name.lower().startswith("access-control")]
            assert not server.serving.requests

    run_http(scenario())


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_b080_a_form_that_needs_no_preflight_is_refused(kind: str) -> None:
    """B080: the content types that a page may send anywhere without asking first are not JSON."""

    async def scenario() -> None:
        async with live() as server:
            reply = await server.post(chat(), headers={"Content-Type": kind})
            assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")
            assert not server.serving.requests

    run_http(scenario())


def test_b080_old_tools_without_a_host_and_own_pages_are_served() -> None:
    """B080: the other side: HTTP/1.0 has no Host, and a page of this server is no foreign one."""

    async def scenario() -> None:
        async with live() as server:
            old = raw_chat(chat(), version="1.0").replace(b"Host: localhost\r\n", b"")
            async with raw(server, old) as (reader, _):
                assert (await reader.readline()).split()[1] == b"200"
            own = f"http://127.0.0.1:{server.server.port}"
            assert (await server.post(chat(), headers={"Origin": own})).status == 200

    run_http(scenario())


# --- B082 -------------------------------------------------------------------------------------------


async def cached(server: Server, salt: str | None) -> int:
    fields: dict[str, Any] = {} if salt is None else {"cache_salt": salt}
    return (await server.talk(SECRET, max_tokens=2, **fields)).cached


def test_b082_a_prompt_of_another_salt_is_never_a_hit_in_ram() -> None:
    """B082: same prompt with salt a, a, b, none: only the second is a hit; and each then hits its own."""

    async def scenario() -> None:
        async with serving(tiny(), None, *TENANTS) as server:
            first = [await cached(server, salt) for salt in ("a", "a", "b", None)]
            assert first[1] > 0
            assert [first[0], first[2], first[3]] == [0, 0, 0]
            again = [await cached(server, salt) for salt in ("a", "b", None)]
            assert all(again)

    run(scenario())


def test_b082_nor_after_a_restart_from_disk(tmp_path: Path) -> None:
    """B082: on disk too, and the salt itself is nowhere in a name or a file."""
    settings = (*TENANTS, f"cache.ssd.dir={tmp_path}")

    async def scenario() -> None:
        async with serving(tiny(), None, *settings) as server:
            assert await cached(server, "salt-of-the-first-tenant") == 0
            await server.flush()
        async with serving(tiny(), None, *settings) as server:
            assert await cached(server, "salt-of-the-second-tenant") == 0
            assert await cached(server, None) == 0
            assert await cached(server, "salt-of-the-first-tenant") > 0

    run(scenario())
    files = list(tmp_path.rglob("*"))
    assert any(path.suffix == ".kv" for path in files)
    for path in files:
        assert "salt-of" not in path.name
        assert not path.is_file() or b"salt-of" not in path.read_bytes()


def test_b082_nobody_waits_for_anothers_prefill() -> None:
    """B082: prompts that come together share a prefill within a salt, and only there."""

    async def scenario() -> None:
        async with serving(tiny(), None, *TENANTS) as server:
            long = SECRET * 6
            together = [server.talk(long, max_tokens=2, cache_salt=salt) for salt in ("a", "a", "b", "b")]
            hits = [answer.cached > 0 for answer in await asyncio.gather(*together)]
            assert (sum(hits[:2]), sum(hits[2:])) == (1, 1)
            assert (await server.talk(long, max_tokens=2)).cached == 0

    run(scenario())


def test_b082_an_explanation_tells_only_of_ones_own_salt() -> None:
    """B082: the administration's view of a prompt goes by salt as well."""

    async def scenario() -> None:
        async with serving(tiny(), None, *TENANTS) as server:
            await cached(server, "a")
            body = {"messages": [user(SECRET)]}
            found = {}
            for salt in ("a", "b"):
                _, found[salt] = await server.call(
                    "POST", "/admin/cache/explain", body | {"cache_salt": salt}
                )
            assert found["a"]["cached_tokens"] > 0
            assert found["b"]["cached_tokens"] == 0

    run(scenario())


# --- B083 -------------------------------------------------------------------------------------------


def routes_of(server: Live) -> set[tuple[str, str]]:
    """Return method and a path for every route that the application has."""
    found = set()
    for route in server.server._runner.app.router.routes():
        path = route.resource.canonical if route.resource is not None else ""
        for name in ("{name}", "{path}", "{id}", "{response_id}"):
            path = path.replace(name, "x")
        found.add((route.method, path))
    return found


BAD_KEYS: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": f"Basic {KEY}"},
    {"Authorization": KEY},
    {"x-api-key": "wrong"},
    {"api-key": KEY},
    {"Cookie": f"key={KEY}"},
]


def test_b083_every_route_but_the_probes_asks_for_a_key() -> None:
    """B083: no key, a wrong one, one in the query or elsewhere: 401 on each route that exists."""

    async def scenario() -> None:
        async with live(api_keys=(KEY,), admin_keys=(ADMIN,), fault_injection=True) as server:
            routes = routes_of(server)
            assert {path for _, path in routes} >= {"/metrics", "/stats", "/admin/cache/flush", *OPEN}
            assert len(routes) > 15
            for method, path in sorted(routes):
                for headers in BAD_KEYS:
                    reply = await server.send(method, f"{path}?api_key={KEY}&key={KEY}", headers=headers)
                    assert reply.status == (200 if path in OPEN else 401), (method, path, headers)
            assert not server.serving.requests
            assert not server.serving.crashed

    run_http(scenario())


def test_b083_a_client_key_administers_nothing_and_case_and_twins_are_settled() -> None:
    """B083: "bearer" in any case is right; two headers are nobody's."""

    async def scenario() -> None:
        async with live(api_keys=(KEY,), admin_keys=(ADMIN,)) as server:
            for scheme in ("Bearer", "bearer", "BEARER"):
                assert (
                    await server.get("/stats", headers={"Authorization": f"{scheme} {KEY}"})
                ).status == 200
            twins = [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer wrong")]
            assert (await server.get("/stats", headers=twins)).status == 401
            for method, path in sorted(routes_of(server)):
                if path.startswith("/admin/"):
                    reply = await server.send(method, path, headers={"x-api-key": KEY})
                    assert reply.status == 401, path

    run_http(scenario())


def test_b083_what_is_written_is_the_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    """B083: started with umask 000: folders 0700, files, lock and socket 0600."""
    folder, sock = tmp_path / "kv", tmp_path / "socket"
    settings = (f"cache.ssd.dir={folder}", f"server.unix_socket={sock}", "cache.ram.min_tokens=4")
    command = ["-m", "tests.kit.serve", "--step-ms", "1"]
    for setting in settings:
        command += ["--set", setting]
    with ServerProcess(*command, umask=0) as server:
        assert server.wait_line("ready")["address"] == str(sock)
        assert sock.stat().st_mode & 0o777 == 0o600
        assert asyncio.run(ask_over(sock, raw_chat(chat("the lamp in the window"))))[:12] == b"HTTP/1.1 200"
        flush = b"POST /admin/cache/flush HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        assert asyncio.run(ask_over(sock, flush))[:12] == b"HTTP/1.1 200"
        found = [folder, *folder.rglob("*")]
        server.signal()
        assert server.end() == 0
    found += [path for path in folder.rglob("*") if path not in found]
    assert any(path.suffix == ".kv" for path in found)
    assert any(path.name == "LOCK" for path in found)
    modes = {path: path.stat().st_mode & 0o777 for path in found if path.exists()}
    assert {
        path: oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)
    } == {}


async def ask_over(path: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return answer


@pytest.mark.parametrize("level", ["debug", "info"])  # the higher ones write some lines of these
def test_b083_neither_keys_nor_prompts_are_in_the_log(level: str, tmp_path: Path) -> None:
    """B083: good and bad requests, wrong keys, broken HTTP, reloads, a crash."""
    file = tmp_path / "mine.toml"
    file.write_text(f'[server]\napi_keys = ["{KEY}"]\nadmin_keys = ["{ADMIN}"]\nfault_injection = true\n')
    command = ["-m", "tests.kit.serve", "--config", str(file)]
    for setting in (f"logging.level={level}", "server.port=0", "logging.format=json"):
        command += ["--set", setting]
    with ServerProcess(*command).wait_ready() as server:
        asyncio.run(provoke(server.port))
        file.write_text(f'[server]\napi_keys = ["{KEY} x"]\n')
        server.signal(signal.SIGHUP)
        server.wait_line("reload_refused")
        server.signal()
        assert server.end() == 0
        text = json.dumps(server.lines, ensure_ascii=False)
    for secret in (KEY, ADMIN, "sk-wrong", SECRET, "Authorization", "Bearer"):
        assert secret not in text, secret


async def provoke(port: int) -> None:
    """Send what might make a server write down too much."""
    good, wrong = f"Authorization: Bearer {KEY}\r\n", "x-api-key: sk-wrong\r\n"
    requests = [
        raw_chat(chat(SECRET, max_tokens=2), headers=good),
        raw_chat(chat(SECRET, max_tokens=2, stream=True), headers=good),
        raw_chat(chat(SECRET, temperature="x"), headers=good),
        raw_chat(chat(SECRET), headers=wrong),
        raw_chat(chat(SECRET), headers=good + f"x-long: {KEY * 1000}\r\n"),
        raw_chat(chat(SECRET), headers=good).replace(b'"', b"'", 3),
        raw_chat({"messages": [{"role": "user", "content": SECRET}, {"role": SECRET}]}, headers=good),
        f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n{good}Content-Length: x{KEY}\r\n\r\n".encode(),
        "POST /admin/actors/serving/lanes/0/crash HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {ADMIN}\r\n\r\n".encode(),
        f"GET /v1/models?key={KEY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    ]
    for data in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        assert (await reader.read(12)).startswith(b"HTTP/1."), data
        writer.close()


# --- B085 -------------------------------------------------------------------------------------------

SILLY: dict[str, Any] = {
    "a million tokens": chat("hi", max_tokens=1_000_000),
    "128 choices": chat("hi", n=128),
    "100,000 stops": chat("hi", stop=[f"{number:05}" for number in range(100_000)]),
    "49,152 biases": chat("hi", max_tokens=2, logit_bias={str(number): 1 for number in range(49_152)}),
    "10,000 tools": chat(
        "hi",
        tools=[
            {"type": "function", "function": {"name": f"f{number}", "parameters": {}}}
            for number in range(10_000)
        ],
    ),
    "20,000 messages": {"messages": [{"role": "user", "content": ""}] * 20_000},
}


@pytest.mark.parametrize("name", SILLY)
def test_b085_silly_sizes_are_answered_at_once_and_cost_nobody_anything(name: str) -> None:
    """B085: 4xx or a bounded reply, never a 500; meanwhile others are served."""

    async def scenario() -> None:
        async with serving(tiny(), None) as server:
            with logged() as log:
                status, _ = await server.call("POST", "/v1/chat/completions", SILLY[name])
            assert status == 200 or 400 <= status < 500
            assert not [line for line in log.warnings() if line["event"] != "request"]
            assert (await server.talk("hi", max_tokens=2)).completion_tokens == 2

    run(scenario())


@pytest.mark.parametrize("depth", [1_000, 50_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"content":', b"}]")])
def test_b085_deep_nesting_is_a_400_and_no_recursion(depth: int, opening: bytes, closing: bytes) -> None:
    """B085: nothing recurses over what a client sends."""

    async def scenario() -> None:
        async with live() as server:
            reply = await server.post(b'{"messages":' + opening * depth)
            assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
            whole = opening * depth + b"1" + closing * depth
            reply = await server.post(b'{"messages":' + whole + b"}")
            assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
            assert (await server.get("/health")).status == 200

    run_http(scenario())
