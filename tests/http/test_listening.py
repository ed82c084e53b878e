"""Bytes that are no acceptable HTTP get an answer like any other, and nothing of them is kept."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from samovar.runtime.config import Logging
from samovar.runtime.http.listening import MAX_FIELD_BYTES, MAX_HEADERS, MAX_LINE_BYTES
from samovar.runtime.logs import configure_logging, reset_logging

from .fakes import Live, chat, live, raw, run

HEAD = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SECRET = b"sk-very-secret"


async def ask(server: Live, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send some bytes; return status, headers and body of the answer."""
    async with raw(server, data) as (reader, _):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (HEAD + b"Authorization: Bearer " + SECRET * 1000 + b"\r\n\r\n", 431, "headers_too_large"),
        (HEAD + SECRET * 1000 + b": 1\r\n\r\n", 431, "headers_too_large"),
        (b"GET /?k=" + SECRET * 1000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431, "headers_too_large"),
        (HEAD + b"a: sk-very-secret\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431, "headers_too_large"),
        (b"\x16\x03" + SECRET + b"\r\n\r\n", 400, "bad_request"),
        (HEAD + b"Content-Length: -5 " + SECRET + b"\r\n\r\n", 400, "bad_request"),
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400, "bad_request"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + SECRET, 400, "bad_request"),
    ],
)
def test_what_the_parser_refuses_has_the_envelope_and_an_id_and_leaks_nothing(
    data: bytes, status: int, code: str
) -> None:
    stream = io.StringIO()
    configure_logging(Logging(level="debug", format="json"), stream)

    async def scenario() -> None:
        async with live() as server:
            found, headers, body = await ask(server, data)
            assert (found, json.loads(body)["error"]["code"]) == (status, code)
            assert headers["server"] == "samovar"
            assert SECRET not in body
            (record,) = server.log.records
            assert (record.status, record.error_code) == (status, code)
            assert record.request_id == headers["x-request-id"]
            assert (await server.get("/health")).status == 200

    try:
        run(scenario())
    finally:
        reset_logging()
    assert SECRET.decode() not in stream.getvalue()
    assert "rror handling" not in stream.getvalue()


def test_headers_within_the_limits_pass() -> None:
    async def scenario() -> None:
        async with live() as server:
            long = b"GET /health?" + b"a" * (MAX_LINE_BYTES - 500) + b" HTTP/1.1\r\nHost: localhost\r\n"
            many = b"".join(b"a%d: 1\r\n" % number for number in range(MAX_HEADERS - 5))
            one = b"long: " + b"a" * (MAX_FIELD_BYTES - 500) + b"\r\n"
            assert (await ask(server, long + many + one + b"Connection: close\r\n\r\n"))[0] == 200

    run(scenario())


@pytest.mark.parametrize(
    "data",
    [
        POST + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
        POST + b"Content-Encoding: deflate\r\nContent-Length: 5\r\n\r\nabcde",
    ],
)
def test_a_body_that_belies_its_headers_is_the_clients_fault(data: bytes) -> None:
    stream = io.StringIO()
    configure_logging(Logging(level="info", format="json"), stream)

    async def scenario() -> None:
        async with live() as server:
            status, headers, body = await ask(server, data)
            assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_body")
            assert headers["x-request-id"] == server.log.records[0].request_id

    try:
        run(scenario())
    finally:
        reset_logging()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("rest", [b"zz\r\n", b"-1\r\n", b"3\r\nabcdef\r\n"])
def test_a_body_that_breaks_off_amid_its_chunks_is_answered_at_once(rest: bytes) -> None:
    async def scenario() -> None:
        async with live() as server:
            begun = POST + b'Transfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n'
            async with raw(server, begun) as (reader, writer):
                while not server.server.active:  # noqa: ASYNC110 - the server tells nobody
                    await asyncio.sleep(0)
                writer.write(rest)
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.split()[1] == b"400"
            assert json.loads(body)["error"]["code"] == "invalid_body"
            assert server.log.records[0].path == "/v1/chat/completions"

    run(scenario())


@pytest.mark.parametrize("path", [b"/stats", b"/v1/messages/x"])
def test_an_unknown_expectation_is_refused_like_anything_else(path: bytes) -> None:
    async def scenario() -> None:
        async with live() as server:
            head = HEAD.replace(b"/stats", path)
            status, headers, body = await ask(server, head + b"Expect: miracles\r\nConnection: close\r\n\r\n")
            assert status == 417
            assert headers["x-request-id"].startswith("req-")
            if path == b"/stats":
                assert json.loads(body)["error"]["code"] == "expectation_failed"
                (record,) = server.log.records
                assert (record.status, record.error_code) == (417, "expectation_failed")
                assert record.request_id == headers["x-request-id"]

    run(scenario())


def test_a_client_that_waits_before_its_body_is_told_to_send_it() -> None:
    async def scenario() -> None:
        async with live() as server:
            body = json.dumps(chat()).encode()
            head = POST + b"Expect: 100-Continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            async with raw(server, head) as (reader, writer):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(body)
                assert (await reader.readline()).split()[1] == b"200"

    run(scenario())


def test_http_1_0_expects_nothing() -> None:
    async def scenario() -> None:
        async with live() as server:
            head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Expect: 100-continue, miracles\r\n\r\n"
            assert (await ask(server, head))[0] == 200

    run(scenario())
