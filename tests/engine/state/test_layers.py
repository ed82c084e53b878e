"""Codecs one by one: signatures, what they refuse, and rings in every phase."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import cache as mlx_caches
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from mlx_lm.models.deepseek_v41 import LayerCache
from samovar.runtime.engine.errors import StateMismatch, UnknownCache
from samovar.runtime.engine.state.caches import batch_of, row_of
from samovar.runtime.engine.state.caches.rotating_quantised import RotatingQuantizedKVCache
from samovar.runtime.engine.state.layers import codec_of, leaves, nest, signature_of, structure_of
from samovar.runtime.engine.state.layers.tensors import (
    LayerState,
    alias,
    blank_arrays,
    byte_view,
    dtype_name,
    held_in,
    with_capacity,
)
from samovar.runtime.engine.state.snapshots import clone, snapshot
from samovar.storage.spec import DTYPE_BYTES, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from tests.engine.state.states import bits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEADS, WIDTH = 2, 32


# --- signatures -----------------------------------------------------------------------------------


class Cunning(KVCache):
    """A subclass that may do anything."""


@pytest.mark.parametrize(
    "cache",
    [
        ConcatenateKVCache(),
        BatchKVCache([0]),
        BatchRotatingKVCache(8, [0]),
        LayerCache(8),
        Cunning(),
        CacheList(KVCache()),
        object(),
        None,
    ],
    ids=lambda cache: type(cache).__name__,
)
def test_an_unknown_class_is_an_error_that_names_it(cache: object) -> None:
    for ask in (signature_of, codec_of):
        with pytest.raises(UnknownCache, match=rf"{type(cache).__name__} declares no signature"):
            ask(cache)


def test_every_cache_class_of_mlx_lm_is_signed_or_refused_on_purpose() -> None:
    """A class that a new mlx-lm brings shows up here."""
    classes = {
        name
        for name, each in vars(mlx_caches).items()
        if isinstance(each, type) and issubclass(each, mlx_caches._BaseCache)
    }
    signed = {"KVCache", "QuantizedKVCache", "RotatingKVCache", "ArraysCache", "ChunkedKVCache"}
    refused = {"ConcatenateKVCache", "BatchKVCache", "BatchRotatingKVCache"}
    assert classes == signed | refused | {"_BaseCache", "CacheList"}


@pytest.mark.parametrize(
    ("cache", "signature"),
    [
        (KVCache(), "kv:plain"),
        (QuantizedKVCache(group_size=32, bits=4), "kv:quant:4:32"),
        (QuantizedKVCache(), "kv:quant:8:64"),
        (RotatingKVCache(max_size=8, keep=2), "kv:rotating"),
        (RotatingQuantizedKVCache(8, group_size=32, bits=4), "kv:rotating-quant:4:32"),
        (ChunkedKVCache(8), "kv:chunked"),
        (ArraysCache(2), "state:arrays"),
    ],
)
def test_signatures(cache: object, signature: str) -> None:
    assert signature_of(cache) == signature


def test_nested_lists_are_flattened_in_order_and_nested_again() -> None:
    layers = [KVCache(), ArraysCache(1), KVCache(), RotatingKVCache(4), KVCache()]
    nested = [layers[0], CacheList(layers[1], CacheList(layers[2], layers[3])), layers[4]]
    assert list(leaves(nested)) == layers
    assert structure_of(nested) == (None, (None, (None, None)), None)
    again = nest(structure_of(nested), iter(layers))
    assert list(leaves(again)) == layers
    assert structure_of(again) == structure_of(nested)


# --- what a codec refuses -------------------------------------------------------------------------


def rows(count: int, start: int = 0, width: int = WIDTH) -> mx.array:
    """Return keys or values whose numbers tell token, head and place."""
    values = mx.arange(start, start + count)[None, None, :, None] * 100
    heads = mx.arange(HEADS)[None, :, None, None] * 10
    return (values + heads + mx.arange(width)).astype(mx.float32)


def filled(cache: Any, *chunks: int) -> Any:
    start = cache.offset
    for count in chunks:
        cache.update_and_fetch(rows(count, start), -rows(count, start))
        start += count
    mx.eval(cache.state)
    return cache


def tokens(count: int) -> TokenIds:
    return TokenIds.of(range(count))


@pytest.mark.parametrize("cache", [KVCache(), QuantizedKVCache(), RotatingKVCache(8), ArraysCache(2)])
def test_an_empty_layer_is_no_state(cache: Any) -> None:
    if not isinstance(cache, ArraysCache):
        cache.offset = 3
    with pytest.raises(StateMismatch):
        snapshot([cache], tokens(3), "")


def test_fields_that_disagree_are_refused() -> None:
    cache = filled(KVCache(), 5)
    cache.keys = cache.keys[..., :4, :]
    with pytest.raises(StateMismatch, match="keys: 4 rows, 5 should be there"):
        snapshot([cache], tokens(5), "")
    cache.keys = rows(5)[0]
    with pytest.raises(StateMismatch, match="keys"):
        snapshot([cache], tokens(5), "")


@pytest.mark.parametrize(
    ("chunks", "wrong"),
    [
        ((5,), {"_idx": 4}),
        ((5,), {"_idx": 6}),
        ((8, 1), {"_idx": 0}),
        ((20,), {"_idx": 8}),
        ((4, 3), {"max_size": 4}),
    ],
)
def test_a_ring_that_is_not_right_is_refused(chunks: Sequence[int], wrong: dict[str, int]) -> None:
    ring = filled(RotatingKVCache(max_size=8), *chunks)
    snapshot([ring], tokens(sum(chunks)), "")
    if "max_size" in wrong:
        ring.keys = ring.keys[..., :3, :]
    for name, value in wrong.items():
        setattr(ring, name, value)
    with pytest.raises(StateMismatch, match=r"a ring of \d"):
        snapshot([ring], tokens(sum(chunks)), "")


@pytest.mark.parametrize("field", ["left_padding", "lengths"])
def test_the_state_of_a_padded_batch_is_refused(field: str) -> None:
    cache: Any = ArraysCache(1)
    cache[0] = mx.zeros((1, 3))
    setattr(cache, field, mx.array([0]))
    with pytest.raises(StateMismatch, match="padded"):
        snapshot([cache], tokens(3), "")


# --- recurrent state ------------------------------------------------------------------------------


def test_places_without_an_array_stay_without() -> None:
    cache: Any = ArraysCache(4)
    cache[1], cache[3] = mx.ones((1, 3)), mx.zeros((1, 2, 2), mx.int32)
    checkpoint = snapshot([cache], tokens(3), "")
    (layer,) = checkpoint.spec.layers
    assert layer.geometry == {"size": 4, "present": 0b1010}
    assert [(each.name, each.dtype) for each in layer.tensors] == [("1", "float32"), ("3", "int32")]
    (lent,) = clone(checkpoint, 3)
    assert [each is None for each in lent.cache] == [True, False, True, False]
    lent[1][:, 0] = 5
    assert checkpoint.segments()[0][0] == mx.ones((1, 3)).__array__().tobytes()


def test_an_array_without_elements_is_kept() -> None:
    """Some models keep values of no width beside their keys."""
    cache: Any = KVCache()
    cache.update_and_fetch(rows(5), mx.zeros((1, HEADS, 5, 0)))
    checkpoint = snapshot([cache], tokens(5), "")
    assert [each.nbytes for each in checkpoint.spec.tensors()] == [5 * HEADS * WIDTH * 4, 0]
    assert list(checkpoint.segments()[1]) == []
    lent: Any = clone(checkpoint, 4)[0]
    keys, values = lent.update_and_fetch(rows(1, 4), mx.zeros((1, HEADS, 1, 0)))
    assert (keys.shape[2], values.shape) == (5, (1, HEADS, 5, 0))


# --- plain ----------------------------------------------------------------------------------------


def test_trimmed_rows_never_come_back() -> None:
    """8 tokens, 4 lent, 1 appended: 5 rows, and attention sees only those."""
    lent: Any = clone(snapshot([filled(KVCache(), 8)], tokens(8), ""), 4)[0]
    keys, values = lent.update_and_fetch(rows(1, 77), -rows(1, 77))
    wanted = mx.concatenate([rows(4), rows(1, 77)], axis=2)
    assert mx.array_equal(keys, wanted)
    assert mx.array_equal(values, -wanted)


# --- rings ----------------------------------------------------------------------------------------


def restored(state: LayerState, codec: Any) -> Any:
    """Return the live cache that a restore makes of the state's stored bytes."""
    spec = state.spec
    sample = replace(spec, offset=1, geometry={**spec.geometry, "idx": 1})
    assert codec.expect(sample, spec) == spec
    room = codec.capacity(spec)
    arrays = blank_arrays([with_capacity(each, room) for each in spec.tensors])
    tensors = tuple(held_in(array, each, room) for array, each in zip(arrays, spec.tensors, strict=True))
    for source, target in zip(state.tensors, tensors, strict=True):
        content = b"".join(source.segments())
        for segment in target.segments():
            segment[:] = content[: segment.nbytes]
            content = content[segment.nbytes :]
        assert not content
    return codec.lend(replace(state, tensors=tensors), state.offset)


def outputs(ring: Any, chunks: Sequence[int], window: int) -> list[bytes]:
    """Return all that attention gets to see of a ring while it goes on: rows in their order, and masks."""
    seen: list[bytes] = []
    for count in chunks:
        start = ring.offset
        for size in (None, window):
            mask = ring.make_mask(count, window_size=size)
            seen.append(bits(mask) if isinstance(mask, mx.array) else repr(mask).encode())
        keys, values = ring.update_and_fetch(rows(count, start), -rows(count, start))
        fetched = [keys, values] if isinstance(keys, mx.array) else [*keys, *values]
        mx.eval(*fetched)
        seen.extend(bits(array) for array in fetched)
    return seen


def empty_ring(geometry: tuple[int, int], quantised: bool) -> Any:
    max_size, keep = geometry
    if quantised:
        return RotatingQuantizedKVCache(max_size, keep, group_size=32, bits=4)
    return RotatingKVCache(max_size, keep=keep)


RINGS = st.tuples(st.integers(2, 9), st.integers(0, 2)).filter(lambda pair: pair[1] < pair[0] - 1)
WIDE_RINGS = st.tuples(st.integers(30, 90), st.integers(0, 4))
CHUNKS = st.lists(st.one_of(st.just(1), st.integers(1, 12)), min_size=1, max_size=6)


@settings(max_examples=120, deadline=None)
@given(geometry=RINGS, quantised=st.booleans(), before=CHUNKS, after=CHUNKS)
def test_a_ring_goes_on_alike_live_lent_and_restored(
    geometry: tuple[int, int], quantised: bool, before: list[int], after: list[int]
) -> None:
    max_size, _ = geometry
    ring = filled(empty_ring(geometry, quantised), *before)
    codec = codec_of(ring)
    length = ring.offset
    checkpoint = snapshot([ring], tokens(length), "")
    state = codec.hold(ring, length)
    mx.eval([each.array for each in state.tensors])
    assert all(each.shape[2] == min(length, max_size) for each in state.spec.tensors)
    window = max(1, max_size - 1)
    lent, back = clone(checkpoint, length)[0], restored(state, codec)
    expected = outputs(ring, after, window)
    assert outputs(lent, after, window) == expected
    assert outputs(back, after, window) == expected
    assert snapshot([lent], tokens(ring.offset), "").spec == snapshot([back], tokens(ring.offset), "").spec


@settings(max_examples=80, deadline=None)
@given(geometry=WIDE_RINGS, quantised=st.booleans(), before=CHUNKS, tail=CHUNKS, after=CHUNKS)
def test_a_trimmed_ring_goes_on_as_one_that_never_had_the_tail(
    geometry: tuple[int, int], quantised: bool, before: list[int], tail: list[int], after: list[int]
) -> None:
    max_size, _ = geometry
    short = filled(empty_ring(geometry, quantised), *before)
    length = short.offset
    whole = snapshot(
        [filled(empty_ring(geometry, quantised), *before, *tail)], tokens(length + sum(tail)), ""
    )
    assert whole.spec.trimmable == (length + sum(tail) < max_size)
    if not whole.spec.trimmable:
        with pytest.raises(StateMismatch):
            clone(whole, length)
        return
    assert outputs(clone(whole, length)[0], after, max_size) == outputs(short, after, max_size)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=2, max_size=3), steps=st.integers(0, 12))
def test_a_ring_that_leaves_a_batch_is_a_checkpoint(lengths: list[int], steps: int) -> None:
    """Rows of any lengths merge, decode together and leave: each holds the last tokens of its own."""
    max_size = 8
    batch = batch_of([filled(RotatingKVCache(max_size), length) for length in lengths])
    for step in range(steps):
        new = mx.concatenate([rows(1, length + step) for length in lengths])
        mx.eval(*batch.update_and_fetch(new, -new))
    for line, length in enumerate(lengths):
        total = length + steps
        ring = row_of(batch, line, alone=len(lengths) == 1)
        checkpoint = snapshot([ring], tokens(total), "")
        (layer,) = checkpoint.spec.layers
        first = max(0, total - max_size)
        assert layer.trimmable == (total < max_size)
        assert b"".join(checkpoint.segments()[0]) == bits(
            mx.roll(rows(total - first, first), turned(layer), 2)
        )


def turned(layer: LayerSpec) -> int:
    """Return how far a ring lies from temporal order."""
    return layer.geometry["idx"] if layer.offset >= layer.geometry["max_size"] else 0


def test_a_ring_of_one_row() -> None:
    ring = filled(RotatingKVCache(1), 1)
    checkpoint = snapshot([ring], tokens(1), "")
    assert not checkpoint.spec.trimmable
    assert outputs(clone(checkpoint, 1)[0], [1, 1], 1) == outputs(ring, [1, 1], 1)


def test_every_phase_of_a_ring_is_told_apart() -> None:
    """Rows lie as they were written: only the phase says which comes next."""
    ring = filled(RotatingKVCache(4), 4)
    phases: list[int] = []
    for _ in range(8):
        filled(ring, 1)
        phases.append(snapshot([ring], tokens(ring.offset), "").spec.layers[0].geometry["idx"])
    assert phases == [1, 2, 3, 4, 1, 2, 3, 4]


def test_codecs_expect_one_row_a_token() -> None:
    caches: list[tuple[Any, Callable[[int], int]]] = [
        (filled(KVCache(), 300), lambda length: length),
        (filled(RotatingKVCache(16), 300), lambda length: min(length, 16)),
    ]
    for cache, rows_at in caches:
        codec = codec_of(cache)
        sample = codec.hold(cache, 300).spec
        for length in (1, 15, 16, 17, 255, 256, 257):
            geometry = {**sample.geometry, "idx": rows_at(length)} if sample.geometry else {}
            stored = replace(sample, offset=length, geometry=geometry)
            expected = codec.expect(sample, stored)
            assert {each.shape for each in expected.tensors} == {(1, HEADS, rows_at(length), WIDTH)}
            capacity = codec.capacity(expected)
            assert capacity is not None
            assert capacity > rows_at(length) or capacity == 16


# --- arrays to be filled --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_blank_arrays_hold_what_is_written(dtype: str) -> None:
    shapes = [(1, 2, 3, 4), (7,), (1, 0, 3), (1, 2, 1 << 18, 2)]
    arrays = blank_arrays([TensorSpec("x", dtype, shape) for shape in shapes])
    for line, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        assert array.shape == shape
        assert dtype_name(array.dtype) == dtype
        if array.size:
            byte_view(array)[:] = bytes([line % 2]) * array.nbytes
    for line, array in enumerate(arrays):
        if array.size:
            mx.eval(copied := mx.concatenate([array.reshape(-1), array.reshape(-1)]))
            assert bytes(byte_view(copied)) == bytes([line % 2]) * copied.nbytes


def test_blank_arrays_update_in_place_like_any_other() -> None:
    (array,) = blank_arrays([TensorSpec("x", "float32", (1, 2, 256, 4))])
    byte_view(array)[:] = bytes(array.nbytes)
    other = alias(array)
    array[..., 3:4, :] = 1
    mx.eval(array)
    assert float(other.sum()) == 0
    assert float(array.sum()) == 8
