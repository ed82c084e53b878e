"""The real ``openai`` package against the default model in a process of its own."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from .clients import CAPITAL, MARKS, MODEL, MOST_WITHOUT_TOOLS, TOOLS, WEATHER, chat, openai

pytestmark = MARKS


class Report(BaseModel):
    """What a reply has to be."""

    city: Literal["Paris", "Oslo"]
    sunny: bool


# -- openai: chat completions


def test_the_model_is_listed_under_all_its_names(ai: openai.OpenAI) -> None:
    names = [each.id for each in ai.models.list()]
    assert MODEL in names
    assert ai.models.retrieve(names[0]).id == names[0]


def test_a_stream_says_what_a_whole_answer_says(ai: openai.OpenAI) -> None:
    whole = chat(ai)
    assert "Paris" in whole.choices[0].message.content
    chunks = list(chat(ai, stream=True, stream_options={"include_usage": True}))
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == whole.choices[
        0
    ].finish_reason


def test_a_demanded_call_goes_out_and_its_result_comes_back(ai: openai.OpenAI) -> None:
    with ai.chat.completions.stream(
        model=MODEL,
        messages=WEATHER,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
        temperature=0,
    ) as stream:
        final = stream.get_final_completion()
    (turn,) = final.choices
    assert turn.finish_reason == "tool_calls"
    (call,) = turn.message.tool_calls or ()
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Oslo"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
    said = {"role": "assistant", "tool_calls": [call.model_dump(include={"id", "type", "function"})]}
    second = chat(ai, [*WEATHER, said, result], tools=TOOLS, tool_choice="none")
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None
    assert second.usage.prompt_tokens_details.cached_tokens > MOST_WITHOUT_TOOLS


def test_a_tool_by_name_is_called_and_an_automatic_choice_is_the_models(ai: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    (turn,) = chat(ai, WEATHER, tools=TOOLS, tool_choice=named, max_tokens=60).choices
    assert turn.finish_reason == "tool_calls"
    assert [call.function.name for call in turn.message.tool_calls] == ["get_weather"]
    (free,) = chat(ai, WEATHER, tools=TOOLS, tool_choice="auto", max_tokens=4).choices
    assert free.finish_reason in {"stop", "length", "tool_calls"}
    assert free.message.content or free.message.tool_calls


def test_a_reply_keeps_to_a_schema(ai: openai.OpenAI) -> None:
    parsed = ai.chat.completions.parse(
        model=MODEL, messages=WEATHER, response_format=Report, max_tokens=40, temperature=0
    )
    assert isinstance(parsed.choices[0].message.parsed, Report)
    assert parsed.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("constraint", "replies"),
    [
        ({"guided_regex": "(Rome|Oslo)!"}, {"Rome!", "Oslo!"}),
        ({"guided_choice": ["maybe", "never"]}, {"maybe", "never"}),
        ({"guided_grammar": 'start: "a" "b"'}, {"ab"}),
    ],
    ids=["regex", "choice", "grammar"],
)
def test_a_reply_keeps_to_a_constraint(ai: openai.OpenAI, constraint: Any, replies: set[str]) -> None:
    (choice,) = chat(ai, extra_body=constraint).choices
    assert choice.message.content in replies
    assert choice.finish_reason == "stop"


def test_logprobs_name_the_tokens_of_the_text(ai: openai.OpenAI) -> None:
    (choice,) = chat(ai, logprobs=True, top_logprobs=2, max_tokens=6).choices
    tokens = choice.logprobs.content
    assert "".join(each.token for each in tokens) == choice.message.content
    for each in tokens:
        assert [each.token, each.logprob] == [each.top_logprobs[0].token, each.top_logprobs[0].logprob]
        assert each.top_logprobs[1].logprob <= each.logprob <= 0


def test_choices_share_an_id_and_seeds_repeat_them(ai: openai.OpenAI) -> None:
    def two(seed: int) -> list[str]:
        answer = chat(ai, n=2, seed=seed, temperature=1.5, max_tokens=8)
        assert answer.id.startswith("chatcmpl-")
        assert [choice.index for choice in answer.choices] == [0, 1]
        return [choice.message.content for choice in answer.choices]

    first = two(7)
    assert first[0] != first[1]
    assert two(7) == first
    assert two(8) != first
    chunks = list(chat(ai, n=2, stream=True, max_tokens=4))
    assert len({each.id for each in chunks}) == 1
    assert {choice.index for each in chunks for choice in each.choices} == {0, 1}


def test_a_stop_string_ends_the_reply(ai: openai.OpenAI) -> None:
    (choice,) = chat(ai, stop=["Paris", "xyz"]).choices
    assert (choice.message.content, choice.finish_reason) == ("The capital of France is ", "stop")


# -- openai: responses and completions


def test_a_chain_of_responses_reuses_what_came_before(ai: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "max_output_tokens": 8, "temperature": 0}
    first = ai.responses.create(input=CAPITAL[0]["content"], **fields)
    assert "Paris" in first.output_text
    with ai.responses.stream(input="And of Norway?", previous_response_id=first.id, **fields) as stream:
        kinds = [event.type for event in stream]
        second = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert second.output_text
    assert second.usage is not None
    assert first.usage is not None
    cached = second.usage.input_tokens_details.cached_tokens
    assert first.usage.input_tokens <= cached < second.usage.input_tokens
    assert ai.responses.retrieve(second.id).output_text == second.output_text
    ai.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        ai.responses.retrieve(first.id)
    third = ai.responses.create(input="Thanks.", previous_response_id=second.id, **fields)
    assert third.output_text


def test_completions_of_texts_and_of_ids(ai: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "temperature": 0}
    both = ai.completions.create(prompt=["One, two,", "The sky is"], echo=True, **fields)
    assert [each.index for each in both.choices] == [0, 1]
    alone = ai.completions.create(prompt="One, two,", logprobs=2, **fields).choices[0]
    assert both.choices[0].text == "One, two," + alone.text
    found = alone.logprobs
    assert found is not None
    assert "".join(found.tokens or ()) == alone.text
    assert [len(each) for each in found.top_logprobs or ()] == [2] * len(found.tokens or ())
    by_ids = ai.completions.create(prompt=[[1, 2, 3], [4, 5]], **fields)
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 5
    streamed = ai.completions.create(prompt="One, two,", stream=True, **fields)
    assert "".join(each.choices[0].text for each in streamed if each.choices) == alone.text
