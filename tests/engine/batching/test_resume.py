"""A row that an earlier lane had begun goes on exactly as it would have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.checkpoint import Prefix
from samovar.runtime.engine.port import Delta, Failed, Finished, Published, Sampling

from tests.engine.batching.test_backend import (
    _Breaking,
    alone,
    ask,
    end_of,
    finished,
    of,
    opened,
    run,
    text_of,
    tokens_of,
)
from tests.kit.models import VOCAB, ByteCodec, TinyModel, build, tiny

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samovar.runtime.engine.checkpoint import Checkpoint
    from samovar.runtime.engine.port import RowEvent, RowRequest
    from samovar.storage.tokens import TokenIds

FAMILIES = ("llama", "gemma3_text", "mamba2")
TOKENS = 12

HOT = Sampling(
    temperature=1.3,
    top_p=0.95,
    top_k=60,
    min_p=0.01,
    seed=23,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias={7: 1.5, 90: -2.0},
)


class _LetterDetokenizer:
    def add(self, token: int) -> str:
        return chr(ord("a") + token % 26)

    def flush(self) -> str:
        return ""


class _LetterCodec(ByteCodec):
    def detokenizer(self) -> Any:
        return _LetterDetokenizer()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def deltas(events: Iterable[RowEvent], name: str) -> list[Delta]:
    return [event for event in of(events, name) if isinstance(event, Delta)]


def cut_after(request: RowRequest, tokens: list[int], count: int, prefix: Prefix | None = None) -> RowRequest:
    """The request as another lane gets it after ``count`` tokens were emitted."""
    return replace(request, id=f"cut{count}", emitted=tuple(tokens[:count]), prefix=prefix)


def assert_goes_on(
    model: TinyModel, request: RowRequest, whole: list[RowEvent], prefixes: dict[int, Prefix] | None = None
) -> None:
    """Cut ``whole``, the run of ``request``, after every token; every rest must be what followed there."""
    tokens, said = tokens_of(whole, request.id), deltas(whole, request.id)
    assert [len(delta.tokens) for delta in said] == [1] * len(tokens)
    end = finished(whole, request.id)
    cuts = [
        cut_after(request, tokens, count, (prefixes or {}).get(count)) for count in range(len(tokens) + 1)
    ]
    backend = opened(model, batch=len(cuts), prefill_chunk=16)
    events = run(backend, *cuts)
    backend.close()
    for count, cut in enumerate(cuts):
        rest = deltas(events, cut.id)
        assert [delta.tokens for delta in rest] == [delta.tokens for delta in said[count:]], count
        assert [delta.text for delta in rest] == [delta.text for delta in said[count:]], count
        for mine, theirs in zip(rest, said[count:], strict=True):
            assert [each.token for each in mine.logprobs] == [each.token for each in theirs.logprobs]
            assert [each.logprob for each in mine.logprobs] == pytest.approx(
                [each.logprob for each in theirs.logprobs], abs=2e-3
            )
        mine = finished(events, cut.id)
        assert (mine.reason, mine.text) == (end.reason, end.text), count
        assert (mine.prompt_tokens, mine.completion_tokens) == (end.prompt_tokens, end.completion_tokens)


# --- what cannot go on ----------------------------------------------------------------------------


def test_emitted_tokens_outside_the_vocabulary_fail_the_row() -> None:
    events = alone(tiny("llama"), ask("a", 8, 12, emitted=(3, VOCAB)))
    end = end_of(events, "a")
    assert isinstance(end, Failed)
    assert end.code == "invalid_token"


def test_emitted_tokens_without_text_fail_the_row() -> None:
    class Textless(_LetterDetokenizer):
        def add(self, token: int) -> str:
            raise KeyError(token)

    class Codec(ByteCodec):
        def detokenizer(self) -> Any:
            return Textless()

    events = alone(TinyModel(build("llama"), Codec()), ask("a", 8, 12, emitted=(3,)))
    end = end_of(events, "a")
    assert isinstance(end, Failed)
    assert end.code == "detokenizer_error"


def test_emitted_tokens_are_no_prompt() -> None:
    events = alone(tiny("llama"), replace(ask("a", 8, 12, emitted=(3,)), tokens=()))
    end = end_of(events, "a")
    assert isinstance(end, Failed)
    assert end.code == "empty_prompt"


def test_a_prefix_of_other_emitted_tokens_is_refused() -> None:
    request = ask("a", 40, 6, publish=True)
    backend = opened(tiny("llama"))
    events = run(backend, request)
    *_, checkpoint = states(events, "a")
    emitted = tokens_of(events, "a")[:4]
    emitted[1] ^= 1
    wrong = replace(request, id="b", emitted=tuple(emitted), prefix=Prefix(checkpoint, 43))
    end = end_of(run(backend, wrong), "b")
    assert isinstance(end, Failed)
    assert end.code == "invalid_prefix"


# --- going on -------------------------------------------------------------------------------------


def states(events: Iterable[RowEvent], name: str) -> list[Checkpoint]:
    return [event.checkpoint for event in of(events, name) if isinstance(event, Published)]


def test_a_greedy_row_goes_on_wherever_it_was_cut(family: str) -> None:
    request = ask("a", 21, TOKENS, top_logprobs=2)
    whole = alone(tiny(family), request)
    assert_goes_on(tiny(family), request, whole)


def test_a_seeded_row_with_penalties_goes_on_wherever_it_was_cut(family: str) -> None:
    request = ask("a", 21, TOKENS, sampling=HOT, top_logprobs=0)
    whole = alone(tiny(family), request)
    assert tokens_of(whole, "a") != tokens_of(alone(tiny(family), replace(request, sampling=Sampling())), "a")
    assert_goes_on(tiny(family), request, whole)


def test_state_of_what_was_emitted_serves(family: str) -> None:
    """With checkpoints of the prompt and of its beginning of the reply, which rows of earlier lanes left."""
    request = ask("a", 33, TOKENS, sampling=HOT, publish=True)
    model = tiny(family)
    prefixes: dict[int, Prefix] = {}
    for length in (3, 7, TOKENS):
        events = alone(model, replace(request, max_tokens=length))
        prompt, reply = (
            Prefix(checkpoint, len(checkpoint.spec.tokens)) for checkpoint in states(events, "a")
        )
        prefixes |= dict.fromkeys(range(length, TOKENS), reply)
        prefixes.setdefault(0, prompt)
        prefixes.setdefault(1, prompt)
    assert len({prefix.length for prefix in prefixes.values()}) >= 3
    assert_goes_on(model, request, alone(model, request), prefixes)


@pytest.mark.parametrize("sampling", [Sampling(), HOT])
def test_a_stop_string_across_the_cut_is_found(sampling: Sampling) -> None:
    model = TinyModel(build("llama"), _LetterCodec())
    text = text_of(alone(model, ask("a", 8, 30, sampling=sampling)), "a")
    stop = text[8:12]
    request = ask("a", 8, 30, sampling=sampling, stop=(stop, text[2:5] + "!"))
    whole = alone(model, request)
    assert text_of(whole, "a") == text[: text.index(stop)]
    assert "" in [delta.text for delta in deltas(whole, "a")], "nothing was held back"
    assert_goes_on(model, request, whole)


def test_a_character_across_the_cut_comes_whole() -> None:
    """Bytes of characters, incomplete ones at the end included; some texts are held back at every cut."""
    cut = next(
        count
        for count in range(20, 60)
        if deltas(alone(tiny("llama"), ask("a", 8, count)), "a")[-1].text == ""
    )
    request = ask("a", 8, cut)
    whole = alone(tiny("llama"), request)
    assert finished(whole, "a").text.endswith("\ufffd")
    assert_goes_on(tiny("llama"), request, whole)


def test_end_tokens_end_a_resumed_row_too() -> None:
    tokens = tokens_of(alone(tiny("llama"), ask("a", 9, 20)), "a")
    model = tiny("llama", frozenset({tokens[8]}))
    request = ask("a", 9, 20)
    whole = alone(model, request)
    assert finished(whole, "a").reason == "stop"
    assert_goes_on(model, request, whole)


def test_a_request_has_end_tokens_of_its_own() -> None:
    tokens = tokens_of(alone(tiny("llama"), ask("a", 9, 20)), "a")
    stop = tokens[6]
    cut = tokens.index(stop)
    backend = opened(tiny("llama"))
    events = run(backend, ask("a", 9, 20, stop_tokens=frozenset({stop})), replace(ask("a", 9, 20), id="b"))
    assert tokens_of(events, "a") == tokens[:cut]
    end = finished(events, "a")
    assert (end.reason, end.completion_tokens) == ("stop", cut)
    assert tokens_of(events, "b") == tokens


# --- nothing left to do ---------------------------------------------------------------------------


class _Remembering(_LetterCodec):
    def __init__(self) -> None:
        super().__init__()
        self.remembered: list[list[int]] = []

    def remember(self, tokens: TokenIds) -> None:
        self.remembered.append(tokens.tolist())


@pytest.mark.parametrize(
    ("options", "reason"), [({"max_tokens": 4}, "length"), ({"stop": ("fg",)}, "stop"), ({}, None)]
)
def test_a_row_that_was_complete_ends_without_a_model_call(options: dict[str, Any], reason: str) -> None:
    emitted = (0, 4, 5, 6)  # "aefg"
    codec = _Remembering()
    backend = opened(TinyModel(_Breaking(build("llama"), 0), codec))
    request = ask("a", 40, **{"max_tokens": 9, "publish": True, "emitted": emitted, **options})
    backend.insert(request)
    if reason is None:
        with pytest.raises(RuntimeError, match="device lost"):
            backend.step()
        return
    [end] = backend.step()
    assert isinstance(end, Finished)
    assert (end.reason, end.text, end.prompt_tokens, end.completion_tokens) == (reason, "", 40, 4)
    assert codec.remembered == [[*request.tokens, *emitted]]
    assert not backend.busy


def test_text_held_back_when_the_lane_was_lost_comes_with_the_end() -> None:
    backend = opened(TinyModel(build("llama"), _LetterCodec()))
    end = finished(run(backend, ask("a", 9, 4, emitted=(0, 4, 5, 6), stop=("fgh",))), "a")
    assert (end.reason, end.text) == ("length", "fg")


def test_a_resumed_row_publishes_what_it_would_have() -> None:
    request = ask("a", 40, 8, publish=True)
    whole = alone(tiny("llama"), request)
    emitted = tuple(tokens_of(whole, "a")[:5])
    resumed = alone(tiny("llama"), replace(request, emitted=emitted))
    wanted = [checkpoint.spec.tokens.tolist() for checkpoint in states(whole, "a")]
    assert [checkpoint.spec.tokens.tolist() for checkpoint in states(resumed, "a")] == wanted
