"""Products of a few rows with a float32 weight on a CPU, in pieces that OpenBLAS takes as they lie.

Before OpenBLAS multiplies it copies a matrix into an order of its own. For the few rows of a decode step that
costs more than the product, and what it does costs memory bandwidth, which is what decode is short of. Its
kernels for AVX-512 multiply small matrices without the copy, so here a weight is a batch of small ones.
Measured on an Emerald Rapids server with both cores idle, times the whole product's rate: 1.29, 1.23, 1.12
at 1, 2 and 4 rows of 576 over 49,152; 1.46, 1.44, 1.26 of 2,048 over 8,192; 0.95 at 8 rows. One core does it,
where the whole product takes both. A decode step of the default model: 1.34, 1.22, 1.28 at 1, 2 and 4 rows;
in a server, whose clients and HTTP want a core too, also 1.1 to 1.2 at 6 and 8.

``install`` replaces ``Linear.__call__`` and ``Embedding.as_linear`` of ``mlx.nn`` in this process. Shapes
alone decide which way a product is taken, so the same rows give the same numbers whatever else happens.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx
from mlx import nn

from ..device import computes_on_cpu
from .blas import preload_openblas

if TYPE_CHECKING:
    from collections.abc import Callable

CORES: Final = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"})
"""Kernels of OpenBLAS that multiply small matrices where they lie."""

MOST_ROWS: Final = 8
"""Rows above which the copy pays."""

_PIECE: Final = 1 << 19
"""Multiplications in a piece at most. OpenBLAS 0.3.21 copies from somewhat more of them on."""

_LEAST_WIDTH: Final = 16
_linear = cast("Callable[[nn.Linear, mx.array], mx.array]", nn.Linear.__call__)
_as_linear = cast("Callable[[nn.Embedding, mx.array], mx.array]", nn.Embedding.as_linear)


def in_pieces() -> bool:
    """Return whether products of few rows are taken in pieces here. Part of the identity of states."""
    return computes_on_cpu() and preload_openblas().core in CORES


def install() -> None:
    """Take products in pieces in this process where that is faster; else, and once done, do nothing."""
    if in_pieces():
        nn.Linear.__call__ = linear
        nn.Embedding.as_linear = as_linear


def linear(self: nn.Linear, x: mx.array) -> mx.array:
    """Return what ``Linear`` returns of ``x`` [..., in], up to rounding. Any thread; lazy."""
    found = _product(x, cast("mx.array", self["weight"]))
    if found is None:
        return _linear(self, x)
    return found + cast("mx.array", self["bias"]) if "bias" in self else found


def as_linear(self: nn.Embedding, x: mx.array) -> mx.array:
    """Return what ``Embedding.as_linear`` returns of ``x`` [..., in], up to rounding. Any thread; lazy."""
    found = _product(x, cast("mx.array", self["weight"]))
    return _as_linear(self, x) if found is None else found


def _product(x: mx.array, weight: mx.array) -> mx.array | None:
    """Return ``x @ weight.T`` in pieces, or None where it is to be one product."""
    wide, deep = weight.shape
    rows = x.size // deep
    if not 0 < rows <= MOST_ROWS or x.shape[-1] != deep or not x.dtype == weight.dtype == mx.float32:
        return None
    width = _width(rows, deep, wide)
    if width == wide:
        return None
    pieces = mx.reshape(weight, (wide // width, width, deep)).swapaxes(1, 2)
    found = mx.reshape(x, (1, rows, deep)) @ pieces
    return mx.reshape(found.swapaxes(0, 1), (*x.shape[:-1], wide))


@functools.lru_cache(maxsize=1024)
def _width(rows: int, deep: int, wide: int) -> int:
    """Return the outputs of a piece: the most that divide ``wide`` and are few enough, or else all."""
    most = min(wide, _PIECE // (rows * deep))
    return next((width for width in range(most, _LEAST_WIDTH - 1, -1) if wide % width == 0), wide)
