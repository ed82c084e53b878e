"""Short prompts that come together share a model call, and nobody notices but by the time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from mlx_lm.models.cache import KVCache
from samovar.runtime.engine.batching.backend import BackendOptions, MlxBackend
from samovar.runtime.engine.batching.together import LONGEST_SHARED, MOST_PADDING, calls_of
from samovar.runtime.engine.checkpoint import Prefix
from samovar.runtime.engine.port import AtWork, Cancelled, Failed, Prefilled, Published
from samovar.runtime.engine.state.scheme import KvChoice
from samovar.runtime.engine.state.scheme_start import resolve

from tests.engine.batching.test_backend import ask, drain, end_of, finished, of, run, tokens_of
from tests.engine.batching.test_batch import make_row
from tests.engine.batching.test_fairness import GAP_S, STEP_S, TOKEN_S, _Machine, _Room
from tests.kit.models import FAMILIES, VOCAB, TinyModel, build

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.core as mx
    from samovar.runtime.engine.batching.rows import Row
    from samovar.runtime.engine.port import RowEvent, RowRequest

PLAIN = ("llama", "deepseek_v3")
LENGTHS = (12, 17, 19, 21, 18)


class _Counting:
    """A real model that notes the shape of every prefill call, and may be told to break in one."""

    def __init__(self, family: str) -> None:
        self._model = build(family)
        self.shapes: list[tuple[int, int]] = []
        self.breaks: Callable[[tuple[int, int]], bool] = lambda shape: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        rows, length = inputs.shape
        if self.breaks((rows, length)):
            raise RuntimeError("device lost")
        if length > 1:
            self.shapes.append((rows, length))
        return self._model(inputs, cache=cache)

    @property
    def shared(self) -> list[tuple[int, int]]:
        return [shape for shape in self.shapes if shape[0] > 1]


def lane(model: Any, *, shares_calls: bool = True, **options: Any) -> MlxBackend:
    backend = MlxBackend(model, BackendOptions(**options), shares_calls=shares_calls)
    backend.open()
    return backend


def burst(**options: Any) -> list[RowRequest]:
    return [ask(f"r{number}", length, 24, **options) for number, length in enumerate(LENGTHS)]


def each_alone(family: str, requests: list[RowRequest]) -> list[RowEvent]:
    backend = lane(TinyModel(build(family)), shares_calls=False)
    return [event for request in requests for event in run(backend, request)]


def states(events: list[RowEvent], name: str) -> list[Any]:
    return [event.checkpoint for event in of(events, name) if isinstance(event, Published)]


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_failing_call_is_about_all_its_rows_and_each_goes_on_elsewhere() -> None:
    model = _Counting("llama")
    backend = lane(TinyModel(model))
    model.breaks = lambda shape: shape[0] > 1 and shape[1] > 1
    requests = burst()
    for request in requests:
        backend.insert(request)
    with pytest.raises(RuntimeError, match="device lost"):
        drain(backend)
    assert backend.at_work == AtWork("prefill", frozenset(request.id for request in requests))
    backend.close()
    whole = each_alone("llama", requests)
    # Another lane takes them up: some had not begun, some had said something before they were moved.
    cuts = [
        replace(request, emitted=tuple(tokens_of(whole, request.id)[: 3 * (number % 2)]))
        for number, request in enumerate(requests)
    ]
    model.breaks = lambda shape: False
    events = run(lane(TinyModel(model)), *cuts)
    assert model.shared
    for cut in cuts:
        assert [*cut.emitted, *tokens_of(events, cut.id)] == tokens_of(whole, cut.id)


def test_a_row_that_cannot_be_decoded_leaves_the_others_alone() -> None:
    model = _Counting("llama")
    requests = burst()
    bad = replace(requests[1], tokens=[*requests[1].tokens[:-1], VOCAB])
    events = run(lane(TinyModel(model)), requests[0], bad, *requests[2:])
    assert isinstance(end_of(events, bad.id), Failed)
    assert model.shared == [(4, max(LENGTHS) - 1)]
    whole = each_alone("llama", requests)
    for request in (requests[0], *requests[2:]):
        assert tokens_of(events, request.id) == tokens_of(whole, request.id)


def test_a_row_cancelled_during_the_call_is_gone_and_the_others_stay() -> None:
    model = _Counting("llama")
    backend = lane(TinyModel(model))

    def cancels(shape: tuple[int, int]) -> bool:
        if shape[0] > 1 and shape[1] > 1:
            backend.cancel("r2")
        return False

    model.breaks = cancels
    requests = burst(publish=True)
    events = run(backend, *requests)
    assert model.shared == [(5, max(LENGTHS) - 1)]
    assert [type(event) for event in of(events, "r2")] == [Cancelled]
    whole = each_alone("llama", requests)
    for name in ("r0", "r1", "r3", "r4"):
        assert tokens_of(events, name) == tokens_of(whole, name)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(PLAIN)))
def test_rows_with_other_state_are_never_joined(family: str) -> None:
    model = _Counting(family)
    events = run(lane(TinyModel(model)), *burst())
    assert len(model.shapes) >= len(LENGTHS)
    assert not model.shared
    whole = each_alone(family, burst())
    assert all(tokens_of(events, each.id) == tokens_of(whole, each.id) for each in burst())


def test_a_row_behind_borrowed_state_has_a_call_of_its_own() -> None:
    model = _Counting("llama")
    backend = lane(TinyModel(model), publish_min_tokens=4)
    first, *others = burst(publish=True)
    (prompt, *_) = states(run(backend, first), first.id)
    longer = replace(first, id="longer", tokens=[*first.tokens, *range(9)])
    model.shapes.clear()
    events = run(backend, replace(longer, prefix=Prefix(prompt, len(first.tokens) - 1)), *others)
    assert sorted(model.shapes) == [(1, 9), (4, max(LENGTHS) - 1)]
    assert tokens_of(events, "longer") == tokens_of(each_alone("llama", [longer]), "longer")


# --- what they get --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", PLAIN)
def test_rows_say_what_they_say_alone(family: str) -> None:
    model = _Counting(family)
    requests = burst()
    events = run(lane(TinyModel(model)), *requests)
    assert model.shared == [(5, max(LENGTHS) - 1)]
    whole = each_alone(family, requests)
    for request in requests:
        assert tokens_of(events, request.id) == tokens_of(whole, request.id)
        (progress,) = [event for event in of(events, request.id) if isinstance(event, Prefilled)]
        assert (progress.done, progress.total) == (len(request.tokens), len(request.tokens))
        assert finished(events, request.id).prompt_tokens == len(request.tokens)


@pytest.mark.parametrize("family", PLAIN)
def test_what_they_publish_serves_the_next_turn(family: str) -> None:
    model = _Counting(family)
    backend = lane(TinyModel(model), publish_min_tokens=4)
    requests = burst(publish=True)
    events = run(backend, *requests)
    assert model.shared
    for request in requests:
        prompt, whole = states(events, request.id)
        key = whole.spec.tokens.tolist()
        assert prompt.spec.tokens.tolist() == list(request.tokens[:-1])
        assert key == [*request.tokens, *tokens_of(events, request.id)][: len(key)]
        turn = ask(f"next {request.id}", 6, 12)
        turn = replace(turn, tokens=[*key, *turn.tokens])
        warm = run(backend, replace(turn, prefix=Prefix(whole, len(key))))
        assert finished(warm, turn.id).cached_tokens == len(key)
        assert tokens_of(warm, turn.id) == tokens_of(each_alone(family, [turn]), turn.id)


def test_rows_convert_to_a_scheme_at_the_offset_where_they_would_alone() -> None:
    model = _Counting("llama-wide")
    scheme = resolve(KvChoice("kv8", start=15), build("llama-wide"))
    tiny = replace(TinyModel(model), scheme=scheme)
    alone = lane(replace(TinyModel(build("llama-wide")), scheme=scheme), shares_calls=False)
    requests = burst()[1:]
    whole = [event for request in requests for event in run(alone, request)]
    events = run(lane(tiny), *requests)
    assert model.shared == [(4, 15)], "the pass stops at the offset"
    for request in requests:
        assert tokens_of(events, request.id) == tokens_of(whole, request.id)


# --- which rows, and how many -----------------------------------------------------------------------


def turn_of(length: int) -> tuple[Row, int]:
    row = make_row("x", length + 1)
    row.caches = [KVCache(), KVCache()]
    return row, length


@pytest.mark.parametrize(
    ("lengths", "calls"),
    [
        ([40, 38, 44], [[38, 40, 44]]),
        ([40, 40 + MOST_PADDING + 1], [[40], [40 + MOST_PADDING + 1]]),
        ([8, 15], [[8], [15]]),
        ([10, 30, 11, 29], [[10, 11], [29, 30]]),
        ([LONGEST_SHARED + 1, LONGEST_SHARED + 1], [[LONGEST_SHARED + 1], [LONGEST_SHARED + 1]]),
        ([25], [[25]]),
    ],
)
def test_only_neighbours_by_length_share_a_call(lengths: list[int], calls: list[list[int]]) -> None:
    turns = [turn_of(length) for length in lengths]
    assert [[count for _, count in call] for call in calls_of(turns)] == calls


def test_no_call_beside_a_stream_breaks_its_gap() -> None:
    machine = _Machine()
    room = _Room(machine)
    room.ask("stream", 30, 10_000)
    room.until("stream", 10)
    came_s = machine.now_s
    for number in range(8):
        room.ask(f"row{number}", 14 + number % 3, 4)
    room.until("row7", 2)
    assert machine.most_rows > 1, "nothing was joined"
    assert room.worst_gap_s("stream", came_s) <= 2 * GAP_S
    assert GAP_S > STEP_S + 24 * TOKEN_S, "the bound would be none"


def test_nobody_is_later_for_sharing() -> None:
    firsts: list[list[float]] = []
    for shares in (False, True):
        room = _Room(_Machine(), shares_calls=shares)
        for number in range(8):
            room.ask(f"row{number}", 38 + number % 3, 4)
        while len(room.finished) < 8:
            room.step()
        firsts.append(sorted(room.first_s(f"row{number}") for number in range(8)))
    alone, shared = firsts
    assert shared[-1] < alone[-1]
    assert shared[4] < alone[4]
