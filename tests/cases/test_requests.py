"""Bodies of the case list whose expectation only a real model and tokenizer can meet; one server, one pass.

All other lines are held to their expectation in tests/http/test_cases.py.
"""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.app.process import ServerProcess
from tests.http.test_cases import CASES, CASES_FILE, GENERATED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    Body = dict[str, Any]

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not CASES, reason=f"no case list at {CASES_FILE}"),
]

PATIENCE_S = 300.0
BY_ID = {case["id"]: case for case in CASES}
ANSWERED = (
    *("R013", "R020", "R022", "R035", "R041", "R044", "R047", "R047s", "R053", "R055"),
    *("R058", "R061", "R064", "R065", "R082"),
)
EXPLAIN = "/admin/cache/explain"  # makes the prompt and generates nothing


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    events: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """The text of the first choice, in whatever form it came."""
        choices = [event["choices"][0] for event in self.events or (self.body,) if event["choices"]]
        return "".join(_text(choice) for choice in choices if choice["index"] == 0)

    @property
    def usage(self) -> Any:
        return self.body["usage"]

    @property
    def finish_reason(self) -> str:
        last = self.events[-1] if self.events else self.body
        return last["choices"][0]["finish_reason"]


@pytest.fixture(scope="module")
def server(default_model_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess("-m", "samovar.runtime.cli", "serve", "--port", "0").wait_ready() as process:
        yield process


@pytest.fixture(scope="module")
def answers(server: ServerProcess) -> Mapping[str, Answer]:
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda name: send(server, BY_ID[name]["path"], body_of(name)), ANSWERED)
        return dict(zip(ANSWERED, found, strict=True))


def send(server: ServerProcess, path: str, body: Body) -> Answer:
    connection = server.connect(PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read().decode()
    finally:
        connection.close()
    if response.headers["Content-Type"].startswith("text/event-stream"):
        blocks = [block for block in data[:-2].split("\n\n") if block.startswith("data: ")]
        assert blocks.pop() == "data: [DONE]"
        return Answer(response.status, None, tuple(json.loads(block[6:]) for block in blocks))
    return Answer(response.status, json.loads(data))


def body_of(name: str) -> Body:
    return copy.deepcopy(GENERATED.get(name, BY_ID[name]["body"]))


def prompt_tokens(server: ServerProcess, body: Body) -> int:
    return send(server, EXPLAIN, body).body["prompt_tokens"]


def _text(choice: Body) -> str:
    if "text" in choice:
        return choice["text"]
    return choice.get("message", choice.get("delta"))["content"] or ""


def test_what_can_be_answered_is(answers: Mapping[str, Answer]) -> None:
    assert {name for name, answer in answers.items() if answer.status != 200} == {"R061", "R082"}


@pytest.mark.parametrize("name", ["R061", "R082"])
def test_what_is_longer_than_the_context_is_refused_with_both_numbers(
    name: str, answers: Mapping[str, Answer]
) -> None:
    error = answers[name].body["error"]
    assert (answers[name].status, error["code"]) == (400, "context_length_exceeded")
    assert "8192" in error["message"]


def test_b046_null_and_absent_content_give_one_prompt(server: ServerProcess) -> None:
    null = body_of("R001")
    assert null["messages"][1].pop("content", "") is None
    assert prompt_tokens(server, null) == prompt_tokens(server, body_of("R001"))


def test_b049_parts_and_their_text_give_one_prompt(server: ServerProcess) -> None:
    joined = body_of("R004")
    for message in joined["messages"]:
        message["content"] = "".join(part["text"] for part in message["content"])
    assert prompt_tokens(server, joined) == prompt_tokens(server, body_of("R004"))


def test_b051_a_developer_is_the_system(server: ServerProcess) -> None:
    as_system = body_of("R007")
    as_system["messages"][0]["role"] = "system"
    assert prompt_tokens(server, as_system) == prompt_tokens(server, body_of("R007"))


def test_b059_broken_calls_in_a_history_are_carried_each_time(server: ServerProcess) -> None:
    first, second = (send(server, EXPLAIN, body_of("R014")) for _ in range(2))
    assert first.status == second.status == 200
    assert first.body["prompt_tokens"] == second.body["prompt_tokens"]
    assert send(server, EXPLAIN, body_of("R016")).status == 200


def test_b056_the_newer_limit_wins(answers: Mapping[str, Answer]) -> None:
    assert (answers["R013"].usage["completion_tokens"], answers["R013"].finish_reason) == (4, "length")


def test_b071_a_stop_string_across_tokens_ends_the_text_in_front_of_it(answers: Mapping[str, Answer]) -> None:
    assert (answers["R020"].text, answers["R020"].finish_reason) == (" ri", "stop")
    assert (answers["R022"].text, answers["R022"].finish_reason) == (" hi", "stop")


def test_b089_characters_of_several_tokens_come_whole(answers: Mapping[str, Answer]) -> None:
    assert answers["R035"].text == "\U0001f600" * 10
    assert all("\ufffd" not in _text(event["choices"][0]) for event in answers["R035"].events)


def test_b101_completions_have_four_lists_of_probabilities(answers: Mapping[str, Answer]) -> None:
    logprobs = answers["R044"].body["choices"][0]["logprobs"]
    assert {len(logprobs[name]) for name in logprobs} == {5}
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert "".join(logprobs["tokens"]) == answers["R044"].text
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob == max(top.values()) <= 0
        assert len(top) == 3


def test_b104_ids_and_their_text_are_one_prompt(answers: Mapping[str, Answer]) -> None:
    assert answers["R047"].text == answers["R047s"].text
    assert answers["R047"].usage["prompt_tokens"] == answers["R047s"].usage["prompt_tokens"] == 3


def test_b109_one_token(answers: Mapping[str, Answer]) -> None:
    assert (answers["R058"].usage["completion_tokens"], answers["R058"].finish_reason) == (1, "length")


def test_b106_echo_and_choices(answers: Mapping[str, Answer]) -> None:
    assert answers["R053"].text.startswith("It was late")
    assert {event["choices"][0]["index"] for event in answers["R055"].events} == {0, 1}
    assert len({event["id"] for event in answers["R055"].events}) == 1


def test_b114_replies_keep_to_their_form(answers: Mapping[str, Answer]) -> None:
    found = json.loads(answers["R065"].text)
    assert (type(found["ok"]), type(found["reason"]), len(found)) == (bool, str, 2)
    assert answers["R064"].text.startswith("{")
    assert answers["R064"].finish_reason == "length" or isinstance(json.loads(answers["R064"].text), dict)


def test_b126_marks_in_a_history_reach_the_prompt(server: ServerProcess) -> None:
    without = body_of("R085")
    without["messages"][1]["content"] = "left  right"
    assert prompt_tokens(server, without) < prompt_tokens(server, body_of("R085"))
