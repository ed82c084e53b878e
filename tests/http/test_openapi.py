"""The document at /openapi.json: it has every route, and the server answers as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from samovar.runtime.http.openapi.document import OPERATIONS
from samovar.runtime.http.options import HttpOptions
from samovar.runtime.http.server import HttpServer
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from .background import served
from .fakes import FakeCache, FakeServing, RecordingLog, chat, entry
from .test_tools import OSLO, weather

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import SearchStrategy
    from samovar.runtime.http.openapi.operation import Operation
    from schemathesis import BaseSchema, Case

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 6


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    cache = FakeCache(held=[entry(0), entry(1, tier="ssd")], sessions={"s"})
    with served(FakeServing(), cache, fault_injection=True) as found:
        yield found


@pytest.fixture(scope="module")
def document(url: str) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.parametrize("fault_injection", [False, True])
def test_every_route_of_a_server_is_described_and_no_other(fault_injection: bool) -> None:
    options = HttpOptions(fault_injection=fault_injection)
    server = HttpServer(FakeServing(), options, RecordingLog())
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in server._runner.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert routes == {
        (each.method, each.path) for each in OPERATIONS if fault_injection or "crash" not in each.path
    }


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_what_is_described_is_answered_as_described(
    operation: Operation, document: BaseSchema, url: str
) -> None:
    strategy = _cases(operation, document, GenerationMode.POSITIVE)
    seen: set[int] = set()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=strategy)
    def check(case: Case) -> None:
        if isinstance(case.body, dict):
            _make_sense(case.body, operation.path)
        answer = case.call(base_url=url)
        seen.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    check()
    assert 200 in seen or "{" in operation.path


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.bodies or each.query], ids=str)
def test_what_is_not_described_is_refused(operation: Operation, document: BaseSchema, url: str) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=_cases(operation, document, GenerationMode.NEGATIVE))
    def check(case: Case) -> None:
        case.validate_response(case.call(base_url=url), checks=CHECKS)

    check()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_call_of_a_tool_that_was_not_offered_is_answered_as_described(path: str) -> None:
    function = {"name": "get_weather", "parameters": {"type": "object"}}
    bodies: dict[str, Any] = {
        "/v1/chat/completions": chat(tools=[{"type": "function", "function": function}]),
        "/v1/responses": {"input": "Hi", "tools": [{"type": "function", **function}]},
        "/v1/messages": chat(
            max_tokens=9, tools=[{"name": "get_weather", "input_schema": {"type": "object"}}]
        ),
    }
    with served(weather(OSLO.replace("get_weather", "rm_rf"))) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        case = schema[path]["POST"].Case(body=bodies[path], media_type="application/json")
        answer = case.call(base_url=url)
        assert answer.status_code == 422
        case.validate_response(answer, checks=[each for each in CHECKS if each is not not_a_server_error])


def _make_sense(body: dict[str, Any], path: str) -> None:
    """Ask for what there is, as no schema can say: a served model, and a beginning to go on from."""
    if "model" in body:
        body["model"] = "default"
    if path == "/v1/responses":
        body.setdefault("input", "Hi")
        body.pop("previous_response_id", None)


def _cases(operation: Operation, document: BaseSchema, mode: GenerationMode) -> SearchStrategy[Case]:
    return document[operation.path][operation.method.upper()].as_strategy(generation_mode=mode)
