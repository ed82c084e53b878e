"""The attention and activation of cpu/attention.py beside MLX's own, which they replace on a CPU."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import activations
from mlx_lm.models.base import create_causal_mask
from samovar.runtime.engine.cpu import attention as cpu_attention
from samovar.runtime.engine.cpu.attention import MIN_QUERIES, attention, swiglu
from samovar.runtime.engine.cpu.blocks import Operands, attend
from samovar.runtime.engine.device import computes_on_cpu

from tests.kit.models import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from samovar.runtime.engine.cpu.blocks import F32

pytestmark = pytest.mark.skipif(not computes_on_cpu(), reason="replaces what MLX does on a CPU")

# MLX's own, taken at the import of cpu_attention: a lane of an earlier test may have installed the other one.
mlx_attention = cast("Callable[..., mx.array]", vars(cpu_attention)["_mlx_attention"])
mlx_swiglu = cast("Callable[[mx.array, mx.array], mx.array]", vars(cpu_attention)["_mlx_swiglu"])

Mask = mx.array | str | None


def normal(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def operands(length: int, total: int, *, batch: int = 1, group: int = 3, size: int = 8) -> list[mx.array]:
    return [
        normal(1, batch, 2 * group, length, size),
        normal(2, batch, 2, total, size),
        normal(3, batch, 2, total, size + 4),
    ]


def numbers(array: mx.array) -> F32:
    mx.eval(array)
    return np.array(memoryview(cast("Any", array)))


def assert_same(
    given_: list[mx.array], mask: Mask = None, sinks: mx.array | None = None, scale: float = 0.3
) -> F32:
    """Assert that both give the same; return MLX's."""
    expected = numbers(mlx_attention(*given_, scale=scale, mask=mask, sinks=sinks))
    result = attention(*given_, scale=scale, mask=mask, sinks=sinks)
    assert result.shape == expected.shape
    np.testing.assert_allclose(numbers(result), expected, rtol=2e-4, atol=2e-5)
    return expected


def taken_over(monkeypatch: pytest.MonkeyPatch) -> list[Operands]:
    """Record the calls that NumPy computes."""
    calls: list[Operands] = []

    def recorded(given_: Operands) -> F32:
        calls.append(given_)
        return attend(given_)

    monkeypatch.setattr(cpu_attention, "attend", recorded)
    return calls


def test_rows_that_see_nothing_end_as_the_originals() -> None:
    seen = np.tri(20, 40, 20, dtype=np.bool_)
    seen[3] = False
    expected = assert_same(operands(20, 40), mx.array(seen))
    values = numbers(operands(20, 40)[2])
    np.testing.assert_allclose(expected[0, 0, 3], values[0, 0].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_rows_of_minus_infinity_are_nan_in_both() -> None:
    added = np.zeros((20, 40), np.float32)
    added[3], added[4, 5:] = -np.inf, -np.inf
    expected = assert_same(operands(20, 40), mx.array(added))
    assert np.isnan(expected[0, :, 3]).all()
    assert not np.isnan(expected[0, :, 4]).any()


def test_infinite_scores_warn_nobody() -> None:
    given_ = operands(20, 40)
    given_[0] = given_[0] * 1e38
    numbers(attention(*given_, scale=1e3, mask="causal"))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_other_types_are_computed_by_mlx(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = taken_over(monkeypatch)
    result = attention(*(each.astype(dtype) for each in operands(20, 40)), scale=0.3, mask="causal")
    assert result.dtype == dtype
    mixed = operands(20, 40)
    mixed[1] = mixed[1].astype(dtype)
    attention(*mixed, scale=0.3)
    attention(*operands(20, 40), scale=0.3, mask=mx.zeros((20, 40), dtype))
    assert not calls


def test_what_it_is_not_meant_for_is_computed_by_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = taken_over(monkeypatch)
    attention(*operands(MIN_QUERIES - 1, 40), scale=0.3, mask="causal")
    attention(*operands(20, 18), scale=0.3, mask="causal")  # more queries than keys
    attention(*operands(20, 40), scale=0.3, stream=mx.default_stream(mx.cpu))
    assert not calls
    attention(*operands(MIN_QUERIES, 40), scale=0.3, mask="causal")
    assert len(calls) == 1


def test_errors_are_mlx_own() -> None:
    q, k, v = operands(20, 40)
    with pytest.raises(ValueError, match="mask"):
        attention(q, k, v, scale=0.3, mask="diagonal")
    for wrong in ((q, k[0], v), (q, k, v[:, :1]), (q[:, :5], k, v), (q[..., :4], k, v)):
        with pytest.raises(ValueError, match="scaled_dot_product_attention"):
            attention(*wrong, scale=0.3)
    for sinks in (mx.zeros((5,)), mx.zeros((1, 6))):
        with pytest.raises(ValueError, match="sinks"):
            attention(q, k, v, scale=0.3, sinks=sinks)
    with pytest.raises(ValueError, match="broadcast"):
        attention(q, k, v, scale=0.3, mask=mx.zeros((3, 40)))


def test_a_trace_gets_mlx_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In vmap as in compile arrays have no values; compile would also start a C++ compiler here."""
    calls = taken_over(monkeypatch)

    def both(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return swiglu(attention(q, k, v, scale=0.3, mask="causal"), q[..., :1] + mx.zeros((1, 6, 20, 12)))

    given_ = operands(20, 40)
    traced = cast("Any", mx.vmap(both))(*(each[None] for each in given_))
    assert not calls
    np.testing.assert_allclose(numbers(traced[0]), numbers(both(*given_)), rtol=2e-4, atol=2e-5)
    assert len(calls) == 1


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize(("length", "total", "group"), [(16, 16, 1), (33, 700, 9), (512, 1100, 3)])
def test_plain_and_causal(mask: Mask, length: int, total: int, group: int) -> None:
    assert_same(operands(length, total, group=group), mask)


def test_several_blocks_and_threads_give_what_one_gives() -> None:
    given_ = operands(300, 2048, batch=2)
    assert_same(given_, "causal")
    alone = [
        attention(*(each[line : line + 1] for each in given_), scale=0.3, mask="causal") for line in (0, 1)
    ]
    company = attention(*given_, scale=0.3, mask="causal")
    assert (numbers(company) == np.concatenate([numbers(each) for each in alone])).all()


@pytest.mark.parametrize("window", [4, 24])
def test_sliding_windows(window: int) -> None:
    assert_same(operands(40, 100), create_causal_mask(40, 60, window_size=window))


def test_left_padded_batches() -> None:
    padded = create_causal_mask(20, 30, left_padding=mx.array([0, 7, 45]))  # the last: rows that see nothing
    assert padded.ndim == 4
    assert_same(operands(20, 50, batch=3), padded)


@pytest.mark.parametrize(
    "shape", [(20, 40), (1, 40), (6, 20, 40), (2, 1, 20, 40), (2, 6, 20, 40), (2, 1, 1, 40)]
)
def test_masks_of_every_broadcast_shape(shape: tuple[int, ...]) -> None:
    drawn = normal(9, *shape)
    assert_same(operands(20, 40, batch=2), drawn)
    assert_same(operands(20, 40, batch=2), drawn > -1)


@pytest.mark.parametrize("mask", [None, "causal"])
def test_sinks(mask: Mask) -> None:
    assert_same(operands(20, 40), mask, sinks=normal(4, 6) * 3)


def test_views_of_a_cache_are_read_where_they_lie_and_left_alone() -> None:
    q, k, v = operands(20, 40)
    room = [mx.zeros((1, 2, 256, each.shape[-1])) for each in (k, v)]
    room[0][..., :40, :], room[1][..., :40, :] = k, v
    kept = [numbers(each) for each in room]
    given_ = [
        q.swapaxes(1, 2).reshape(1, 20, -1).reshape(1, 20, 6, 8).swapaxes(1, 2),
        *(r[..., :40, :] for r in room),
    ]
    np.testing.assert_allclose(assert_same(given_, "causal"), assert_same([q, k, v], "causal"))
    for before, after in zip(kept, room, strict=True):
        assert (before == numbers(after)).all()


def test_no_operand_is_held_afterwards() -> None:
    given_ = operands(20, 40)
    mx.eval(given_)
    counts = [sys.getrefcount(each) for each in given_]
    results = [attention(*given_, scale=0.3, mask="causal") for _ in range(3)]
    assert [sys.getrefcount(each) for each in given_] == counts
    assert len(results) == 3


@dataclass(frozen=True)
class Shape:
    batch: int
    group: int
    size: int
    length: int
    history: int

    def mask(self, kind: str) -> Mask:
        match kind:
            case "window":
                return create_causal_mask(self.length, self.history, window_size=9)
            case "padded":
                return create_causal_mask(self.length, self.history, left_padding=mx.arange(self.batch) * 5)
            case "added":
                return normal(5, self.batch, 1, self.length, self.length + self.history)
            case _:
                return "causal" if kind == "causal" else None


shapes = st.builds(
    Shape,
    batch=st.integers(1, 3),
    group=st.integers(1, 4),
    size=st.sampled_from([4, 16, 80]),
    length=st.integers(MIN_QUERIES, 70),
    history=st.integers(0, 300),
)


@settings(max_examples=40, deadline=None)
@given(
    drawn=shapes, kind=st.sampled_from(["none", "causal", "window", "padded", "added"]), sunk=st.booleans()
)
def test_any_shape(drawn: Shape, kind: str, *, sunk: bool) -> None:
    total = drawn.length + drawn.history
    given_ = operands(drawn.length, total, batch=drawn.batch, group=drawn.group, size=drawn.size)
    sinks = normal(6, 2 * drawn.group) if sunk else None
    assert_same(given_, drawn.mask(kind), sinks, drawn.size**-0.5)


def test_many_threads_at_once_end_with_the_right_numbers() -> None:
    expected = numbers(mlx_attention(*operands(64, 2048), scale=0.3, mask="causal"))
    wrong: list[object] = []

    def lane() -> None:
        stream = mx.new_thread_local_stream(mx.default_device())
        with mx.stream(stream):
            given_ = operands(64, 2048)
            for _ in range(50):
                result = numbers(attention(*given_, scale=0.3, mask="causal") * 1.0)
                if not np.allclose(result, expected, rtol=2e-4, atol=2e-5):
                    wrong.append(result)

    lanes = [threading.Thread(target=lane) for _ in range(3)]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()
    assert not wrong


@pytest.mark.parametrize("shape", [(1, 20, 33), (20, 8), (2, 3, 16, 5)])
def test_swiglu_is_mlx_lms(shape: tuple[int, ...]) -> None:
    gate, x = normal(1, *shape) * 30, normal(2, *shape)
    gate[..., 0] = -1000.0
    np.testing.assert_allclose(numbers(swiglu(gate, x)), numbers(mlx_swiglu(gate, x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 1, 33), (1, 15, 33), (7,)])
def test_swiglu_of_few_rows_is_mlx_lms(shape: tuple[int, ...]) -> None:
    gate, x = normal(1, *shape) * 30, normal(2, *shape)
    gate[..., 0] = -1000.0
    np.testing.assert_allclose(numbers(swiglu(gate, x)), numbers(mlx_swiglu(gate, x)), rtol=2e-5, atol=1e-6)


def test_swiglu_of_other_types_is_mlx_lms() -> None:
    gate = normal(1, 1, 20, 33).astype(mx.bfloat16)
    assert mx.array_equal(swiglu(gate, gate), mlx_swiglu(gate, gate))
    assert swiglu(normal(1, 1, 20, 8), normal(2, 1, 1, 8)).shape == (1, 20, 8)


def test_installed_once_for_models_loaded_before_and_after() -> None:
    model = build("llama").model
    cpu_attention.install()
    cpu_attention.install()
    assert mx.fast.scaled_dot_product_attention is attention
    assert vars(activations)["swiglu"] is swiglu
    assert vars(sys.modules[type(model).__module__])["swiglu"] is swiglu
