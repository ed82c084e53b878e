"""Rows of several kinds in one lane, and rows that convert while others decode."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from samovar.runtime.engine.batching.batch import DecodeBatch
from samovar.runtime.engine.batching.groups import DecodeGroups
from samovar.runtime.engine.checkpoint import Prefix
from samovar.runtime.engine.errors import StateMismatch, UnknownCache
from samovar.runtime.engine.port import Published, Sampling
from samovar.runtime.engine.state.restore import MlxRestorer
from samovar.runtime.engine.state.scheme import KvChoice
from samovar.runtime.engine.state.scheme_start import resolve
from samovar.runtime.engine.state.snapshots import clone

from tests.engine.batching.test_backend import ask, drain, finished, of, opened, run, tokens_of
from tests.engine.batching.test_batch import make_row, prefilled
from tests.engine.state.states import digest, going_on, on_thread
from tests.kit.models import TinyModel, build

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samovar.runtime.engine.batching.rows import Row
    from samovar.runtime.engine.checkpoint import Checkpoint
    from samovar.runtime.engine.port import RowEvent, RowRequest
    from samovar.storage.spec import CheckpointSpec

WIDE = ("llama-wide", "gemma3_text-wide", "qwen3_next-wide")
STARTS = (0, 24, 64)


@functools.cache
def model(family: str, scheme: str = "kv4", start: int = 0) -> TinyModel:
    built = build(family)
    return TinyModel(built, scheme=resolve(KvChoice(scheme, 64, start), built))


def published(events: Iterable[RowEvent], name: str) -> list[Checkpoint]:
    return [event.checkpoint for event in of(events, name) if isinstance(event, Published)]


def keeping() -> list[Any]:
    """Return caches that no batch can hold: rings that keep their first four tokens."""
    return [RotatingKVCache(16, keep=4) for _ in build("llama").layers]


def of_its_own(row: Row) -> Row:
    row.caches = keeping()
    return prefilled("llama", row)


def decoded(groups: DecodeGroups, steps: int) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for _ in range(steps):
        for row, token, _ in groups.advance():
            row.output.append(token)
            tokens.setdefault(row.id, []).append(token)
    return tokens


# --- rows that cannot share -----------------------------------------------------------------------


def test_a_row_of_an_unknown_class_is_an_error_at_once() -> None:
    row = make_row("a", 5)
    row.caches = [object()]  # type: ignore[list-item]
    with pytest.raises(UnknownCache):
        DecodeGroups(build("llama")).join([row])


def test_a_batch_of_its_own_takes_one_row() -> None:
    batch = DecodeBatch(build("llama"), shared=False)
    batch.join([of_its_own(make_row("a", 9))])
    with pytest.raises(AssertionError, match="taken"):
        batch.join([of_its_own(make_row("b", 9))])


def test_rows_that_no_batch_can_hold_decode_by_themselves_beside_others() -> None:
    """Nothing they say differs from mlx-lm's loop over the same caches."""
    first, second, other = make_row("a", 30), make_row("b", 8), make_row("c", 20)
    groups = DecodeGroups(build("llama"))
    groups.join([of_its_own(first), prefilled("llama", other), of_its_own(second)])
    assert (groups.solo_rows, groups.groups, len(groups.rows)) == (2, 3, 3)
    got = decoded(groups, 6)
    first.ended = True
    groups.drop_ended()
    assert (groups.solo_rows, groups.groups) == (1, 2)
    assert groups.rows == [other, second]
    for name, tokens in decoded(groups, 12).items():
        got[name].extend(tokens)
    for row, caches in ((first, keeping()), (second, keeping()), (other, make_prompt_cache(build("llama")))):
        steps = generate_step(
            mx.array(row.prompt), build("llama"), max_tokens=len(got[row.id]), prompt_cache=caches
        )
        assert got[row.id] == [int(token) for token, _ in steps], row.id
    caches, tokens = groups.extract(second)
    assert caches[0].offset == len(tokens) == 8 - 1 + groups.launched


class Keeping:
    """A llama whose layers keep their first four tokens."""

    def make_cache(self) -> list[Any]:
        return keeping()

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        return build("llama")(tokens, cache=cache)


def test_a_lane_serves_a_model_that_no_batch_can_hold_row_by_row_and_says_so() -> None:
    asked = [ask("a", 30, 12, publish=True), ask("b", 8, 12)]
    backend = opened(TinyModel(Keeping()), publish_min_tokens=4)
    for request in asked:
        backend.insert(request)
    events: list[RowEvent] = []
    most = 0
    while backend.busy:
        events.extend(backend.step())
        most = max(most, backend.figures().solo_rows)
    assert (most, backend.figures().solo_rows) == (2, 0)
    for request in asked:
        caches = keeping()
        steps = generate_step(mx.array(request.tokens), build("llama"), max_tokens=12, prompt_cache=caches)
        assert tokens_of(events, request.id) == [int(token) for token, _ in steps], request.id
    last = published(events, "a")[-1]
    assert {layer.signature for layer in last.spec.layers} == {"kv:rotating"}
    fed = [*asked[0].tokens, *tokens_of(events, "a")]
    assert last.spec.tokens.tolist() == fed[: len(last.spec.tokens)]


# --- company changes nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("family", WIDE)
def test_rows_say_in_company_what_they_say_alone(family: str, start: int) -> None:
    """Prompts short of the start and past it, some joining while others decode and convert."""
    past = start + 12
    asked = [
        ask(name, n, m) for name, n, m in (("a", 10, past), ("b", 300, 12), ("c", 1, past), ("d", 50, 25))
    ]
    loaded = model(family, "kv4", start)
    backend = opened(loaded)
    events: list[RowEvent] = []
    for request in asked:
        backend.insert(request)
        for _ in range(9):
            events.extend(backend.step())
    events.extend(drain(backend))
    backend.close()
    for request in asked:
        lone = opened(loaded, prefill_chunk=37)
        assert tokens_of(events, request.id) == tokens_of(run(lone, request), request.id), request.id
        lone.close()


@pytest.mark.parametrize("scheme", ["kv8", "kv4"])
def test_seeds_penalties_and_logprobs_pass_through_a_conversion(scheme: str) -> None:
    sampling = Sampling(temperature=0.9, seed=5, repetition_penalty=1.2, frequency_penalty=0.3)
    drawn = ask("a", 10, 40, sampling=sampling, top_logprobs=2)
    loaded = model("llama-wide", scheme, 24)
    alone = run(opened(loaded), drawn)
    company = run(opened(loaded), ask("b", 100, 40), drawn, ask("c", 18, 40))
    assert tokens_of(company, "a") == tokens_of(alone, "a")
    assert len(tokens_of(company, "a")) == 40


def test_a_converting_row_moves_between_two_steps_and_the_groups_become_one() -> None:
    loaded = model("llama-wide", "kv4", 24)
    scheme = loaded.scheme
    groups = DecodeGroups(loaded.model, scheme)
    young, old = make_row("young", 20), make_row("old", 60)
    for row in (young, old):
        prefilled("llama-wide", row)
        scheme.plan(row)
        scheme.settle(row)
    groups.join([young, old])
    seen: list[tuple[int, int]] = []
    for _ in range(10):
        decoded(groups, 1)
        seen.append((groups.groups, groups.launched))
    assert seen == [(2 if step <= 5 else 1, step) for step in range(1, 11)]
    assert groups.read_step == 9
    assert set(groups.rows) == {young, old}
    assert [len(row.output) for row in (young, old)] == [9, 9]


# --- tokens in flight -----------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_what_a_row_leaves_behind_is_exact_around_its_conversion(max_tokens: int) -> None:
    """A state is plain below the start and quantised from there on, and encodes the tokens of its key."""
    start, length = 12, 10
    loaded = model("llama-wide", "kv4", start)
    backend = opened(loaded, publish_min_tokens=4)
    events = run(backend, ask("a", length, max_tokens, publish=True), ask("b", 40, 9))
    assert finished(events, "a").completion_tokens == max_tokens
    fed = [*ask("a", length).tokens, *tokens_of(events, "a")]
    first, last = published(events, "a")
    for checkpoint in (first, last):
        spec = checkpoint.spec
        count = len(spec.tokens)
        assert spec.tokens.tolist() == fed[:count]
        wanted = {"kv:quant:4:32"} if count >= start else {"kv:plain"}
        assert {layer.signature for layer in spec.layers} == wanted
        assert spec.reusable_from == (start if count >= start else 0)
    assert len(first.spec.tokens) == length - 1
    assert len(last.spec.tokens) in (length + max_tokens - 1, length + max_tokens)


@pytest.mark.parametrize("start", [0, 24])
@pytest.mark.parametrize("family", WIDE)
def test_a_resumed_row_goes_on_as_if_nothing_had_happened(family: str, start: int) -> None:
    """Replayed from nothing, its state is quantised from the offset at which it was in the lost lane."""
    loaded = model(family, "kv4", start)
    request = ask("a", 20, 24)
    whole = tokens_of(run(opened(loaded), request), "a")
    for count in (1, 12):
        resumed = replace(request, emitted=tuple(whole[:count]))
        assert tokens_of(run(opened(loaded, prefill_chunk=16), resumed), "a") == whole[count:], count


# --- borrowing ------------------------------------------------------------------------------------


def restored(loaded: TinyModel, checkpoint: Checkpoint) -> Checkpoint:
    """Bring a state through a reader's buffers, as from a file."""

    def fill() -> Checkpoint:
        restorer = MlxRestorer(loaded)
        restorer.open()
        target = restorer.allocate(checkpoint.spec)
        for theirs, ours in zip(checkpoint.segments(), target.segments(), strict=True):
            data, done = b"".join(theirs), 0
            for segment in ours:
                segment[:] = data[done : done + len(segment)]
                done += len(segment)
            assert done == len(data)
        restorer.close()
        return target.finish()

    return on_thread(fill)


def left_by(loaded: TinyModel, request: RowRequest) -> Checkpoint:
    backend = opened(loaded, publish_min_tokens=4)
    checkpoint = published(run(backend, request), request.id)[-1]
    backend.close()
    return checkpoint


@pytest.mark.parametrize(("start", "length"), [(0, 10), (24, 10), (24, 60)])
@pytest.mark.parametrize("family", WIDE)
def test_what_comes_back_goes_on_bit_for_bit(family: str, start: int, length: int) -> None:
    loaded = model(family, "kv4", start)
    kept = left_by(loaded, ask("a", length, 9, publish=True))
    back = restored(loaded, kept)
    assert back.spec == kept.spec
    assert digest(back) == digest(kept)
    count = len(kept.spec.tokens)
    whole = going_on(loaded.model, clone(kept, count), steps=8)
    assert going_on(loaded.model, clone(back, count), steps=8) == whole
    # Under company, the row that borrows says what it says alone.
    longer = [*kept.spec.tokens.tolist(), *range(60, 75)]
    borrower = replace(ask("b", 1, 20), tokens=longer, prefix=Prefix(back, count))
    alone = tokens_of(run(opened(loaded), borrower), "b")
    assert tokens_of(run(opened(loaded), ask("c", 90, 20), borrower), "b") == alone
    assert digest(kept) == digest(back)


def test_a_prefix_from_before_the_conversion_is_not_lent() -> None:
    kept = left_by(model("llama-wide", "kv4", 24), ask("a", 60, 9, publish=True))
    assert kept.spec.serves(24)
    assert not kept.spec.serves(23)
    with pytest.raises(StateMismatch, match="reusable from 24"):
        clone(kept, 23)


def test_a_borrowed_plain_prefix_converts_where_its_row_would_have() -> None:
    loaded = model("llama-wide", "kv4", 24)
    request = ask("a", 100, 20)
    short = replace(ask("s", 1, 1, publish=True), tokens=request.tokens[:11])
    backend = opened(loaded, publish_min_tokens=4)
    first = published(run(backend, short), "s")[0]
    assert {layer.signature for layer in first.spec.layers} == {"kv:plain"}
    backend.close()
    borrowed = replace(request, prefix=Prefix(first, 10))
    assert tokens_of(run(opened(loaded), borrowed), "a") == tokens_of(run(opened(loaded), request), "a")


def foreign(spec: CheckpointSpec) -> CheckpointSpec:
    return replace(spec, layers=tuple(replace(layer, reusable_from=0) for layer in spec.layers))


def test_a_restorer_takes_the_states_of_its_scheme_and_no_others() -> None:
    quantised, plain = model("llama-wide", "kv4", 24), TinyModel(build("llama-wide"))
    long, short = (left_by(quantised, ask("a", n, 5, publish=True)).spec for n in (60, 10))
    wide = left_by(plain, ask("a", 60, 5, publish=True)).spec
    restorer = MlxRestorer(quantised)
    restorer.open()
    for spec in (long, short):
        assert restorer.allocate(spec).finish().spec == spec
    with pytest.raises(StateMismatch, match="layer 0 is 'kv:plain', the model's is 'kv:quant:4:32'"):
        restorer.allocate(wide)
    with pytest.raises(StateMismatch, match="reusable from 0, expected 24 or more"):
        restorer.allocate(foreign(long))
    restorer.close()
    other = MlxRestorer(plain)
    other.open()
    with pytest.raises(StateMismatch, match="layer 0 is 'kv:quant:4:32', the model's is 'kv:plain'"):
        other.allocate(long)
    other.close()
