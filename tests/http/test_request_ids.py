"""A request's id is in its response, in its record, and on every log line that is written for it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.config import Logging
from samovar.runtime.logs import configure_logging, get_logger, reset_logging
from samovar.runtime.requestlog import LineLog

from .fakes import FakeServing, chat, live, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samovar.actors.requests import Admission, GenerationRequest


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logging(Logging(level="debug", format="json"), stream)
    yield stream
    reset_logging()


def ids(log: io.StringIO, event: str) -> list[str | None]:
    found: list[dict[str, Any]] = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line.get("request_id") for line in found if line["event"] == event]


class TalkativeServing(FakeServing):
    """Logs while it admits, as a library would and as the house does, also from a thread."""

    async def submit(self, request: GenerationRequest) -> Admission:
        get_logger("samovar.test").info("ours", tokens=1)
        logging.getLogger("some.library").warning("theirs")
        await asyncio.to_thread(get_logger("samovar.test").info, "threads")
        return await super().submit(request)


def test_every_line_of_a_request_has_its_id_and_no_other_line_has(log: io.StringIO) -> None:
    async def scenario() -> None:
        async with live(TalkativeServing()) as server:
            for name in ("one", "two"):
                reply = await server.post(chat(), headers={"x-request-id": name})
                assert reply.headers["x-request-id"] == name
            get_logger("samovar.test").info("between")

    run(scenario())
    for event in ("ours", "theirs", "threads"):
        assert ids(log, event) == ["one", "two"]
    assert ids(log, "between") == [None]


def test_requests_side_by_side_keep_their_ids_apart(log: io.StringIO) -> None:
    async def scenario() -> None:
        async with live(TalkativeServing()) as server:
            names = [f"request-{number}" for number in range(20)]
            await asyncio.gather(*(server.post(chat(), headers={"x-request-id": name}) for name in names))
            assert sorted(str(each) for each in ids(log, "threads")) == sorted(names)

    run(scenario())


def test_a_failure_nobody_expected_is_found_by_its_id(log: io.StringIO) -> None:
    def refuse(_: GenerationRequest) -> None:
        raise RuntimeError("broken")

    async def scenario() -> None:
        async with live(FakeServing(refuse=refuse)) as server:
            reply = await server.post(chat())
            assert reply.status == 500
            known = reply.headers["x-request-id"]
            assert known in reply.error["message"]
            LineLog().request_ended(server.log.records[0])
            assert ids(log, "request_error") == ids(log, "request") == [known]

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_clients_find_the_id_under_their_name(path: str) -> None:
    async def scenario() -> None:
        async with live() as server:
            reply = await server.post({}, path=path)
            assert reply.headers["request-id"] == reply.headers["x-request-id"] == reply.json()["request_id"]
            assert "request-id" not in (await server.get("/health")).headers

    run(scenario())
