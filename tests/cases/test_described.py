"""A whole server over a tiny model answers generating requests as its own document describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.app.process import tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import Case

pytestmark = pytest.mark.timeout(60)  # the first test waits for the server's process, too

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/admin/cache/explain")
LIMITS = {"/v1/responses": "max_output_tokens"}
BEGINNINGS = {"/v1/responses": ("input", "Hi"), "/v1/completions": ("prompt", "Hi")}
EXAMPLES = 3
# What no schema can make sense of by itself.
_DROPPED = ("model", "previous_response_id", "stop_token_ids", "logit_bias", "n", "stream_options", "best_of")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tiny("llama").wait_ready() as server:
        yield server.url


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_server_answers_as_it_describes(path: str, url: str) -> None:
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]
    seen: list[int] = []

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def check(case: Case) -> None:
        for body in (case.body, _sensible(case.body, path)):
            case.body = body
            answer = case.call(base_url=url)
            seen.append(answer.status_code)
            case.validate_response(answer, checks=CHECKS)

    check()
    assert 200 in seen


def _sensible(body: dict[str, Any], path: str) -> dict[str, Any]:
    found = {name: value for name, value in body.items() if name not in _DROPPED}
    if path in BEGINNINGS:
        name, beginning = BEGINNINGS[path]
        found[name] = beginning
    if path != "/admin/cache/explain":
        found[LIMITS.get(path, "max_tokens")] = 3
    return found
