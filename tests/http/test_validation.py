from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from samovar.runtime.engine.port import Sampling
from samovar.runtime.http.errors import HttpError
from samovar.runtime.http.schema.chat import ChatRequest, parse_chat

from .fakes import INFO, chat, conversation

if TYPE_CHECKING:
    from samovar.actors.requests import GenerationRequest
    from samovar.runtime.http.call import Call


def parse(body: dict[str, object], headers: dict[str, str] | None = None) -> Call:
    return parse_chat(body, headers or {}, INFO, ["gpt-4o"])


def request(**fields: object) -> GenerationRequest:
    return parse(chat(**fields)).request


def refused(body: dict[str, object]) -> HttpError:
    with pytest.raises(HttpError) as caught:
        parse(body)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"temperature": "hot"}, "temperature", "must be a number, not the string"),
        ({"temperature": -1}, "temperature", "from 0 to 2"),
        ({"temperature": 1e9}, "temperature", "from 0 to 2"),
        ({"temperature": True}, "temperature", "not true"),
        ({"temperature": float("nan")}, "temperature", "from 0 to 2"),
        ({"top_p": 1.5}, "top_p", "from 0 to 1"),
        ({"top_k": 1.0}, "top_k", "an integer"),
        ({"top_k": -2}, "top_k", "from -1"),
        ({"min_p": -0.1}, "min_p", "from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens", "from 1"),
        ({"max_tokens": -1}, "max_tokens", "from 1"),
        ({"max_tokens": 8.5}, "max_tokens", "an integer"),
        ({"max_tokens": "8"}, "max_tokens", "an integer"),
        ({"max_tokens": True}, "max_tokens", "an integer, not true"),
        ({"max_tokens": 10**30}, "max_tokens", "from 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "from 1"),
        ({"seed": 1e29}, "seed", "an integer"),
        ({"seed": 2**64}, "seed", "from"),
        ({"stop": ""}, "stop", "1 to 512 characters"),
        ({"stop": [""]}, "stop[0]", "1 to 512 characters"),
        ({"stop": ["a", None]}, "stop[1]", "not null"),
        ({"stop": ["a", 3]}, "stop[1]", "a string"),
        ({"stop": {"a": 1}}, "stop", "a list"),
        ({"stop": ["abcde"] * 100_000}, "stop", "at most 16"),
        ({"stop_token_ids": 7}, "stop_token_ids", "a list"),
        ({"stop_token_ids": [7, "x"]}, "stop_token_ids[1]", "an integer"),
        ({"stop_token_ids": [7, None]}, "stop_token_ids[1]", "not null"),
        ({"stop_token_ids": [INFO.vocab_size]}, "stop_token_ids[0]", f"to {INFO.vocab_size - 1}"),
        ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
        ({"frequency_penalty": "a"}, "frequency_penalty", "a number"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
        ({"logit_bias": []}, "logit_bias", "an object"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "no token id"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "no token id"),
        ({"logit_bias": {"²": 1}}, "logit_bias", "no token id"),
        ({"logit_bias": {str(INFO.vocab_size): 1}}, "logit_bias", "no token id"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "from -100 to 100"),
        ({"logit_bias": {str(n): 0 for n in range(2000)}}, "logit_bias", "at most 1024"),
        ({"logprobs": 1}, "logprobs", "a boolean"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"stream": "yes"}, "stream", "a boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only allowed when stream"),
        ({"stream": True, "stream_options": []}, "stream_options", "an object"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "a boolean",
        ),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "Unknown parameter"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "set by the server"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template", "set by"),
        ({"session_id": 5}, "session_id", "a string"),
        ({"session_id": "s" * 300}, "session_id", "1 to 256"),
        ({"model": 5}, "model", "a string"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, object], param: str, part: str) -> None:
    error = refused(chat(**fields))
    assert (error.status, error.param) == (400, param)
    assert part in error.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "wizard", "content": "hi"}, "messages[0].role"),
        ({"role": ["user"], "content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": ["hi"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"text": "hi"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}] * 300}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[0].tool_call_id"),
        ({"role": "assistant", "content": "x", "prefix": True}, "messages[0].prefix"),
    ],
)
def test_a_bad_message_is_named(message: object, param: str) -> None:
    error = refused({"messages": [message]})
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    "messages", [None, [], {"messages": []}, "hi", [{"role": "user", "content": "x"}] * 5000]
)
def test_messages_must_be_a_bounded_list(messages: object) -> None:
    error = refused({"messages": messages})
    assert (error.status, error.param) == (400, "messages")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("modalities", ["audio"]),
        ("web_search_options", {}),
        ("best_of", 2),
        ("best_of", True),
        ("echo", True),
        ("min_tokens", 3),
        ("ignore_eos", True),
        ("grammar", "root ::= 'a'"),
        ("json_schema", {}),
    ],
)
def test_a_feature_that_does_not_exist_is_refused(field: str, value: object) -> None:
    error = refused(chat(**{field: value}))
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", field)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"functions": [], "function_call": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"ignore_eos": False},
    ],
)
def test_asking_for_what_happens_anyway_is_fine(fields: dict[str, object]) -> None:
    assert request(**fields) is not None


def test_every_null_is_an_absent_field() -> None:
    names = (ChatRequest.model_fields.keys() | {"something_else"}) - {"messages"}
    plain, nulls = request(), request(**dict.fromkeys(names))
    assert (plain.sampling, plain.max_tokens, plain.stop) == (nulls.sampling, nulls.max_tokens, nulls.stop)
    assert not nulls.temperature_given


def test_inert_fields_pass_and_misspelt_ones_do_not() -> None:
    assert request(user="u", metadata={"a": "b"}, store=True, service_tier="auto", reasoning_effort="low")
    error = refused(chat(max_token=5))
    assert (error.code, error.param) == ("unknown_parameter", "max_token")
    assert "max_tokens" in error.message


def test_unknown_model_names_what_is_served() -> None:
    error = refused(chat(model="gpt-4o-mini"))
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert "smollm2, gpt-4o, default" in error.message


@pytest.mark.parametrize("name", ["smollm2", "gpt-4o", "default", None])
def test_served_names_are_accepted(name: str | None) -> None:
    assert parse(chat(model=name)).model == "smollm2"


def test_sampling_is_read_field_by_field() -> None:
    found = request(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=-3,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={"7": -100, "9": 2.5},
    ).sampling
    assert found == Sampling(0.5, 0.9, 40, 0.1, -3, 1.1, -0.5, 0.25, {7: -100.0, 9: 2.5})


def test_defaults_are_the_models() -> None:
    found = request()
    assert found.sampling == Sampling(temperature=INFO.default_temperature)
    assert (found.temperature_given, found.max_tokens, found.stop, found.top_logprobs) == (
        False,
        None,
        (),
        None,
    )
    assert request(temperature=0).temperature_given


def test_top_p_zero_keeps_the_likeliest_token_and_top_k_minus_one_is_off() -> None:
    assert (request(top_p=0).sampling.top_p, request(top_p=0).sampling.top_k) == (1.0, 1)
    assert request(top_k=-1).sampling.top_k == 0


def test_token_limits_newer_name_wins_and_the_context_caps() -> None:
    assert request(max_tokens=8, max_completion_tokens=4).max_tokens == 4
    assert request(max_tokens=8).max_tokens == 8
    assert request(max_tokens=10**6).max_tokens == INFO.context_length


def test_stops() -> None:
    assert request(stop="END").stop == ("END",)
    assert request(stop=["a", "b"]).stop == ("a", "b")
    assert request(stop=[]).stop == ()
    assert len(request(stop=["x"] * 16).stop) == 16


def test_stop_tokens() -> None:
    assert request(stop_token_ids=[7, 8, 7]).stop_tokens == {7, 8}
    assert request(stop_token_ids=[]).stop_tokens == set()
    assert request().stop_tokens == set()


def test_logprobs() -> None:
    assert request(logprobs=True).top_logprobs == 0
    assert request(logprobs=True, top_logprobs=3).top_logprobs == 3
    assert request(logprobs=False).top_logprobs is None


def test_session_sources_in_order() -> None:
    headers = {"x-session-id": "header", "x-session-affinity": "affinity"}
    body = chat(session_id="body", prompt_cache_key="key")
    assert parse(body, headers).request.session_id == "body"
    del body["session_id"]
    assert parse(body, headers).request.session_id == "key"
    assert parse(chat(), headers).request.session_id == "header"
    assert parse(chat(), {"x-session-affinity": "affinity"}).request.session_id == "affinity"
    assert parse(chat(), {"x-session-id": ""}).request.session_id is None


def test_parts_are_joined_like_the_whole_text() -> None:
    parts = [{"type": "text", "text": "Which planet "}, {"type": "text", "text": "is red?"}]
    assert (
        conversation(request(content=parts)).messages
        == conversation(request(content="Which planet is red?")).messages
    )


def test_developer_is_system() -> None:
    found = parse(
        {"messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "x"}]}
    )
    assert conversation(found.request).messages[0] == {"role": "system", "content": "Be brief."}


def test_tool_history_is_kept_as_it_is() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {"a": 1}}},
    ]
    history = [
        {"role": "user", "content": "go", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "cut"},
        {"role": "assistant", "reasoning_content": "hm", "tool_calls": None},
    ]
    assert conversation(parse({"messages": history}).request).messages == (
        {"role": "user", "content": "go", "name": "Ann"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "cut", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    )


def test_an_assistants_refusal_part_is_text() -> None:
    message = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert conversation(parse({"messages": [message]}).request).messages[0]["content"] == "No."


def test_template_kwargs_pass_through() -> None:
    assert conversation(request(chat_template_kwargs={"enable_thinking": False})).template_kwargs == {
        "enable_thinking": False
    }


def test_every_request_has_an_id_of_its_own() -> None:
    assert len({request().id for _ in range(100)}) == 100
