"""What rows publish, and that starting from it changes nothing but the time."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.checkpoint import Prefix
from samovar.runtime.engine.port import Delta, Failed, Finished, Published, RowRequest, Sampling

from tests.engine.batching.test_backend import ask, end_of, finished, of, opened, run, text_of, tokens_of
from tests.kit.models import FAMILIES, WINDOW, ByteCodec, TinyModel, build, tiny

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samovar.runtime.engine.checkpoint import Checkpoint
    from samovar.runtime.engine.port import RowEvent
    from samovar.storage.tokens import TokenIds

UNTRIMMED = ("gemma3_text", "qwen3_next", "mamba2")


def publishing(name: str, length: int = 40, max_tokens: int = 6, **options: Any) -> RowRequest:
    return ask(name, length, max_tokens, **{"publish": True, **options})


def published(events: Iterable[RowEvent], name: str) -> list[Checkpoint]:
    return [event.checkpoint for event in of(events, name) if isinstance(event, Published)]


def digest(checkpoint: Checkpoint) -> str:
    hashed = hashlib.sha256()
    for tensor in checkpoint.segments():
        for segment in tensor:
            hashed.update(segment)
    return hashed.hexdigest()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


# --- what is not published ------------------------------------------------------------------------


def test_a_row_that_does_not_ask_publishes_nothing() -> None:
    events = run(opened(tiny("llama")), ask("a", 40))
    assert published(events, "a") == []


def test_short_states_are_not_worth_keeping() -> None:
    events = run(opened(tiny("mamba2"), publish_min_tokens=60), publishing("a", 40, 6))
    assert published(events, "a") == []


def test_a_cancelled_row_publishes_at_its_boundary_at_most() -> None:
    backend = opened(tiny("llama"))
    backend.insert(publishing("a", 40, 100))
    events: list[RowEvent] = []
    while not any(isinstance(event, Delta) for event in events):
        events += backend.step()
    backend.cancel("a")
    while backend.busy:
        events += backend.step()
    assert [len(each.spec.tokens) for each in published(events, "a")] == [39]


def test_a_failed_row_publishes_nothing_of_its_end() -> None:
    class Textless(ByteCodec):
        def detokenizer(self) -> Any:
            return _Textless()

    class _Textless:
        def add(self, token: int) -> str:
            raise ValueError("no text")

        def flush(self) -> str:
            return ""

    events = run(opened(TinyModel(build("llama"), Textless())), publishing("a"))
    assert isinstance(end_of(events, "a"), Failed)
    assert [len(each.spec.tokens) for each in published(events, "a")] == [39]


@pytest.mark.parametrize("spoil", ["tokens", "namespace", "length"])
def test_state_of_other_tokens_is_refused(spoil: str) -> None:
    backend = opened(tiny("llama"))
    source = publishing("a")
    (*_, checkpoint) = published(run(backend, source), "a")
    tokens = list(source.tokens)
    if spoil == "tokens":
        tokens[3] ^= 1
    length = len(tokens) if spoil == "length" else 20
    wrong = RowRequest(
        "b", tokens, 4, prefix=Prefix(checkpoint, length), namespace="other" if spoil == "namespace" else ""
    )
    end = end_of(run(backend, wrong), "b")
    assert isinstance(end, Failed)
    assert end.code == "invalid_prefix"


# --- what is published ----------------------------------------------------------------------------


def test_a_row_publishes_its_prompt_and_then_its_run_before_it_ends(family: str) -> None:
    request = publishing("a")
    events = run(opened(tiny(family)), request)
    prompt, whole = published(events, "a")
    output = tokens_of(events, "a")
    assert prompt.spec.tokens.tolist() == list(request.tokens[:-1])
    assert whole.spec.tokens.tolist() == [*request.tokens, *output][: len(whole.spec.tokens)]
    assert len(whole.spec.tokens) >= len(request.tokens) + len(output) - 1
    assert isinstance(of(events, "a")[-1], Finished)
    assert isinstance(of(events, "a")[-2], Published)


@pytest.mark.parametrize("family", UNTRIMMED)
def test_state_that_cannot_be_shortened_is_published_at_the_boundary_too(family: str) -> None:
    request = publishing("a", 40, boundary=33)
    events = run(opened(tiny(family)), request)
    assert [len(each.spec.tokens) for each in published(events, "a")][:2] == [33, 39]
    plain = run(opened(tiny(family)), replace(request, publish=False))
    assert text_of(events, "a") == text_of(plain, "a")


@pytest.mark.parametrize("ending", ["length", "end token", "stop string"])
def test_the_key_is_what_was_fed_however_the_row_ends(family: str, ending: str) -> None:
    """B098: the last sampled token may not have been fed; then it is not in the key either."""
    request = publishing("a", 40, 12)
    whole = tokens_of(run(opened(tiny(family)), request), "a")
    model = tiny(family)
    if ending == "end token":
        model = tiny(family, frozenset((whole[4],)))
    elif ending == "stop string":
        request = replace(request, stop=(bytes(whole[3:5]).decode("utf-8", "replace"),))
    events = run(opened(model), request)
    (*_, last) = published(events, "a")
    key = last.spec.tokens.tolist()
    assert key == [*request.tokens, *whole][: len(key)]
    # Going on from it gives what a fresh run over the same tokens gives.
    following = RowRequest("b", [*key, 7, 9], 8, prefix=Prefix(last, len(key)))
    fresh = RowRequest("b", [*key, 7, 9], 8)
    assert text_of(run(opened(model), following), "b") == text_of(run(opened(model), fresh), "b")


def test_a_row_alone_and_a_row_in_company_publish_the_same_tokens(family: str) -> None:
    requests = [publishing(name, 30 + 7 * n, 4 + 5 * n) for n, name in enumerate("abc")]
    together = run(opened(tiny(family), publish_min_tokens=8), *requests)
    for request in requests:
        alone = run(opened(tiny(family), publish_min_tokens=8), request)
        mine = [each.spec.tokens.tolist() for each in published(together, request.id)]
        prompt, whole = (each.spec.tokens.tolist() for each in published(alone, request.id))
        assert mine[0] == prompt
        # In company the last step may already be under way, so one more token may have been fed.
        assert mine[1][: len(whole)] == whole[: len(mine[1])]


def test_replies_are_remembered_with_their_last_token() -> None:
    class Remembering(ByteCodec):
        def __init__(self) -> None:
            super().__init__()
            self.remembered: list[TokenIds] = []

        def remember(self, tokens: TokenIds) -> None:
            self.remembered.append(tokens)

    codec = Remembering()
    request = publishing("a")
    events = run(opened(TinyModel(build("llama"), codec)), request)
    assert [each.tolist() for each in codec.remembered] == [[*request.tokens, *tokens_of(events, "a")]]


# --- starting from it -----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [WINDOW - 4, 40, 300])
def test_a_repeated_prompt_starts_from_all_but_its_last_token(family: str, length: int) -> None:
    request = publishing("a", length, 20)
    cold = opened(tiny(family), publish_min_tokens=2)
    events = run(cold, request)
    prompt, _ = published(events, "a")
    before = digest(prompt)
    again = replace(request, id="b", prefix=Prefix(prompt, length - 1))
    warm = run(cold, again)
    assert tokens_of(warm, "b") == tokens_of(events, "a")
    assert finished(warm, "b").cached_tokens == length - 1
    assert digest(prompt) == before
    assert cold.figures().prefilled_tokens == length - 1


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_a_trimmed_prefix_serves_a_branch(family: str) -> None:
    first = publishing("a", 60, 8)
    backend = opened(tiny(family))
    (*_, whole) = published(run(backend, first), "a")
    branch = RowRequest("b", [*first.tokens[:31], 1, 2, 3], 16)
    warm = run(backend, replace(branch, prefix=Prefix(whole, 31)))
    assert tokens_of(warm, "b") == tokens_of(run(opened(tiny(family)), branch), "b")


def test_borrowers_side_by_side_leave_the_checkpoint_alone(family: str) -> None:
    request = publishing("a", 40, 4)
    backend = opened(tiny(family))
    (prompt, _) = published(run(backend, request), "a")
    before = digest(prompt)
    rows = [
        replace(request, id=f"r{n}", max_tokens=60 + n, prefix=Prefix(prompt, 39), publish=n % 2 == 0)
        for n in range(4)
    ]
    events = run(backend, *rows)
    longest = tokens_of(events, "r3")
    for n in range(3):
        assert tokens_of(events, f"r{n}") == longest[: 60 + n]
    assert digest(prompt) == before


def test_penalties_see_the_whole_history_on_a_hit() -> None:
    """B107: the borrowed part counts as much as the part that was prefilled."""
    sampling = Sampling(repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.2)
    request = publishing("a", 60, 24, sampling=sampling)
    backend = opened(tiny("llama"))
    cold = run(backend, request)
    (prompt, _) = published(cold, "a")
    warm = run(backend, replace(request, id="b", prefix=Prefix(prompt, 59)))
    assert tokens_of(warm, "b") == tokens_of(cold, "a")
