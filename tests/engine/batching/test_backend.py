from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samovar.runtime.engine.batching.backend import BackendOptions, MlxBackend
from samovar.runtime.engine.models.batchable import BatchingUnsupported
from samovar.runtime.engine.port import (
    Cancelled,
    Delta,
    Failed,
    Finished,
    LaneBackend,
    ModelInfo,
    Prefilled,
    RowEvent,
    RowRequest,
    Sampling,
)

from tests.kit.models import FAMILIES, VOCAB, ByteCodec, ByteDetokenizer, TinyModel, build, tiny

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Terminal = Finished | Cancelled | Failed
STEP_LIMIT = 5000


def opened(model: TinyModel, **options: Any) -> MlxBackend:
    backend = MlxBackend(model, BackendOptions(**options))
    backend.open()
    return backend


def ask(name: str, length: int = 8, max_tokens: int = 12, **options: Any) -> RowRequest:
    rng = random.Random(f"{name}/{length}")
    return RowRequest(name, [rng.randrange(VOCAB) for _ in range(length)], max_tokens, **options)


def drain(backend: LaneBackend) -> list[RowEvent]:
    events: list[RowEvent] = []
    for _ in range(STEP_LIMIT):
        if not backend.busy:
            return events
        events.extend(backend.step())
    raise AssertionError("the backend stays busy")


def run(backend: LaneBackend, *requests: RowRequest) -> list[RowEvent]:
    for request in requests:
        backend.insert(request)
    return drain(backend)


def of(events: Iterable[RowEvent], name: str) -> list[RowEvent]:
    return [event for event in events if event.id == name]


def text_of(events: Iterable[RowEvent], name: str) -> str:
    return "".join(event.text for event in of(events, name) if isinstance(event, Delta | Finished))


def tokens_of(events: Iterable[RowEvent], name: str) -> list[int]:
    return [token for event in of(events, name) if isinstance(event, Delta) for token in event.tokens]


def end_of(events: Iterable[RowEvent], name: str) -> Terminal:
    *_, last = own = of(events, name)
    assert isinstance(last, Terminal)
    assert sum(isinstance(event, Terminal) for event in own) == 1
    return last


def finished(events: Iterable[RowEvent], name: str) -> Finished:
    end = end_of(events, name)
    assert isinstance(end, Finished)
    return end


def alone(model: TinyModel, request: RowRequest) -> list[RowEvent]:
    backend = opened(model)
    try:
        return run(backend, request)
    finally:
        backend.close()


# --- what one row may get wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"tokens": []}, "empty_prompt"),
        ({"tokens": [1, VOCAB]}, "invalid_token"),
        ({"tokens": [-1]}, "invalid_token"),
        ({"max_tokens": -1}, "invalid_max_tokens"),
        ({"top_logprobs": 21}, "invalid_top_logprobs"),
        ({"sampling": Sampling(logit_bias={VOCAB: 1.0})}, "invalid_logit_bias"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, "invalid_sampling"),
    ],
)
def test_a_row_that_cannot_be_decoded_fails_alone(wrong: dict[str, Any], code: str) -> None:
    backend = opened(tiny("llama"))
    events = run(backend, ask("good"), replace(ask("bad"), **wrong))
    assert len(of(events, "bad")) == 1
    end = end_of(events, "bad")
    assert isinstance(end, Failed)
    assert end.code == code
    assert tokens_of(events, "good") == tokens_of(alone(tiny("llama"), ask("good")), "good")


class _Fragile(ByteDetokenizer):
    def add(self, token: int) -> str:
        if token % 3 == 0:
            raise KeyError(token)
        return super().add(token)


class _FragileCodec(ByteCodec):
    def detokenizer(self) -> ByteDetokenizer:
        return _Fragile()


def test_a_token_without_text_fails_its_row_alone() -> None:
    backend = opened(TinyModel(build("llama"), _FragileCodec()))
    whole = {name: tokens_of(alone(tiny("llama"), ask(name, max_tokens=40)), name) for name in "abc"}
    events = run(backend, *(ask(name, max_tokens=40) for name in "abc"))
    for name, tokens in whole.items():
        readable = next((place for place, token in enumerate(tokens) if token % 3 == 0), len(tokens))
        assert tokens_of(events, name) == tokens[:readable]
        end = end_of(events, name)
        assert (end.code if isinstance(end, Failed) else "") == ("detokenizer_error" if readable < 40 else "")
    assert any(isinstance(end_of(events, name), Failed) for name in "abc")


class _Breaking:
    """A real model whose n-th call raises, as a device error would."""

    def __init__(self, model: Any, calls: int) -> None:
        self._model = model
        self._left = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("device lost")
        return self._model(*args, **kwargs)


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_what_the_model_raises_crashes_the_lane(calls: int) -> None:
    backend = opened(TinyModel(_Breaking(build("llama"), calls)))
    backend.insert(ask("a"))
    with pytest.raises(RuntimeError, match="device lost"):
        drain(backend)
    backend.close()
    assert not backend.busy


def test_a_second_row_with_a_living_id_is_the_callers_mistake() -> None:
    backend = opened(tiny("llama"))
    backend.insert(ask("a"))
    with pytest.raises(ValueError, match="already"):
        backend.insert(ask("a"))


def test_a_closed_backend_refuses_work_and_closes_twice() -> None:
    backend = opened(tiny("llama"))
    backend.insert(ask("a"))
    backend.close()
    backend.close()
    assert not backend.busy
    with pytest.raises(RuntimeError, match="not open"):
        backend.step()


class _UnknownCaches:
    def make_cache(self) -> list[Any]:
        from mlx_lm.models.cache import ConcatenateKVCache  # noqa: PLC0415 - only this test needs it

        return [ConcatenateKVCache()]


def test_a_model_of_unknown_caches_is_refused_at_the_start() -> None:
    with pytest.raises(BatchingUnsupported, match=r"layer 0: .*ConcatenateKVCache declares no signature"):
        MlxBackend(TinyModel(_UnknownCaches())).open()


# --- cancelling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6])
def test_a_cancelled_row_says_so_in_the_next_step_and_nothing_more(steps: int) -> None:
    backend = opened(tiny("llama"), prefill_chunk=16)
    backend.insert(ask("gone", 40, 50))
    backend.insert(ask("stays", 12, 20))
    events: list[RowEvent] = []
    for _ in range(steps):
        events.extend(backend.step())
    assert not any(isinstance(event, Terminal) for event in events)
    backend.cancel("gone")
    assert backend.busy
    after = backend.step()
    assert of(after, "gone") == [Cancelled("gone")]
    rest = [*events, *after, *drain(backend)]
    assert isinstance(end_of(rest, "gone"), Cancelled)
    assert tokens_of(rest, "stays") == tokens_of(alone(tiny("llama"), ask("stays", 12, 20)), "stays")


def test_cancelling_the_only_row_leaves_an_idle_backend() -> None:
    backend = opened(tiny("llama"))
    backend.insert(ask("a", max_tokens=100))
    for _ in range(4):
        backend.step()
    backend.cancel("a")
    backend.cancel("a")
    backend.cancel("unknown")
    assert backend.busy
    assert backend.step() == [Cancelled("a")]
    assert not backend.busy
    assert backend.figures().rows == 0


def test_a_cancelled_id_may_come_again() -> None:
    backend = opened(tiny("llama"))
    backend.insert(ask("a"))
    backend.step()
    backend.cancel("a")
    backend.insert(ask("a"))
    events = drain(backend)
    assert [type(event) for event in of(events, "a") if isinstance(event, Terminal)] == [Cancelled, Finished]


def test_a_cancelled_row_makes_room_at_once() -> None:
    backend = opened(tiny("llama"), batch=1)
    backend.insert(ask("a", max_tokens=1000))
    backend.insert(ask("b", max_tokens=3))
    for _ in range(5):
        backend.step()
    backend.cancel("a")
    events = drain(backend)
    assert len(tokens_of(events, "b")) == 3


# --- the end of a row -----------------------------------------------------------------------------


def test_an_end_token_stops_the_row_and_is_neither_shown_nor_counted() -> None:
    tokens = tokens_of(alone(tiny("llama"), ask("a", max_tokens=30)), "a")
    eos = tokens[9]
    cut = tokens.index(eos)
    events = alone(tiny("llama", frozenset({eos, VOCAB + 5})), ask("a", max_tokens=30))
    assert tokens_of(events, "a") == tokens[:cut]
    end = finished(events, "a")
    assert (end.reason, end.completion_tokens, end.prompt_tokens) == ("stop", cut, 8)
    assert text_of(events, "a") == bytes(tokens[:cut]).decode(errors="replace")


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 7])
def test_max_tokens_ends_with_length(max_tokens: int) -> None:
    events = alone(tiny("llama"), ask("a", max_tokens=max_tokens))
    end = finished(events, "a")
    assert (end.reason, end.completion_tokens) == ("length", max_tokens)
    assert len(tokens_of(events, "a")) == max_tokens


class _LetterDetokenizer:
    def add(self, token: int) -> str:
        return chr(ord("a") + token % 26)

    def flush(self) -> str:
        return ""


class _LetterCodec(ByteCodec):
    def detokenizer(self) -> Any:
        return _LetterDetokenizer()


LETTERS = TinyModel(build("llama"), _LetterCodec())


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_string_ends_the_row_and_is_never_shown(length: int) -> None:
    text = text_of(alone(LETTERS, ask("a", max_tokens=40)), "a")
    stop = text[20 : 20 + length]
    cut = text.index(stop)
    events = alone(LETTERS, ask("a", max_tokens=40, stop=("never there", stop)))
    assert text_of(events, "a") == text[:cut]
    end = finished(events, "a")
    assert (end.reason, end.completion_tokens) == ("stop", cut + length)


def test_text_held_back_for_a_stop_string_comes_with_the_end() -> None:
    text = text_of(alone(LETTERS, ask("a", max_tokens=10)), "a")
    events = alone(LETTERS, ask("a", max_tokens=10, stop=(text[-4:] + "!",)))
    end = finished(events, "a")
    assert (end.reason, end.text) == ("length", text[-4:])
    assert text_of(events, "a") == text


def test_a_stop_string_in_the_last_flushed_text_counts() -> None:
    codec = ByteCodec()
    tokens = tokens_of(alone(tiny("llama"), ask("a", max_tokens=60)), "a")
    cut = next(
        place
        for place in range(1, 60)
        if bytes(tokens[: place + 1]).decode(errors="replace")[-1] == "\ufffd"
        and codec.detokenizer().add(tokens[place]) == ""
    )
    events = alone(tiny("llama"), ask("a", max_tokens=cut + 1, stop=("\ufffd",)))
    assert finished(events, "a").reason == "stop"
    assert "\ufffd" not in text_of(events, "a")


def test_a_finished_row_has_left_before_the_next_step() -> None:
    backend = opened(tiny("llama"))
    backend.insert(ask("short", max_tokens=3))
    backend.insert(ask("long", max_tokens=30))
    while not any(isinstance(event, Finished) for event in backend.step()):
        pass
    assert backend.figures().rows == 1
    backend.step()
    assert backend.figures().rows == 1
    assert backend.figures().peak_rows == 2


# --- many rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_says_what_it_says_alone(family: str) -> None:
    model = tiny(family)
    requests = [
        ask(f"r{place}", length, 20 + 3 * place) for place, length in enumerate((3, 1, 40, 17, 16, 65))
    ]
    backend = opened(model, batch=4, prefill_chunk=16)
    events: list[RowEvent] = []
    for request in requests:
        backend.insert(request)
        events.extend(backend.step())
        events.extend(backend.step())
    events.extend(drain(backend))
    single = opened(model)
    for request in requests:
        assert tokens_of(events, request.id) == tokens_of(run(single, request), request.id)
        assert finished(events, request.id).completion_tokens == request.max_tokens
    assert backend.figures().peak_rows == 4


def test_seeded_rows_draw_the_same_in_any_company() -> None:
    hot = Sampling(temperature=1.2, top_p=0.9, top_k=50, seed=11)
    penalised = Sampling(temperature=0.8, seed=5, repetition_penalty=1.2, frequency_penalty=0.3)
    a, b = ask("a", 9, 20, sampling=hot), ask("b", 9, 20, sampling=penalised)
    apart = [tokens_of(alone(tiny("llama"), each), each.id) for each in (a, b)]
    backend = opened(tiny("llama"))
    backend.insert(ask("first", 30, 12))
    backend.step()
    backend.step()
    events = run(backend, b, a, ask("last", 5, 30, sampling=Sampling(temperature=1.0)))
    assert [tokens_of(events, name) for name in "ab"] == apart
    assert apart[0] != tokens_of(alone(tiny("llama"), replace(a, sampling=replace(hot, seed=12))), "a")


def test_streams_go_on_while_a_long_prompt_is_prefilled() -> None:
    backend = opened(tiny("llama"), prefill_chunk=16)
    backend.insert(ask("runs", 4, 500))
    for _ in range(4):
        backend.step()
    backend.insert(ask("long", 200, 4))
    events: list[RowEvent] = []
    while not tokens_of(events, "long"):
        batch = backend.step()
        assert tokens_of(batch, "runs"), "a step brought the running stream nothing"
        events.extend(batch)
    progress = [event for event in events if isinstance(event, Prefilled)]
    assert len(progress) >= 12
    assert [event.done for event in progress] == sorted(event.done for event in progress)
    assert (progress[-1].done, progress[-1].total) == (200, 200)


def test_a_short_prompt_overtakes_a_long_one() -> None:
    backend = opened(tiny("llama"), prefill_chunk=16)
    backend.insert(ask("long", 400, 4))
    for _ in range(3):
        backend.step()
    backend.insert(ask("short", 10, 4))
    events = drain(backend)
    order = [event.id for event in events if isinstance(event, Finished)]
    assert order == ["short", "long"]


def test_more_rows_than_places_wait_their_turn() -> None:
    backend = opened(tiny("llama"), batch=2)
    events = run(backend, *(ask(f"r{place}", 6, 5) for place in range(7)))
    assert all(len(tokens_of(events, f"r{place}")) == 5 for place in range(7))
    assert backend.figures().peak_rows == 2


def test_logprobs_are_those_of_the_model_and_only_for_who_asked() -> None:
    backend = opened(tiny("llama"))
    sampling = Sampling(temperature=1.5, seed=1, logit_bias={3: 2.0})
    events = run(backend, ask("asks", 9, 5, top_logprobs=2, sampling=sampling), ask("other", 5, 5))
    deltas = [event for event in of(events, "asks") if isinstance(event, Delta)]
    context = list(ask("asks", 9, 5).tokens)
    for delta in deltas:
        [entry] = delta.logprobs
        logits = build("llama")(mx.array([context]))[0, -1]
        wanted = logits - mx.logsumexp(logits)
        assert entry.token == delta.tokens[0]
        assert entry.logprob == pytest.approx(wanted[entry.token].item(), abs=1e-3)
        assert entry.text == bytes([entry.token]).decode(errors="replace")
        assert entry.top[0][0] == int(mx.argmax(logits).item())
        assert len(entry.top) == 2
        context.append(entry.token)
    assert all(not event.logprobs for event in of(events, "other") if isinstance(event, Delta))


# --- figures and threads --------------------------------------------------------------------------


def test_figures_add_up() -> None:
    backend = opened(tiny("llama"), prefill_chunk=16)
    run(backend, ask("a", 40, 10), ask("b", 21, 10))
    figures = backend.figures()
    assert (figures.rows, figures.prefilling, figures.peak_rows) == (0, 0, 2)
    assert (figures.decoded_tokens, figures.prefilled_tokens) == (20, 39 + 20)
    assert 10 <= figures.steps <= 20
    assert 0 < figures.step_ms_p50 <= figures.step_ms_p99
    assert figures.decode_tps > 0
    assert figures.prefill_tps > 0


def test_an_open_backend_tells_the_model() -> None:
    backend = MlxBackend(tiny("llama"))
    info = backend.open()
    assert isinstance(info, ModelInfo)
    assert info.vocab_size == VOCAB
    assert not backend.busy


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_lane_thread_takes_over_the_same_model(family: str) -> None:
    model = tiny(family)
    results: list[list[int]] = []
    failures: list[BaseException] = []

    def lane(*, leave_early: bool) -> None:
        try:
            backend = opened(model)
            if leave_early:
                backend.insert(ask("left", 30, 50))
                for _ in range(4):
                    backend.step()
            else:
                results.append(tokens_of(run(backend, ask("a", 20, 8)), "a"))
            backend.close()
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            failures.append(error)

    for leave_early in (False, True, False):
        thread = threading.Thread(target=lane, kwargs={"leave_early": leave_early})
        thread.start()
        thread.join()
    assert not failures
    assert results == [tokens_of(alone(model, ask("a", 20, 8)), "a")] * 2


# --- any order of things --------------------------------------------------------------------------

PROMPTS = (1, 2, 9, 16, 33)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from(PROMPTS), st.integers(0, 9)),
        st.tuples(st.just("cancel"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
    ),
    max_size=25,
)
_SOLO: dict[int, list[int]] = {}


def solo_tokens(length: int) -> list[int]:
    if length not in _SOLO:
        _SOLO[length] = tokens_of(alone(tiny("llama"), ask("any", length, 9)), "any")
    return _SOLO[length]


@settings(max_examples=25, deadline=None)
@given(actions)
def test_any_sequence_ends_every_row_once_with_its_own_text(script: Sequence[tuple[str, int, int]]) -> None:
    backend = opened(tiny("llama"), batch=3, prefill_chunk=16)
    asked: dict[str, RowRequest] = {}
    cancelled: set[str] = set()
    events: list[RowEvent] = []
    for action, first, second in script:
        if action == "insert":
            request = replace(ask("any", first, second), id=f"r{len(asked)}")
            asked[request.id] = request
            backend.insert(request)
        elif action == "cancel":
            backend.cancel(f"r{first}")
            cancelled.add(f"r{first}")
        else:
            for _ in range(first):
                events.extend(backend.step())
    events.extend(drain(backend))
    backend.close()
    for name, request in asked.items():
        end = end_of(events, name)
        wanted = solo_tokens(len(request.tokens))[: request.max_tokens]
        if isinstance(end, Cancelled):
            assert name in cancelled
            assert tokens_of(events, name) == wanted[: len(tokens_of(events, name))]
        else:
            assert isinstance(end, Finished)
            assert tokens_of(events, name) == wanted
