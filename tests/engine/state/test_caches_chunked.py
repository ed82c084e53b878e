"""Attention in chunks (llama4): right at every step, kept and lent as it is, alone in its batch (B133)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ChunkedKVCache, make_prompt_cache
from samovar.runtime.engine.errors import StateMismatch, UnknownCache
from samovar.runtime.engine.state.caches import batch_of, can_share
from samovar.runtime.engine.state.snapshots import clone, snapshot
from samovar.storage.tokens import TokenIds

from tests.engine.state.states import Case, bits, feed, going_on, load, save, token_at
from tests.kit.models import CHUNK, build

LENGTH = 100


def run(chunks: tuple[int, ...]) -> Any:
    """Return the caches after chunks of the usual tokens, and all their logits."""
    model, done, logits = build("llama4"), 0, []
    caches = make_prompt_cache(model)
    for count in chunks:
        logits.append(feed(model, caches, [token_at(done + each) for each in range(count)]))
        done += count
    return caches, mx.concatenate(logits, axis=1)


def test_rows_that_attend_in_chunks_cannot_share_a_batch() -> None:
    caches = make_prompt_cache(build("llama4"))
    assert [can_share(cache) for cache in caches] == [False, False, False, True]
    with pytest.raises(UnknownCache, match="ChunkedKVCache cannot share"):
        batch_of([caches[0], caches[1]])


@pytest.mark.parametrize("prompt", [(5,), (20, 30), (70,)])
def test_every_step_is_that_of_a_full_recompute(prompt: tuple[int, ...]) -> None:
    model = build("llama4")
    tokens = mx.array([[token_at(place) for place in range(LENGTH)]])
    whole = model(tokens)
    _, logits = run((*prompt, *[1] * (LENGTH - sum(prompt))))
    assert float(mx.abs(logits - whole).max()) < 1e-4


def test_the_recompute_would_tell_a_layer_that_lost_a_token() -> None:
    model = build("llama4")
    whole = model(mx.array([[token_at(place) for place in range(61)]]))
    caches, _ = run((60,))
    for cache in caches[:3]:
        cache.keys = cache.keys.at[..., 40, :].multiply(0)
    logits = feed(model, caches, [token_at(60)])
    assert float(mx.abs(logits[:, -1] - whole[:, -1]).max()) > 1e-2


KEPT = {
    "before it slides": Case("llama4", (13,), 9),
    "full": Case("llama4", (CHUNK,)),
    "one more": Case("llama4", (CHUNK,), 1),
    "long prompt": Case("llama4", (70,)),
    "slid": Case("llama4", (20, 30), 11),
}


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
def test_kept_lent_and_restored_it_goes_on_bit_for_bit(case: Case, tmp_path: Any) -> None:
    checkpoint = case.checkpoint()
    chunked = checkpoint.spec.layers[0]
    assert chunked.signature == "kv:chunked"
    assert {each.shape[2] for each in chunked.tensors} == {min(case.length, CHUNK)}
    assert checkpoint.spec.trimmable == (case.length <= CHUNK)
    save(checkpoint, tmp_path / "a.kv")
    restored = load(case, tmp_path / "a.kv")
    assert restored.spec == checkpoint.spec
    for chunk in (0, 11):
        expected = going_on(case.model, case.live(), 6, chunk)
        assert going_on(case.model, clone(checkpoint, case.length), 6, chunk) == expected
        assert going_on(case.model, clone(restored, case.length), 6, chunk) == expected


def test_it_is_cut_before_it_slides_and_never_after() -> None:
    whole, _ = run((21, 9))
    lent = clone(snapshot(whole, tokens(30), ""), 21)
    short, _ = run((21,))
    model = build("llama4")
    assert going_on(model, lent, 30) == going_on(model, short, 30)
    slid, _ = run((30, 3))
    with pytest.raises(StateMismatch):
        clone(snapshot(slid, tokens(33), ""), 32)


def test_a_layer_that_dropped_too_much_is_refused() -> None:
    cache: Any = ChunkedKVCache(8)
    cache.update_and_fetch(mx.ones((1, 2, 12, 4)), mx.ones((1, 2, 12, 4)))
    cache.start_position = 5
    with pytest.raises(StateMismatch, match="7 rows after 12 tokens, 8 should be there"):
        snapshot([cache], tokens(12), "")
    cache.start_position = 4
    assert bits(snapshot([cache], tokens(12), "").lend(12)[0].keys[:, :, :8]) == bits(mx.ones((1, 2, 8, 4)))


def tokens(count: int) -> TokenIds:
    return TokenIds.of(token_at(place) for place in range(count))
