"""Products in pieces: the numbers of whole ones, for every shape, and only where they are meant for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from samovar.runtime.engine.cpu import products
from samovar.runtime.engine.cpu.blas import BlasReport
from samovar.runtime.engine.cpu.products import MOST_ROWS, as_linear, in_pieces, install, linear
from samovar.runtime.engine.state import identity

import mlx.core as mx  # isort: skip
from mlx import nn  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Callable

whole_linear, whole_as_linear = products._linear, products._as_linear
WIDE, DEEP = 6_000, 300  # 1.8 million multiplications a row: several pieces


def numbers(array: mx.array) -> Any:
    return np.array(array)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what is left to MLX's own layers."""
    left: list[tuple[int, ...]] = []

    def note(own: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def noted(self: nn.Module, x: mx.array) -> mx.array:
            left.append(tuple(x.shape))
            return own(self, x)

        return noted

    monkeypatch.setattr(products, "_linear", note(whole_linear))
    monkeypatch.setattr(products, "_as_linear", note(whole_as_linear))
    return left


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Linear, "__call__", whole_linear)
    monkeypatch.setattr(nn.Embedding, "as_linear", whole_as_linear)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(DEEP,), (1, DEEP), (8, DEEP), (3, 1, DEEP), (2, 2, DEEP)])
def test_few_rows_in_pieces_give_the_whole_products_numbers(
    shape: tuple[int, ...], bias: bool, counted: list[tuple[int, ...]]
) -> None:
    layer, x = nn.Linear(DEEP, WIDE, bias=bias), mx.random.normal(shape, key=mx.random.key(3))
    found, whole = linear(layer, x), whole_linear(layer, x)
    assert counted == []
    assert found.shape == whole.shape == (*shape[:-1], WIDE)
    np.testing.assert_allclose(numbers(found), numbers(whole), rtol=1e-4, atol=1e-5)


def test_a_tied_head_in_pieces_gives_the_whole_products_numbers(counted: list[tuple[int, ...]]) -> None:
    table, x = nn.Embedding(WIDE, DEEP), mx.random.normal((4, 1, DEEP), key=mx.random.key(4))
    np.testing.assert_allclose(
        numbers(as_linear(table, x)), numbers(whole_as_linear(table, x)), rtol=1e-4, atol=1e-5
    )
    assert counted == []


@pytest.mark.parametrize(
    ("wide", "x"),
    [
        (WIDE, mx.zeros((MOST_ROWS + 1, DEEP))),
        (WIDE, mx.zeros((0, DEEP))),
        (WIDE, mx.zeros((1, DEEP), mx.bfloat16)),
        (5_987, mx.zeros((1, DEEP))),  # a prime
        (100, mx.zeros((1, DEEP))),  # small as it is
    ],
)
def test_other_products_are_left_whole(wide: int, x: mx.array, counted: list[tuple[int, ...]]) -> None:
    layer = nn.Linear(DEEP, wide, bias=False)
    assert linear(layer, x).shape == (x.shape[0], wide)
    assert counted == [tuple(x.shape)]


def test_a_wrong_width_is_refused_as_ever() -> None:
    with pytest.raises(ValueError, match="matmul"):
        linear(nn.Linear(DEEP, WIDE, bias=False), mx.zeros((2, DEEP * 2)))


def test_a_row_gives_the_same_numbers_every_time() -> None:
    layer, x = nn.Linear(DEEP, WIDE), mx.random.normal((2, DEEP), key=mx.random.key(5))
    assert mx.array_equal(linear(layer, x), linear(layer, x))


@pytest.mark.usefixtures("unpatched")
@pytest.mark.parametrize(("core", "pieces"), [("SkylakeX", True), ("Haswell", False), (None, False)])
def test_it_is_installed_where_the_kernels_gain_by_it(
    core: str | None, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "preload_openblas", lambda: BlasReport(found=True, active=True, core=core))
    install()
    assert (nn.Linear.__call__ is linear) is pieces
    assert (nn.Embedding.as_linear is as_linear) is pieces
    assert in_pieces() is pieces


def test_the_way_of_products_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    report = identity.device_report()
    seen: list[str | None] = []
    for pieces in (True, False):
        monkeypatch.setattr(identity, "in_pieces", lambda pieces=pieces: pieces)
        seen.append(identity._environment(report).get("products"))
    assert seen == ["in pieces", None]
