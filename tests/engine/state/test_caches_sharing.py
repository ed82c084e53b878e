"""Layers into a batch and out of it, by class: what is refused, and what is neither copied nor changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from samovar.runtime.engine.errors import StateMismatch, UnknownCache
from samovar.runtime.engine.state.caches import batch_of, can_share, quantisable, quantised, row_of
from samovar.runtime.engine.state.caches.rotating_quantised import RotatingQuantizedKVCache

from tests.engine.state.states import arrays_in, bits

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, WIDTH = 2, 64
FACTORIES: dict[str, Callable[[], Any]] = {
    "plain": KVCache,
    "quantised": lambda: QuantizedKVCache(group_size=32, bits=4),
    "ring": lambda: RotatingKVCache(8),
    "quantised ring": lambda: RotatingQuantizedKVCache(8, group_size=32, bits=8),
}


def rows(count: int, start: int = 0, line: int = 0, heads: int = HEADS, width: int = WIDTH) -> mx.array:
    places = mx.arange(start, start + count)[None, None, :, None] * 0.25 + line
    return (places + mx.arange(heads)[None, :, None, None] * 7 + mx.arange(width) / 8).astype(mx.float32)


def filled(cache: Any, *chunks: int, line: int = 0) -> Any:
    for count in chunks:
        new = rows(count, int(cache.offset), line)
        cache.update_and_fetch(new, -new)
    return cache


class Cunning(KVCache):
    """A subclass that may do anything."""


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cache",
    [
        Cunning(),
        ChunkedKVCache(8),
        ConcatenateKVCache(),
        BatchKVCache([0]),
        RotatingKVCache(8, keep=2),
        object(),
    ],
    ids=lambda cache: type(cache).__name__,
)
def test_what_cannot_share_a_batch_is_refused_by_name(cache: object) -> None:
    assert not can_share(cache)
    assert not can_share(CacheList(KVCache(), cache))
    for refused in ([cache], [CacheList(KVCache(), cache)]):
        with pytest.raises(UnknownCache, match=f"{type(cache).__name__} cannot share a batch"):
            batch_of(refused)


def test_a_quantised_ring_that_keeps_its_first_tokens_cannot_share() -> None:
    assert not can_share(RotatingQuantizedKVCache(8, keep=1))
    assert can_share(RotatingQuantizedKVCache(8))


@pytest.mark.parametrize(
    "caches",
    [
        [],
        [KVCache(), QuantizedKVCache()],
        [RotatingKVCache(8), RotatingKVCache(9)],
        [QuantizedKVCache(bits=4), QuantizedKVCache(bits=8)],
        [QuantizedKVCache(group_size=32), QuantizedKVCache(group_size=64)],
        [RotatingQuantizedKVCache(8, bits=4), RotatingQuantizedKVCache(8, bits=8)],
        [CacheList(KVCache()), CacheList(KVCache(), KVCache())],
        [CacheList(KVCache()), CacheList(QuantizedKVCache())],
        [ArraysCache(1), ArraysCache(2)],
    ],
)
def test_rows_that_are_not_alike_are_refused(caches: list[Any]) -> None:
    with pytest.raises(StateMismatch):
        batch_of(caches)


@pytest.mark.parametrize("cache", [KVCache(), ChunkedKVCache(8), object()])
def test_only_a_batch_gives_rows(cache: object) -> None:
    with pytest.raises(UnknownCache, match=f"{type(cache).__name__} is no batch layer"):
        row_of(cache, 0, alone=True)


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_widths_that_differ_are_an_error_when_rows_meet(make: Callable[[], Any]) -> None:
    wide: Any = make()
    wide.update_and_fetch(rows(3, width=128), rows(3, width=128))
    with pytest.raises(ValueError, match=r"shape|dimension|broadcast"):
        mx.eval(batch_of([filled(make(), 3), wide]).state)


# --- what a row alone keeps -----------------------------------------------------------------------


def buffers(cache: Any) -> set[int]:
    """Return where the bytes of a layer's tokens are."""
    mx.eval(cache.state)
    views = [np.asarray(memoryview(array).cast("B")) for array in arrays_in(cache) if array.ndim == 4]
    return {view.ctypes.data for view in views}


@pytest.mark.parametrize("chunks", [(5,), (20, 1, 1, 1)], ids=["short", "wrapped"])
@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_a_row_alone_keeps_its_buffers_in_and_out(make: Callable[[], Any], chunks: tuple[int, ...]) -> None:
    cache = filled(make(), *chunks)
    before = buffers(cache)
    batch = batch_of([cache])
    assert buffers(batch) == before
    left = row_of(batch, 0, alone=True)
    assert buffers(left) == before
    seen = [bits(array) for array in arrays_in(left)]
    filled(batch, 1)
    mx.eval(batch.state)
    assert [bits(array) for array in arrays_in(left)] == seen
    again, copied = filled(left, 1), filled(row_of(batch, 0, alone=True), 1)
    assert again.offset + 1 == copied.offset == sum(chunks) + 2


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_an_extracted_row_holds_no_more_than_its_own(make: Callable[[], Any]) -> None:
    batch = batch_of([filled(make(), 300), filled(make(), 3, line=1)])
    row = row_of(batch, 1, alone=False)
    mx.eval(row.state)
    assert row.offset == 3
    assert {array.shape[2] for array in arrays_in(row)} == {3}


# --- rows without tokens, and what conversion set -------------------------------------------------


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
@pytest.mark.parametrize("lengths", [(0,), (0, 0), (0, 4), (4, 0), (12, 0)])
def test_rows_without_tokens_join_like_any(make: Callable[[], Any], lengths: tuple[int, ...]) -> None:
    """A prompt of one token has nothing prefilled when its row joins."""
    batch = batch_of(
        [filled(make(), *[length] * bool(length), line=line) for line, length in enumerate(lengths)]
    )
    late = batch_of([make()])
    batch.extend(late)
    every = (*lengths, 0)
    for step in range(10):
        new = mx.concatenate([rows(1, length + step, line) for line, length in enumerate(every)])
        batch.make_mask(1)
        batch.update_and_fetch(new, -new)
    assert batch.offset.tolist() == [length + 10 for length in every]
    for line, length in enumerate(every):
        row, single = row_of(batch, line, alone=False), filled(make(), *[length] * bool(length), line=line)
        for _ in range(10):
            filled(single, 1, line=line)
        assert in_order(row) == in_order(single)


def in_order(cache: Any) -> list[bytes]:
    """Return the layer's tokens from old to new, whatever a ring's phase."""
    arrays = [array[..., : cache.offset, :] for array in arrays_in(cache)]
    shift = cache._idx if cache.offset > arrays[0].shape[2] else 0
    return [bits(mx.roll(array, -shift, 2)) for array in arrays]


@pytest.mark.parametrize("make", [FACTORIES["plain"], FACTORIES["quantised"]], ids=["plain", "quantised"])
def test_tokens_are_dropped_from_the_end_of_every_row(make: Callable[[], Any]) -> None:
    """As many as the shortest has; several come at once behind them, under a mask that hides padding."""
    batch = batch_of([filled(make(), 9), filled(make(), 4, line=1)])
    assert batch.is_trimmable()
    assert batch.trim(3) == 3
    new = mx.concatenate([rows(3, 6), rows(3, 1, 1)])
    mask = batch.make_mask(3)
    batch.update_and_fetch(new, -new)
    assert mask[:, 0, -1].tolist() == [[True] * 9, [False] * 5 + [True] * 4]
    assert batch.offset.tolist() == [9, 4]
    for line, single in enumerate((filled(make(), 9), filled(make(), 4, line=1))):
        assert in_order(row_of(batch, line, alone=False)) == in_order(single)
    assert batch.trim(9) == 4
    assert batch.offset.tolist() == [5, 0]


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_a_model_may_put_its_own_arrays_in_place(make: Callable[[], Any]) -> None:
    """Some hang a dependency on the keys, or blank values that nobody reads (deepseek_v32, minimax_m3_vl)."""
    batch = batch_of([filled(make(), 5), filled(make(), 3, line=1)])
    before = [bits(array) for array in arrays_in(row_of(batch, 0, alone=False))]
    batch.keys = mx.depends(batch.keys, [mx.zeros(1)])
    batch.values = tree_map(mx.zeros_like, batch.values)
    after = [bits(array) for array in arrays_in(row_of(batch, 0, alone=False))]
    half = len(before) // 2
    assert after[:half] == before[:half]
    assert after[half:] == [bytes(len(each)) for each in before[half:]]
    filled(batch_of([row_of(batch, 0, alone=False)]), 1)


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_figures_count_tokens_and_bytes(make: Callable[[], Any]) -> None:
    batch = batch_of([make(), make()])
    assert batch.empty()
    assert (batch.size(), batch.nbytes, batch.keys, batch.values) == (0, 0, None, None)
    batch.extend(batch_of([filled(make(), 7)]))
    assert not batch.empty()
    assert batch.size() == 7
    assert batch.nbytes == sum(array.nbytes for array in arrays_in(batch) if array.ndim == 4)


@pytest.mark.parametrize("make", [FACTORIES["quantised"], FACTORIES["quantised ring"]])
def test_where_a_row_was_converted_stays_with_it(make: Callable[[], Any]) -> None:
    first, second, third = filled(make(), 5), filled(make(), 9), filled(make(), 3)
    first.reusable_from, third.reusable_from = 4, 3
    batch = batch_of([first, second])
    batch.extend(batch_of([third]))
    assert [getattr(row_of(batch, line, alone=False), "reusable_from", 0) for line in range(3)] == [4, 0, 3]
    batch.filter([2])
    assert row_of(batch, 0, alone=True).reusable_from == 3


def test_recurrent_places_without_an_array_stay_without() -> None:
    first, second = ArraysCache(3), ArraysCache(3)
    first[1] = mx.ones((1, 4))
    batch = batch_of([first, second])
    assert row_of(batch, 1, alone=False)[1].tolist() == [[0.0] * 4]
    assert row_of(batch, 0, alone=False)[1].tolist() == [[1.0] * 4]
    assert [place is None for place in row_of(batch, 0, alone=False).cache] == [True, False, True]


# --- quantising -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "bits", "group", "found"),
    [
        ((80, 80), 4, 64, None),
        ((96, 96), 4, 64, 32),
        ((64, 64), 8, 128, 64),
        ((128, 128), 8, 128, 128),
        ((192, 128), 4, 64, 64),
        ((64, 64), 7, 64, None),
        ((64, 64), 4, 16, None),
        (KVCache(), 4, 64, None),
    ],
)
def test_the_widest_group_that_fits(subject: Any, bits: int, group: int, found: int | None) -> None:
    """Heads of 80 have none: MLX has no groups of 16 (B130)."""
    assert quantisable(subject, bits, group) == found


def test_a_latent_state_is_not_to_be_quantised() -> None:
    latent: Any = KVCache()
    latent.update_and_fetch(rows(5, heads=1, width=512), rows(5, heads=1, width=64))
    assert quantisable(latent, 8, 64) is None
    with pytest.raises(StateMismatch, match="groups of 64"):
        quantised(latent, 8, 64)


@pytest.mark.parametrize("cache", [QuantizedKVCache(), ArraysCache(1), ChunkedKVCache(8), Cunning()])
def test_what_has_no_twin_is_refused_by_name(cache: object) -> None:
    with pytest.raises(UnknownCache, match=f"{type(cache).__name__} has no quantised twin"):
        quantised(cache, 8, 64)


@pytest.mark.parametrize("bits_", [8, 4])
@pytest.mark.parametrize("chunks", [(), (5,), (8,), (300,), (20, 1, 1), (7, 1, 1, 1), (9, 11)])
@pytest.mark.parametrize("kind", ["plain", "ring"])
def test_a_twin_holds_what_it_would_have_held_from_the_start(
    kind: str, chunks: tuple[int, ...], bits_: int
) -> None:
    """Token by token the same packed numbers, at the same places, in the same phase; and so it goes on."""
    make = FACTORIES[kind]
    own = (
        QuantizedKVCache(group_size=32, bits=bits_)
        if kind == "plain"
        else RotatingQuantizedKVCache(8, group_size=32, bits=bits_)
    )
    twin, own = quantised(filled(make(), *chunks), bits_, 32), filled(own, *chunks)
    for step in (1, 1, 1, 3, 1):
        assert twin.offset == own.offset
        new = rows(step, own.offset)
        fetched = zip(twin.update_and_fetch(new, -new), own.update_and_fetch(new, -new), strict=True)
        assert all(bits(a) == bits(b) for mine, theirs in fetched for a, b in zip(mine, theirs, strict=True))
        assert getattr(twin, "_idx", 0) == getattr(own, "_idx", 0)
