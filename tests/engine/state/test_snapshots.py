"""Checkpoints in RAM: nothing that happens to live caches, lender's or borrower's, changes their bytes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList, ConcatenateKVCache, KVCache, make_prompt_cache
from samovar.runtime.engine.errors import StateMismatch, UnknownCache
from samovar.runtime.engine.state.snapshots import clone, snapshot
from samovar.storage.tokens import TokenIds

from tests.engine.state.states import (
    CASES,
    EACH_KIND,
    Case,
    arrays_in,
    batch_going_on,
    bits,
    digest,
    feed,
    going_on,
    on_thread,
    token_at,
)

if TYPE_CHECKING:
    from samovar.runtime.engine.checkpoint import Segments
    from samovar.storage.spec import CheckpointSpec

BATCHABLE = {name: case for name, case in CASES.items() if not name.startswith("quantised")}
TRIMMABLE = {name: case for name, case in CASES.items() if case.trims and case.length > 1}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


# --- what is refused ------------------------------------------------------------------------------


def test_a_cache_without_a_signature_is_an_error_at_once() -> None:
    live = CASES["llama"].live()
    for caches in ([*live, ConcatenateKVCache()], [*live, CacheList(KVCache(), ConcatenateKVCache())]):
        with pytest.raises(UnknownCache, match="ConcatenateKVCache"):
            snapshot(caches, CASES["llama"].tokens, "")


@pytest.mark.parametrize("name", ["llama", "gemma3-wrapped", "qwen3_next", "falcon_h1", "quantised"])
def test_state_is_never_published_under_tokens_that_it_does_not_hold(name: str) -> None:
    case = CASES[name]
    live = case.live()
    for wrong in (case.tokens[:-1], TokenIds.of([*case.tokens, 1])):
        with pytest.raises(StateMismatch, match=rf"layer \d .* holds {case.length} tokens"):
            snapshot(live, wrong, "")


def test_no_tokens_are_no_checkpoint() -> None:
    with pytest.raises(StateMismatch):
        snapshot(make_prompt_cache(CASES["llama"].model), TokenIds.of([]), "")


def test_a_batch_of_two_is_no_checkpoint(case: Case) -> None:
    caches = case.make_caches(case.model)
    case.model(mx.array([[1, 2, 3], [4, 5, 6]]), cache=caches)
    with pytest.raises(StateMismatch):
        snapshot(caches, TokenIds.of([1, 2, 3]), "")


def test_a_length_that_is_not_served_is_refused(case: Case) -> None:
    checkpoint = case.checkpoint()
    wrong = [0, -1, case.length + 1] + ([] if case.trims else [1, case.length - 1])
    for length in wrong:
        assert length == 0 or not checkpoint.spec.serves(length)
        with pytest.raises(StateMismatch, match=f"does not serve {length}"):
            clone(checkpoint, length)


def test_a_checkpoint_of_another_engine_is_refused() -> None:
    class Foreign:
        spec: CheckpointSpec = CASES["one-token"].checkpoint().spec
        held_bytes = 0

        def segments(self) -> Segments:
            return []

    with pytest.raises(StateMismatch, match="Foreign"):
        clone(Foreign(), 1)


# --- what a checkpoint says -----------------------------------------------------------------------


def test_the_spec_is_that_of_the_state(case: Case) -> None:
    checkpoint = case.checkpoint()
    assert checkpoint.spec.tokens == case.tokens
    assert checkpoint.spec.trimmable == case.trims
    assert checkpoint.spec.reusable_from == (0 if case.trims else case.length)
    for tensor, segments in zip(checkpoint.spec.tensors(), checkpoint.segments(), strict=True):
        assert sum(segment.nbytes for segment in segments) == tensor.nbytes
        assert all(segment.readonly and segment.c_contiguous for segment in segments)


def test_segments_are_the_values_in_order() -> None:
    """Strided capacity, transposed chunks and whole buffers alike."""
    for name in ("llama", "llama-whole-step", "gemma3-before-wrap", "gemma3-wrapped", "mamba2"):
        case = CASES[name]
        live = case.live()
        checkpoint = snapshot(live, case.tokens, "")
        stored = [b"".join(segments) for segments in checkpoint.segments()]
        arrays: list[bytes] = []
        for cache in live:
            if isinstance(cache, KVCache):
                arrays += [
                    bits(cache.keys[..., : cache.offset, :]),
                    bits(cache.values[..., : cache.offset, :]),
                ]
            else:
                arrays += [bits(array[:, :, : case.length]) for array in arrays_in(cache)]
        if name == "mamba2":
            arrays = [bits(array) for cache in live for array in arrays_in(cache)]
        assert stored == arrays


def test_held_bytes_are_those_of_the_buffers_capacity_included() -> None:
    case = CASES["llama"]
    live = case.live()
    capacity = sum(array.nbytes for cache in live for array in arrays_in(cache))
    assert snapshot(live, case.tokens, "").held_bytes == capacity


def test_a_row_of_a_batch_does_not_keep_the_batch_alive() -> None:
    batch = mx.zeros((64, 2, 256, 16))
    mx.eval(batch)
    cache: Any = KVCache()
    cache.keys, cache.values, cache.offset = batch[3:4], batch[5:6], 9
    before = mx.get_active_memory()
    checkpoint = snapshot([cache], TokenIds.of(range(9)), "")
    row = batch.nbytes // 64
    assert mx.get_active_memory() - before == checkpoint.held_bytes == 2 * row
    del batch, cache
    assert before - mx.get_active_memory() == 62 * row


# --- what never changes it ------------------------------------------------------------------------


def test_a_borrower_goes_on_as_the_lender_would(case: Case) -> None:
    live = case.live()
    lent = clone(snapshot(live, case.tokens, ""), case.length)
    expected = going_on(case.model, live, chunk=5)
    assert len(set(expected)) > len(expected) // 2
    assert going_on(case.model, lent, chunk=5) == expected


@pytest.mark.parametrize("name", EACH_KIND)
def test_borrowers_on_several_threads_change_nothing(name: str) -> None:
    case = CASES[name]
    checkpoint = case.checkpoint()
    before = digest(checkpoint)
    expected = going_on(case.model, clone(checkpoint, case.length))
    found: dict[int, list[bytes]] = {}

    def borrow(line: int) -> None:
        found[line] = going_on(case.model, clone(checkpoint, case.length))

    threads = [threading.Thread(target=borrow, args=(line,)) for line in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(3), expected)
    assert digest(checkpoint) == before
    assert going_on(case.model, clone(checkpoint, case.length), 5) == expected[:5]


@pytest.mark.parametrize("name", EACH_KIND)
def test_a_lender_that_goes_on_changes_nothing(name: str) -> None:
    """Prefill and decode continue on the very caches that were published."""
    case = CASES[name]
    live = case.live()
    checkpoint = snapshot(live, case.tokens, "")
    before = digest(checkpoint)
    going_on(case.model, live, 200, chunk=20)
    assert digest(checkpoint) == before


def test_segments_outlive_checkpoint_and_caches(case: Case) -> None:
    live = case.live()
    checkpoint = snapshot(live, case.tokens, "")
    before = digest(checkpoint)
    segments = checkpoint.segments()
    going_on(case.model, live, 5)
    del checkpoint, live
    mx.clear_cache()
    held = snapshot(case.live(), case.tokens, "")
    assert [b"".join(each) for each in segments] == [b"".join(each) for each in held.segments()]
    assert digest(held) == before


def test_a_clone_needs_neither_stream_nor_evaluation(case: Case) -> None:
    """Made on a thread that ends at once, used here."""
    checkpoint = case.checkpoint()
    lent: Any = on_thread(lambda: clone(checkpoint, case.length))
    assert going_on(case.model, lent, 3) == going_on(case.model, clone(checkpoint, case.length), 3)


def test_a_checkpoint_of_a_borrowers_state_is_the_checkpoint(case: Case) -> None:
    checkpoint = case.checkpoint()
    again = snapshot(clone(checkpoint, case.length), case.tokens, "")
    assert again.spec == checkpoint.spec
    assert digest(again) == digest(checkpoint)


@pytest.mark.parametrize("name", BATCHABLE)
def test_rows_merged_from_clones_leave_their_donors_alone(name: str) -> None:
    case, other = BATCHABLE[name], Case(BATCHABLE[name].family, (5,))
    checkpoints = [case.checkpoint(), other.checkpoint()]
    before = [digest(checkpoint) for checkpoint in checkpoints]

    def run() -> list[bytes]:
        return batch_going_on(case.model, [clone(each, len(each.spec.tokens)) for each in checkpoints])

    assert run() == run()
    assert [digest(checkpoint) for checkpoint in checkpoints] == before


# --- shorter prefixes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRIMMABLE)
def test_a_trimmed_clone_is_the_state_that_never_had_the_tail(name: str) -> None:
    case = TRIMMABLE[name]
    head, *rest = (*case.chunks, *[1] * case.steps)
    caches = case.make_caches(case.model)
    feed(case.model, caches, [token_at(place) for place in range(head)])
    short = snapshot(caches, case.tokens[:head], "")
    done = head
    for count in rest:
        feed(case.model, caches, [token_at(done + each) for each in range(count)])
        done += count
    whole = snapshot(caches, case.tokens, "")
    before = digest(whole)
    for chunk in (0, 3, 20):
        expected = going_on(case.model, clone(short, head), chunk=chunk)
        assert going_on(case.model, clone(whole, head), chunk=chunk) == expected
    trimmed = snapshot(clone(whole, head), case.tokens[:head], "")
    assert trimmed.spec == short.spec
    assert digest(trimmed) == digest(short)
    assert digest(whole) == before


def test_trimmed_tokens_do_not_come_back() -> None:
    """8 tokens, 4 of them lent, 1 appended: 5."""
    case = Case("llama", (8,), trims=True)
    lent: Any = clone(case.checkpoint(), 4)
    feed(case.model, lent, [9])
    keys, values = lent[0].keys_and_values()
    assert lent[0].offset == keys.shape[2] == values.shape[2] == 5


def test_the_lowest_valid_offset_is_kept_and_obeyed() -> None:
    case = CASES["quantised"]
    live = case.live()
    live[1].reusable_from = 30
    checkpoint = snapshot(live, case.tokens, "")
    assert checkpoint.spec.reusable_from == 30
    with pytest.raises(StateMismatch, match="reusable from 30"):
        clone(checkpoint, 29)
    lent = clone(checkpoint, 31)
    assert snapshot(lent, case.tokens[:31], "").spec.reusable_from == 30


# --- memory ---------------------------------------------------------------------------------------


def test_a_hit_costs_no_memory_until_it_decodes_and_then_one_copy() -> None:
    case = Case("llama", (500, 500, 500), trims=True)
    checkpoint = case.checkpoint()
    mx.synchronize()
    before = mx.get_active_memory()
    lent = [clone(checkpoint, 1400) for _ in range(20)]
    assert mx.get_active_memory() == before
    mx.reset_peak_memory()
    feed(case.model, lent[0], [1])
    slack = 1 << 20
    assert mx.get_active_memory() - before <= checkpoint.held_bytes
    assert mx.get_peak_memory() - before <= checkpoint.held_bytes + slack
    for step in range(10):
        feed(case.model, lent[0], [step])
    assert mx.get_active_memory() - before <= checkpoint.held_bytes
    lent.clear()
    assert mx.get_active_memory() == before


def test_a_snapshot_of_a_growing_cache_copies_nothing() -> None:
    case = CASES["llama"]
    live = case.live()
    before = mx.get_active_memory()
    checkpoint = snapshot(live, case.tokens, "")
    assert mx.get_active_memory() == before
    assert checkpoint.held_bytes > 0
