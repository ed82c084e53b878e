"""Rows with constrained replies, alone and beside others, in the real engine over tiny models."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import RotatingKVCache
from samovar.runtime.engine.batching.backend import BackendOptions, MlxBackend
from samovar.runtime.engine.errors import ConstraintFailed
from samovar.runtime.engine.models.loading import ModelHandle
from samovar.runtime.engine.port import Delta, Failed, RowRequest, Sampling
from samovar.runtime.engine.prompt import Constraint, Conversation, PlainText
from samovar.runtime.engine.state.scheme import KvChoice
from samovar.runtime.engine.state.scheme_start import resolve

from tests.engine.batching.test_backend import (
    alone,
    ask,
    drain,
    end_of,
    finished,
    of,
    opened,
    run,
    text_of,
    tokens_of,
)
from tests.kit.grammars import END, guide, spelled
from tests.kit.models import FAMILIES, TinyModel, build, tiny

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from samovar.runtime.engine.prompt import Guide

ENDS = frozenset({END})
HOT = Sampling(
    temperature=1.2, top_p=0.97, min_p=0.001, seed=11, repetition_penalty=1.1, logit_bias={50: 4.0}
)

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "days": {"type": "integer", "minimum": 1, "maximum": 400},
                "deep": {"type": "boolean"},
            },
            "required": ["days"],
        },
    },
}
SHAPE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SCHEMA = Constraint("json_schema", json.dumps(SHAPE))


def _is_shape(text: str) -> bool:
    value = json.loads(text)
    assert list(value) == ["name", "tags"]
    return len(value["name"]) <= 9 and set(value["tags"]) <= {"x", "y"} and len(value["tags"]) <= 3


def _is_call(text: str) -> bool:
    calls = re.fullmatch(r"(<tool_call>\n?\{.*?\}\n?</tool_call>\n?)+", text, re.DOTALL)
    bodies = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
    parsed = [json.loads(body) for body in bodies]
    return calls is not None and all(
        call["name"] == "weather" and 1 <= call["arguments"]["days"] <= 400 for call in parsed
    )


CONFORM: list[tuple[Constraint, Any]] = [
    (Constraint("json_object"), lambda text: isinstance(json.loads(text), dict)),
    (SCHEMA, _is_shape),
    (Constraint("regex", r"[a-f]{3,12}[0-9]+"), lambda text: re.fullmatch(r"[a-f]{3,12}[0-9]+", text)),
    (Constraint("grammar", 'start: "<" start ">" | "."'), lambda text: re.fullmatch(r"<*\.>*", text)),
    (Constraint("choice", '["red", "green", "blue"]'), lambda text: text in ("red", "green", "blue")),
    (Constraint("tools", tools=(WEATHER,)), _is_call),
    (Constraint("tools", tools=(WEATHER,), many=True), _is_call),
]


class Steered:
    """A guide under the test's control: at each place of the reply one id is allowed, or trouble is made."""

    def __init__(self, plan: Sequence[int | str]) -> None:
        self.plan = plan
        self.heard: list[int] = []

    def start(self, emitted: Sequence[int]) -> Steered:
        if self.plan and self.plan[0] == "start":
            raise ConstraintFailed("no start")
        self.heard = list(emitted)
        return self

    def allowed(self, vocab: int) -> NDArray[np.bool_] | None:
        here = self.plan[len(self.heard)]
        mask = np.zeros(vocab + (here == "shape"), dtype=np.bool_)
        if here == "raise":
            raise ConstraintFailed("no way")
        if here == "bug":
            raise KeyError("bug")
        if isinstance(here, int):
            mask[here] = True
        return None if here == "free" else mask

    def advance(self, token: int) -> None:
        self.heard.append(token)
        if len(self.heard) < len(self.plan) and self.plan[len(self.heard)] == "stray":
            raise ConstraintFailed("stray token")


# --- guides that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("trouble", ["raise", "bug", "nothing", "shape", "stray"])
def test_a_guide_that_fails_fails_its_row_alone(trouble: str, place: int) -> None:
    if trouble == "stray" and place == 0:
        place = 2  # nothing is heard before the first token
    steered = Steered([*[65] * place, trouble])
    backend = opened(tiny("llama"))
    events = run(backend, ask("good"), ask("bad", 9, guide=steered), ask("fine", 5, sampling=HOT))
    end = end_of(events, "bad")
    assert isinstance(end, Failed)
    assert (end.code, end.shown) == ("constraint_failed", True)
    assert tokens_of(events, "bad") == [65] * place
    for name, request in (("good", ask("good")), ("fine", ask("fine", 5, sampling=HOT))):
        assert tokens_of(events, name) == tokens_of(alone(tiny("llama"), request), name)
    assert not backend.busy


def test_a_guide_that_cannot_start_refuses_its_row() -> None:
    end = end_of(alone(tiny("llama"), ask("a", guide=Steered(["start"]))), "a")
    assert isinstance(end, Failed)
    assert (end.code, end.message, end.shown) == ("constraint_failed", "no start", True)


def test_a_row_that_ends_before_its_guide_fails_ends_well() -> None:
    for more in ({"max_tokens": 2}, {"max_tokens": 9, "stop": ("AA",)}):
        request = replace(ask("a", guide=Steered([65, 65, "raise"])), **more)
        assert finished(alone(tiny("llama"), request), "a").completion_tokens == 2


def test_a_finished_row_is_heard_of_no_more() -> None:
    """Neither the token that ends a row for certain, nor an end token, nor what was drawn behind them."""
    full, ended, stopped = Steered([65] * 5), Steered([65, 66, END, 65]), Steered([65, 66, 67, 65])
    backend = opened(tiny("llama", ENDS))
    events = run(
        backend,
        ask("long", 8, 30),
        ask("full", 8, 3, guide=full),
        ask("ended", 8, 9, guide=ended),
        ask("stopped", 8, 9, guide=stopped, stop_tokens=frozenset({67})),
    )
    assert (full.heard, ended.heard, stopped.heard) == ([65, 65], [65, 66], [65, 66])
    assert finished(events, "full").reason == "length"
    assert finished(events, "ended").reason == finished(events, "stopped").reason == "stop"


def test_a_cancelled_row_is_heard_of_no_more() -> None:
    steered = Steered([65] * 50)
    backend = opened(tiny("llama"))
    backend.insert(ask("a", 8, 40, guide=steered))
    backend.insert(ask("b", 8, 40))
    while len(steered.heard) < 5:
        backend.step()
    backend.cancel("a")
    drain(backend)
    assert len(steered.heard) == 5


# --- what is said ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_reply_conforms_and_other_rows_are_as_alone(family: str) -> None:
    model = tiny(family, ENDS)
    constrained = {
        f"{line}-{kind}": (ask(f"{line}-{kind}", 6 + line, 120, guide=guide(asked), sampling=sampling), check)
        for line, (asked, check) in enumerate(CONFORM)
        for kind, sampling in (("greedy", Sampling()), ("hot", replace(HOT, seed=line)))
    }
    plain = [ask("plain", 11, 60), ask("hot", 7, 60, sampling=HOT)]
    backend = opened(model, batch=6)
    events = run(backend, plain[0], *(request for request, _ in constrained.values()), plain[1])
    for request in plain:
        assert tokens_of(events, request.id) == tokens_of(alone(model, request), request.id)
    ended = 0
    for name, (request, check) in constrained.items():
        tokens = tokens_of(events, name)
        if finished(events, name).reason == "stop":
            assert check(spelled(tokens)), name
            ended += 1
        else:
            assert request.guide is not None
            request.guide.start(tokens)  # raises over a token that the grammar does not allow
    assert ended >= len(CONFORM)


@pytest.mark.parametrize("family", ["llama", "mamba2"])
def test_a_row_resumed_after_any_token_goes_on_as_it_would_have(family: str) -> None:
    model = tiny(family, ENDS)
    for sampling in (Sampling(), HOT):
        whole_request = ask("whole", 9, 24, guide=guide(SCHEMA), sampling=sampling)
        whole = alone(model, whole_request)
        tokens, end = tokens_of(whole, "whole"), finished(whole, "whole")
        cuts = [
            replace(whole_request, id=str(count), emitted=tuple(tokens[:count]))
            for count in range(len(tokens) + 1)
        ]
        backend = opened(model, batch=4)
        events = run(backend, *cuts)
        for count, cut in enumerate(cuts):
            assert tokens_of(events, cut.id) == tokens[count:]
            assert finished(events, cut.id).reason == end.reason


def test_log_probabilities_are_the_models_own() -> None:
    request = ask("a", 9, 1, guide=Steered([65]), top_logprobs=3)
    (delta,) = (event for event in of(alone(tiny("llama"), request), "a") if isinstance(event, Delta))
    logits = build("llama")(mx.array([list(request.tokens)]))[0, -1]
    wanted = logits - mx.logsumexp(logits)
    (said,) = delta.logprobs
    assert said.token == 65
    assert said.logprob == pytest.approx(wanted[65].item(), abs=1e-3)
    assert [token for token, _, _ in said.top] == mx.argsort(-wanted)[:3].tolist()


def test_a_free_guide_changes_nothing() -> None:
    for sampling in (Sampling(), HOT):
        plain = ask("a", 9, 20, sampling=sampling)
        freed = replace(plain, guide=Steered(["free"] * 30))
        assert tokens_of(alone(tiny("llama"), freed), "a") == tokens_of(alone(tiny("llama"), plain), "a")


def test_the_stop_string_that_ended_a_row_is_named() -> None:
    backend = opened(tiny("llama"))
    events = run(
        backend,
        ask("stopped", guide=Steered([65, 66, 67, 68]), stop=("x", "BC", "C")),
        ask("full", 8, 2, guide=Steered([65, 66]), stop=("ABC",)),
    )
    assert (finished(events, "stopped").stopped_by, text_of(events, "stopped")) == ("BC", "A")
    assert (finished(events, "full").stopped_by, text_of(events, "full")) == (None, "AB")


# --- groups ---------------------------------------------------------------------------------------


class _Keeping:
    """A llama whose layers keep their first four tokens: no batch can hold its rows."""

    def __init__(self) -> None:
        self._model = build("llama")
        self.layers = self._model.layers

    def __call__(self, *given: Any, **named: Any) -> mx.array:
        return self._model(*given, **named)

    def make_cache(self) -> list[Any]:
        return [RotatingKVCache(16, keep=4) for _ in self.layers]


def _converting() -> TinyModel:
    built = build("llama-wide")
    return TinyModel(built, tiny("llama", ENDS).codec, scheme=resolve(KvChoice("kv8", 32, 14), built))


@pytest.mark.parametrize("kind", ["solo", "converting"])
def test_constrained_rows_in_groups_of_their_own_say_what_they_do_alone(kind: str) -> None:
    model = TinyModel(_Keeping(), tiny("llama", ENDS).codec) if kind == "solo" else _converting()
    requests: list[RowRequest] = [
        ask(f"{line}", 8 + line, 30, guide=guide(SCHEMA), sampling=replace(HOT, seed=line))
        for line in range(4)
    ]
    events = run(opened(model), *requests, ask("plain", 10, 30))
    for request in (*requests, ask("plain", 10, 30)):
        assert tokens_of(events, request.id) == tokens_of(alone(model, request), request.id), request.id
    for request in requests:
        if finished(events, request.id).reason == "stop":
            assert _is_shape(spelled(tokens_of(events, request.id)))


# --- the default model ----------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_default_model_fills_a_schema_and_calls_a_tool(default_model_dir: Path) -> None:
    handle = ModelHandle(default_model_dir, "smollm2")
    codec = handle.load().codec
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "maximum": 120},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    asked = Conversation(({"role": "user", "content": "Describe a person, then ask for the weather."},))

    def request(name: str, prompt: Conversation | PlainText, constraint: Constraint) -> RowRequest:
        rendered = codec.render(prompt, constraint)
        made: Guide | None = rendered.guide
        assert made is not None
        return RowRequest(name, rendered.tokens, 80, guide=made)

    backend = MlxBackend(handle, BackendOptions())
    backend.open()
    try:
        events = run(
            backend,
            request("person", asked, Constraint("json_schema", json.dumps(person))),
            request("call", asked, Constraint("tools", tools=(WEATHER,))),
            request("text", PlainText("One, two,"), Constraint("regex", " three(, [a-z]+){3}")),
        )
    finally:
        backend.close()
    assert finished(events, "person").reason == finished(events, "call").reason == "stop"
    value = json.loads(text_of(events, "person"))
    assert list(value) == ["name", "age"]
    assert isinstance(value["age"], int)
    assert _is_call(text_of(events, "call"))
    assert re.fullmatch(r" three(, [a-z]+){3}", text_of(events, "text"))
