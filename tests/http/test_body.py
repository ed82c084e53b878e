from __future__ import annotations

import gzip
import json
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.http.body import INLINE_BYTES, MAX_DEPTH, MAX_MARKS, count_marks, depth_of, parse_object
from samovar.runtime.http.errors import HttpError

from .fakes import FakeServing, chat, live, raw, raw_chat, run

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from samovar.runtime.engine.port import ModelInfo


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"[1]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a": tru', "line 1, column 10"),
        (b'{"a":\n1,}', "line 2, column 2"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": 1e999}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 7"),
        (b'{"a": "cut \\ud83d"}', "column"),
        (b'{"a": ' + b"[" * 2000, "depth limit"),
    ],
)
def test_what_is_no_json_object_is_refused_with_its_place(body: bytes, part: str) -> None:
    with pytest.raises(HttpError) as caught:
        parse_object(body)
    assert caught.value.status == 400
    assert part in caught.value.message


def test_a_byte_order_mark_is_ignored() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[{,:\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('k"\\,'), inner, max_size=4),
    max_leaves=12,
)


def marks_of(value: object) -> int:
    match value:
        case dict():
            return 1 + len(value) + max(len(value) - 1, 0) + sum(map(marks_of, value.values()))
        case list():
            return 1 + max(len(value) - 1, 0) + sum(map(marks_of, value))
        case _:
            return 0


@given(JSON)
def test_marks_are_counted_outside_strings_only(value: object) -> None:
    assert count_marks(json.dumps(value).encode()) == marks_of(value)


@pytest.mark.parametrize("unit", ['x"\\,[', "\\" * 7, '\\"'])
def test_marks_are_counted_right_across_chunks(unit: str) -> None:
    assert count_marks(json.dumps([unit * 200_000, unit, 1]).encode()) == 3


def levels_of(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(levels_of, value.values()), default=0)
        case list():
            return 1 + max(map(levels_of, value), default=0)
        case _:
            return 0


@given(JSON)
def test_depth_is_measured_outside_strings_only(value: object) -> None:
    assert depth_of(json.dumps(value).encode()) == levels_of(value)


@pytest.mark.parametrize("unit", ['x"]{', "\\" * 7, '\\"'])
def test_depth_is_measured_right_across_chunks(unit: str) -> None:
    value = [unit * 200_000, {unit: [[]]}, [unit], 1]
    assert depth_of(json.dumps(value).encode()) == 4


def test_a_deep_body_is_refused_however_long_it_is() -> None:
    async def scenario() -> None:
        async with live() as server:
            for text in ("Hi", "x" * 2 * INLINE_BYTES):
                for levels, status in ((MAX_DEPTH - 1, 200), (MAX_DEPTH, 400)):
                    body = json.dumps(chat(text, metadata=0)).encode()
                    deep = b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)
                    reply = await server.post(body.replace(b'"metadata": 0', b'"metadata": ' + deep))
                    assert reply.status == status
            assert reply.error["code"] == "body_too_complex"

    run(scenario())


def test_an_intricate_body_is_refused_before_it_is_parsed() -> None:
    async def scenario() -> None:
        async with live() as server:
            reply = await server.post(b'{"messages": [' + b"[]," * MAX_MARKS + b"[]]}")
            assert (reply.status, reply.error["code"]) == (400, "body_too_complex")
            text = "a,b:[c]{d} " * (2 * INLINE_BYTES // 10)
            assert (await server.post(chat(text))).status == 200

    run(scenario())


async def pieces(body: bytes, size: int) -> AsyncGenerator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def test_oversized_bodies_are_refused_declared_or_not() -> None:
    async def scenario() -> None:
        async with live(max_body_bytes=4096) as server:
            large = json.dumps(chat("x" * 8192)).encode()
            for body in (
                large,
                pieces(large, 1024),
            ):
                reply = await server.post(body)
                assert (reply.status, reply.error["code"]) == (413, "body_too_large")
                assert "4,096" in reply.error["message"]
            packed = gzip.compress(large)
            assert len(packed) < 4096
            reply = await server.post(packed, headers={"Content-Encoding": "gzip"})
            assert reply.status == 413
            assert (await server.post(chat())).status == 200

    run(scenario())


def test_a_megabyte_passes_by_default() -> None:
    async def scenario() -> None:
        async with live() as server:
            assert (await server.post(chat("x" * 1_100_000))).status == 200

    run(scenario())


def test_chunked_and_compressed_bodies_are_read() -> None:
    async def scenario() -> None:
        async with live() as server:
            body = json.dumps(chat()).encode()
            assert (await server.post(pieces(body, 1))).status == 200
            assert (
                await server.post(gzip.compress(body), headers={"Content-Encoding": "gzip"})
            ).status == 200
            assert (await server.post(body, headers={"Expect": "100-continue"})).status == 200

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Content-Type", "text/plain")], 415),
        ([("Content-Type", "application/x-www-form-urlencoded")], 415),
        ([("Content-Type", "application/json; charset=latin-1")], 415),
        ([("Content-Type", "application/json"), ("Content-Encoding", "snappy")], 415),
        ([("Content-Type", "application/json; charset=utf-8")], 200),
        ([("Content-Type", "application/vnd.api+json")], 200),
    ],
)
def test_content_types(headers: list[tuple[str, str]], status: int) -> None:
    async def scenario() -> None:
        async with live() as server:
            data = json.dumps(chat()).encode()
            reply = await server.send("POST", "/v1/chat/completions", data=data, headers=headers)
            assert reply.status == status
            assert status == 200 or reply.error["message"]

    run(scenario())


def test_two_content_types_are_refused() -> None:
    async def scenario() -> None:
        async with live() as server:
            headers = "Content-Type: application/json\r\nContent-Type: text/plain\r\n"
            async with raw(server, raw_chat(chat(), headers=headers)) as (reader, _):
                assert (await reader.readline()).split()[1] == b"400"
            assert not server.serving.requests

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_the_tree_is_asked_on_the_loops_thread_though_a_long_body_is_read_in_another(path: str) -> None:
    class Watched(FakeServing):
        def model(self) -> ModelInfo:
            threads.add(threading.get_ident())
            return super().model()

    threads: set[int] = set()
    text = "x" * (2 * INLINE_BYTES)
    prompt = {"/v1/completions": {"prompt": text}, "/v1/responses": {"input": text}}
    body = prompt.get(path, {"messages": [{"role": "user", "content": text}], "max_tokens": 3})

    async def scenario() -> None:
        async with live(Watched()) as server:
            assert (await server.post(body, path)).status == 200

    async def watched() -> int:
        await scenario()
        return threading.get_ident()

    assert threads == {run(watched())}
