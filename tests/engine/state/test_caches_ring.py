"""Rings in company: at every step each row sees the tokens it would see alone, and full rings never turn."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import RotatingKVCache
from samovar.runtime.engine.state.caches import batch_of, row_of
from samovar.runtime.engine.state.caches.rotating_quantised import RotatingQuantizedKVCache

from tests.engine.state.states import arrays_in, bits

GROUP = 32


def ring(window: int, quantised: bool) -> Any:
    if quantised:
        return RotatingQuantizedKVCache(window, group_size=GROUP, bits=8)
    return RotatingKVCache(window)


def token(row: int, place: int, count: int) -> mx.array:
    """Return keys that tell row and place by a number of their own, the same across the width."""
    places = mx.arange(place, place + count) + 1000 * (row + 1)
    return mx.broadcast_to(places[None, None, :, None], (1, 2, count, GROUP)).astype(mx.float32)


def filled(cache: Any, row: int, chunks: list[int]) -> Any:
    for count in chunks:
        new = token(row, cache.offset, count)
        cache.update_and_fetch(new, -new)
    return cache


def numbers(cache: Any, new: mx.array) -> list[list[int]]:
    """Add tokens and return the numbers of those that attention gets, row by row, as they lie."""
    keys = cache.update_and_fetch(new, -new)[0]
    if isinstance(keys, tuple):
        keys = mx.dequantize(*keys, group_size=GROUP, bits=8)
    return [[round(each) for each in row] for row in keys[:, 0, :, 0].tolist()]


def visible(tokens: list[int], mask: Any, line: int) -> list[int]:
    """Return those that the mask lets the last new token see."""
    if not isinstance(mask, mx.array):
        return sorted(tokens)
    shown = mask.reshape(-1, *mask.shape[-2:]) if mask.ndim > 1 else mask[None, None]
    lets = shown[min(line, shown.shape[0] - 1), -1].tolist()
    return sorted(each for each, let in zip(tokens, lets, strict=True) if let)


class Rings:
    """A batch, and each of its rows once more by itself."""

    def __init__(self, window: int, quantised: bool) -> None:
        self.window, self.quantised = window, quantised
        self.alone: list[tuple[int, Any]] = []
        self.batch: Any = None
        self.made = 0

    def join(self, chunks: list[list[int]]) -> None:
        names = range(self.made, self.made + len(chunks))
        self.made += len(chunks)
        rows = [filled(ring(self.window, self.quantised), *pair) for pair in zip(names, chunks, strict=True)]
        self._take(batch_of(rows))
        again = [filled(ring(self.window, self.quantised), *pair) for pair in zip(names, chunks, strict=True)]
        self.alone += zip(names, again, strict=True)

    def leave(self, line: int, *, back: bool) -> None:
        line %= len(self.alone)
        row = row_of(self.batch, line, alone=len(self.alone) == 1)
        keep = [each for each in range(len(self.alone)) if each != line]
        gone = self.alone.pop(line)
        assert row.offset == gone[1].offset
        if keep:
            self.batch.filter(keep)
        else:
            self.batch = None
        if back:
            self._take(batch_of([row]))
            self.alone.append(gone)

    def step(self, count: int, window: int | None) -> None:
        if self.batch is None:
            return
        new = [token(name, cache.offset, count) for name, cache in self.alone]
        mask = self.batch.make_mask(count, window_size=window)
        lying = numbers(self.batch, mx.concatenate(new))
        for line, (_, cache) in enumerate(self.alone):
            own = cache.make_mask(count, window_size=window)
            wanted = visible(numbers(cache, new[line])[0], own, 0)
            assert visible(lying[line], mask, line) == wanted
        assert self.batch.offset.tolist() == [cache.offset for _, cache in self.alone]

    def _take(self, batch: Any) -> None:
        if self.batch is None:
            self.batch = batch
            return
        full = self.batch.size() == self.batch.max_size == self.batch._used
        before = [bits(plane) for plane in arrays_in(self.batch) if plane.ndim == 4]
        rows = len(self.batch.offset)
        self.batch.extend(batch)
        if full:
            assert [bits(plane[:rows]) for plane in arrays_in(self.batch) if plane.ndim == 4] == before


PROMPT = st.lists(st.sampled_from([1, 2, 5, 20, 30]), max_size=3)
JOIN = st.tuples(st.just("join"), st.lists(PROMPT, min_size=1, max_size=2))
LEAVE = st.tuples(st.just("leave"), st.tuples(st.integers(0, 9), st.booleans()))
STEPS = st.tuples(st.just("steps"), st.lists(st.sampled_from([1, 1, 1, 1, 3]), min_size=1, max_size=9))


@settings(max_examples=25, deadline=None)
@given(
    window=st.sampled_from([3, 8, 16, 40]),
    quantised=st.booleans(),
    narrower=st.sampled_from([None, 0, 2]),
    acts=st.lists(st.one_of(JOIN, STEPS, STEPS, LEAVE), min_size=3, max_size=12),
)
def test_each_row_sees_what_it_would_see_alone(
    window: int, quantised: bool, narrower: int | None, acts: list[tuple[str, Any]]
) -> None:
    """Any joins, leaves (and returns) and steps; a model may ask for a window narrower than the ring."""
    rings = Rings(window, quantised)
    rings.join([[5], [20, 1]])
    asked = None if narrower is None else window - narrower
    for act, what in acts:
        match act:
            case "join":
                rings.join(what)
            case "leave" if rings.alone:
                rings.leave(what[0], back=what[1])
            case "steps":
                for count in what:
                    rings.step(count, asked)
            case _:
                pass


@settings(max_examples=40, deadline=None)
@given(
    geometry=st.tuples(st.integers(2, 12), st.integers(0, 2)).filter(lambda pair: pair[1] < pair[0] - 1),
    chunks=st.lists(st.one_of(st.just(1), st.integers(1, 15)), min_size=1, max_size=12),
)
def test_a_quantised_ring_lies_as_a_plain_one(geometry: tuple[int, int], chunks: list[int]) -> None:
    """The same tokens at the same places under the same masks, those that never leave included."""
    window, keep = geometry
    plain, packed = RotatingKVCache(window, keep), RotatingQuantizedKVCache(window, keep, GROUP, 8)
    for count in chunks:
        masks = [str(each.make_mask(count)) for each in (plain, packed)]
        assert masks[0] == masks[1]
        new = token(0, plain.offset, count)
        assert numbers(plain, new) == numbers(packed, new)
        assert (plain.offset, plain._idx) == (packed.offset, packed._idx)


@pytest.mark.parametrize("quantised", [False, True])
def test_a_full_ring_leaves_as_it_lies(quantised: bool) -> None:
    """Its phase is the batch's, not temporal order: it comes back to the same places."""
    batch = batch_of([filled(ring(8, quantised), 0, [20]), filled(ring(8, quantised), 1, [3])])
    for place in range(3):
        new = mx.concatenate([token(0, 20 + place, 1), token(1, 3 + place, 1)])
        batch.update_and_fetch(new, -new)
    full, short = (row_of(batch, line, alone=False) for line in range(2))
    assert (full._idx, full.offset) == (3, 23)
    assert (short._idx, short.offset) == (6, 6)
    again = batch_of([full, short])
    assert [bits(plane) for plane in arrays_in(again)] == [bits(plane) for plane in arrays_in(batch)]


@pytest.mark.parametrize("quantised", [False, True])
def test_a_ring_drops_its_last_tokens_before_it_wraps_and_none_after(quantised: bool) -> None:
    lone = filled(ring(8, quantised), 0, [3, 1, 1])
    batch = batch_of([filled(ring(8, quantised), 0, [5]), filled(ring(8, quantised), 1, [2])])
    assert batch.is_trimmable()
    assert (lone.trim(2), batch.trim(9)) == (2, 2)
    assert batch.offset.tolist() == [3, 0]
    assert numbers(lone, token(0, 3, 1)) == [[1000, 1001, 1002, 1003]]
    assert numbers(batch, mx.concatenate([token(0, 3, 1), token(1, 0, 1)]))[0] == [1000, 1001, 1002, 1003]
    for _ in range(6):
        new = mx.concatenate([token(0, 4, 1), token(1, 1, 1)])
        batch.update_and_fetch(new, -new)
    assert not batch.is_trimmable()
    assert batch.trim(1) == 0
    if quantised:
        assert filled(lone, 0, [9]).trim(1) == 0
