"""Legacy completions: every form of prompt, what is refused, whole and streamed answers."""

from __future__ import annotations

import pytest
from samovar.runtime.engine.port import Sampling
from samovar.runtime.engine.prompt import Constraint, GivenIds, PlainText, ReplyFormat
from samovar.runtime.http.errors import HttpError
from samovar.runtime.http.schema.completions import CompletionCall, parse_completion

from .fakes import INFO, PROMPT_TOKENS, FakeServing, live, run

PATH = "/v1/completions"


def parse(**fields: object) -> CompletionCall:
    return parse_completion({"prompt": "Once"} | fields, {}, INFO, ["gpt-4o"])


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": None}, "missing_required_parameter", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": 5}, "invalid_value", "prompt"),
        ({"prompt": {"text": "a"}}, "invalid_value", "prompt"),
        ({"prompt": ["a", ""]}, "invalid_value", "prompt[1]"),
        ({"prompt": ["a", 5]}, "invalid_value", "prompt[1]"),
        ({"prompt": ["a", None]}, "invalid_value", "prompt[1]"),
        ({"prompt": [5, "a"]}, "invalid_value", "prompt[1]"),
        ({"prompt": [True, False]}, "invalid_value", "prompt[0]"),
        ({"prompt": [1.0]}, "invalid_value", "prompt[0]"),
        ({"prompt": [-1]}, "invalid_value", "prompt[0]"),
        ({"prompt": [5, 99_999_999]}, "invalid_value", "prompt[1]"),
        ({"prompt": [5, 10**25]}, "invalid_value", "prompt[1]"),
        ({"prompt": [[5], []]}, "invalid_value", "prompt[1]"),
        ({"prompt": [[5], [6, INFO.vocab_size]]}, "invalid_value", "prompt[1][1]"),
        ({"prompt": [[5], 6]}, "invalid_value", "prompt[1]"),
        ({"prompt": ["a"] * 129}, "invalid_value", "prompt"),
        ({"prompt": ["a"] * 64, "n": 3}, "invalid_value", "n"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 17}, "invalid_value", "n"),
        ({"logprobs": True}, "invalid_value", "logprobs"),
        ({"logprobs": 6}, "invalid_value", "logprobs"),
        ({"best_of": 3}, "unsupported_parameter", "best_of"),
        ({"best_of": 1, "n": 2}, "unsupported_parameter", "best_of"),
        ({"suffix": "end"}, "unsupported_parameter", "suffix"),
        ({"echo": True, "logprobs": 0}, "unsupported_parameter", "echo"),
        ({"echo": True, "prompt": [5]}, "unsupported_parameter", "echo"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": 5}, "unknown_parameter", "max_completion_tokens"),
        ({"messages": []}, "unknown_parameter", "messages"),
        ({"tools": []}, "unknown_parameter", "tools"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"model": "gpt-3"}, "model_not_found", "model"),
    ],
)
def test_what_cannot_be_done_is_named(fields: dict[str, object], code: str, param: str) -> None:
    with pytest.raises(HttpError) as caught:
        parse(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Once", (PlainText("Once"),)),
        (["a", "b"], (PlainText("a"), PlainText("b"))),
        ([504, 2988, 314], (GivenIds((504, 2988, 314)),)),
        ([[1, 2], [3]], (GivenIds((1, 2)), GivenIds((3,)))),
    ],
)
def test_every_form_of_prompt_has_its_choices_in_order(prompt: object, prompts: tuple[object, ...]) -> None:
    call = parse(prompt=prompt, n=2).call
    assert tuple(request.prompt for request in call.requests) == tuple(
        each for each in prompts for _ in range(2)
    )
    assert call.prompt_starts == tuple(range(0, 2 * len(prompts), 2))
    assert len({request.id for request in call.requests}) == len(call.requests)


def test_fields_are_read_as_in_chats() -> None:
    request = parse(
        temperature=0.5, seed=7, stop=["a"], stop_token_ids=[3], cache_salt="s", logprobs=2, guided_regex="a+"
    ).call.request
    assert request.sampling == Sampling(temperature=0.5, seed=7)
    assert (request.stop, request.stop_tokens, request.cache_salt) == (("a",), {3}, "s")
    assert (request.top_logprobs, request.max_tokens) == (2, 16)
    assert request.constraint == Constraint("regex", "a+", param="guided_regex")
    assert parse(best_of=2, n=2, suffix="", echo=False).call.request.temperature_given is False


def test_a_whole_answer() -> None:
    async def scenario() -> None:
        async with live() as server:
            body = (await server.post({"prompt": "Once", "echo": True, "n": 2}, PATH)).json()
        assert (body["object"], body["model"], body["id"][:5]) == ("text_completion", "smollm2", "cmpl-")
        wanted = {"text": "OnceIt is Paris", "logprobs": None, "finish_reason": "stop"}
        assert body["choices"] == [{"index": 0, **wanted}, {"index": 1, **wanted}]
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (PROMPT_TOKENS, 6)
        assert body["usage"]["samovar"]["tier"] == "none"

    run(scenario())


def test_logprobs_are_four_lists_of_equal_length() -> None:
    async def scenario() -> None:
        async with live() as server:
            body = (await server.post({"prompt": "Once", "logprobs": 1}, PATH)).json()
        assert body["choices"][0]["logprobs"] == {
            "tokens": ["It is", " Par", "is"],
            "token_logprobs": [-0.25, -0.25, -0.25],
            "top_logprobs": [
                {"It is": -0.25, " Lyon": -1.5},
                {" Par": -0.25, " Lyon": -1.5},
                {"is": -0.25, " Lyon": -1.5},
            ],
            "text_offset": [0, 5, 9],
        }

    run(scenario())


def test_a_stream_has_the_same_as_the_whole() -> None:
    async def scenario() -> None:
        fields = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
        async with live() as server:
            echoed = (await server.post({"prompt": ["A", "B"], "echo": True, **fields}, PATH)).events()
            logged = (await server.post({"prompt": [5], "logprobs": 0, **fields}, PATH)).events()
        *chunks, usage, done = echoed
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert usage["usage"]["prompt_tokens"] == 2 * PROMPT_TOKENS
        assert {(chunk["object"], chunk["id"], chunk["usage"]) for chunk in chunks} == {
            ("text_completion", usage["id"], None)
        }
        assert [_text(chunks, index) for index in range(4)] == [
            f"{prompt}It is Paris" for prompt in ("A", "A", "B", "B")
        ]
        for index in range(4):
            reasons = [
                _choice(chunk)["finish_reason"] for chunk in chunks if _choice(chunk)["index"] == index
            ]
            assert reasons == [None] * (len(reasons) - 1) + ["stop"]
        found = [_choice(chunk)["logprobs"] for chunk in logged[:-2] if _choice(chunk)["index"] == 1]
        assert [offset for lists in found if lists for offset in lists["text_offset"]] == [0, 5, 9]

    run(scenario())


def test_marks_of_reasoning_are_text_in_a_completion() -> None:
    async def scenario() -> None:
        serving = FakeServing(reply=ReplyFormat(reasoning=("It", " Par")))
        async with live(serving) as server:
            body = (await server.post({"prompt": "Once"}, PATH)).json()
        assert body["choices"][0]["text"] == "It is Paris"
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0

    run(scenario())


def test_every_generation_ends_with_its_client() -> None:
    async def scenario() -> None:
        serving = FakeServing()
        async with live(serving) as server:
            reply = await server.post({"prompt": ["a", "b"], "max_tokens": 2}, PATH)
            assert [choice["finish_reason"] for choice in reply.json()["choices"]] == ["length", "length"]
        assert not serving.tasks

    run(scenario())


def _choice(chunk: dict[str, list[dict[str, object]]]) -> dict[str, object]:
    return chunk["choices"][0]


def _text(chunks: list[dict[str, list[dict[str, object]]]], index: int) -> str:
    return "".join(str(_choice(chunk)["text"]) for chunk in chunks if _choice(chunk)["index"] == index)
