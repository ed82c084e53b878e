"""The tensors of one cache layer, held still: what clones share, writers read and readers fill.

A held array is evaluated, in C order and owned by nobody else's graph. Aliases of it cost nothing:
``array.view(array.dtype)`` is a new Python object over the same buffer. Aliases are needed because
``cache.keys[...] = x`` changes the Python object in place: a shared object would change with its borrower,
while an alias keeps what it had and the borrower's next update copies the buffer once (DESIGN §4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mlx.core as mx

from .....storage.spec import LayerSpec, TensorSpec
from ...errors import StateMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TOKEN_AXIS: Final = 2
"""Attention layers hold [1, heads, rows, width], one row a token."""

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""The rows that count, as half-open ranges of the token axis in order."""


def alias(array: mx.array) -> mx.array:
    """Return a new Python object over the buffer of an evaluated array: no operation. Any thread.

    True of a view of the same type alone: one of another type is lazy and belongs to its thread's stream.
    """
    return array.view(array.dtype)


def byte_view(array: mx.array) -> memoryview:
    """Return the flat, writable bytes of an evaluated array in C order. Not for empty arrays. Any thread."""
    return memoryview(array).cast("B")  # pyright: ignore[reportArgumentType] - a buffer, which its stub omits


def dtype_name(dtype: mx.Dtype) -> str:
    """Return the name that a TensorSpec uses."""
    name = str(dtype).removeprefix("mlx.core.")
    return "bool" if name == "bool_" else name


def mlx_dtype(name: str) -> mx.Dtype:
    """Return the type that a TensorSpec names."""
    return getattr(mx, "bool_" if name == "bool" else name)


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """One array and the part of it that is state. ``runs`` None: all of it, else rows of the token axis."""

    name: str
    array: mx.array
    runs: Runs | None = None

    @property
    def spec(self) -> TensorSpec:
        """The tensor as it is stored: the rows that count, nothing of the capacity behind them."""
        shape = list(self.array.shape)
        if self.runs is not None:
            shape[TOKEN_AXIS] = sum(stop - start for start, stop in self.runs)
        return TensorSpec(self.name, dtype_name(self.array.dtype), tuple(shape))

    def segments(self) -> list[memoryview]:
        """Return writable byte views that are the stored tensor in C order. Evaluated arrays, any thread."""
        if self.array.nbytes == 0:
            return []
        data = byte_view(self.array)
        if self.runs is None or self.runs == ((0, self.array.shape[TOKEN_AXIS]),):
            return [data]
        return list(self._strided(data, self.runs))

    def _strided(self, data: memoryview, runs: Runs) -> Iterator[memoryview]:
        shape = self.array.shape
        row = math.prod(shape[TOKEN_AXIS + 1 :]) * self.array.itemsize
        block = shape[TOKEN_AXIS] * row
        for start in range(0, len(data), block):
            for first, last in runs:
                if last > first:
                    yield data[start + first * row : start + last * row]


@dataclass(frozen=True, slots=True)
class LayerState:
    """One cache layer after ``offset`` tokens; the fields are those of a LayerSpec, with arrays."""

    signature: str
    offset: int
    trimmable: bool
    reusable_from: int
    tensors: tuple[HeldTensor, ...]
    geometry: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def spec(self) -> LayerSpec:
        """The layer as plain data."""
        return LayerSpec(
            signature=self.signature,
            offset=self.offset,
            trimmable=self.trimmable,
            reusable_from=self.reusable_from,
            geometry=dict(self.geometry),
            tensors=tuple(tensor.spec for tensor in self.tensors),
        )


def blank_arrays(specs: Sequence[TensorSpec]) -> list[mx.array]:
    """Return evaluated arrays of these types and shapes, each with a buffer of its own, to be filled.

    On the thread that evaluates; under its stream. They are zeros, although every byte is about to be
    written: MLX has no allocation without a fill. (Loading a Python file object that leaves the data alone
    is faster, and deadlocks: MLX's threads then wait for the interpreter's lock while a lane, which has it,
    waits for MLX.)
    """
    arrays = [mx.zeros(spec.shape, mlx_dtype(spec.dtype)) for spec in specs]
    mx.eval(arrays)  # pyright: ignore[reportUnknownMemberType]
    return arrays


def settled(array: mx.array) -> mx.array:
    """Return the array's values in C order in a buffer of about their size, lazily; its buffer if it is so.

    A slice of a larger buffer is copied, so that a checkpoint of one row does not keep a whole batch. Without
    elements it stays as it is: evaluating a copy of such an array ends the process on CUDA.
    """
    return mx.contiguous(array) if array.size else array


def held_rows(name: str, array: mx.array | None, runs: Runs) -> HeldTensor:
    """Hold an attention array of one sequence. StateMismatch unless it is [1, heads, rows, width]."""
    wanted = max((stop for _, stop in runs), default=0)
    if array is None or array.ndim != TOKEN_AXIS + 2 or array.shape[0] != 1:
        found = "nothing" if array is None else f"shape {array.shape}"
        raise StateMismatch(f"{name}: {found}, expected [1, heads, rows, width]")
    if array.shape[TOKEN_AXIS] < wanted:
        raise StateMismatch(f"{name}: {array.shape[TOKEN_AXIS]} rows, {wanted} should be there")
    return HeldTensor(name, settled(array), runs)


def require_offset(cache: Any, offset: int) -> None:
    """Raise StateMismatch unless the cache says that it holds exactly ``offset`` tokens."""
    if cache.offset != offset:
        raise StateMismatch(f"{type(cache).__name__} holds {cache.offset} tokens, its key has {offset}")


def reusable_from(cache: Any) -> int:
    """Return the lowest offset at which the cache's numbers are valid: 0 unless a conversion set it later."""
    return int(getattr(cache, "reusable_from", 0))


def with_rows(spec: TensorSpec, rows: int) -> TensorSpec:
    """Return an attention tensor's spec with another number of rows."""
    shape = (*spec.shape[:TOKEN_AXIS], rows, *spec.shape[TOKEN_AXIS + 1 :])
    return TensorSpec(spec.name, spec.dtype, shape)


def with_capacity(spec: TensorSpec, capacity: int | None) -> TensorSpec:
    """Return the spec of the array that a tensor is restored into."""
    return spec if capacity is None else with_rows(spec, capacity)


def held_in(array: mx.array, spec: TensorSpec, capacity: int | None) -> HeldTensor:
    """Hold a tensor in an array of ``with_capacity``: its rows lead."""
    return HeldTensor(spec.name, array, None if capacity is None else ((0, spec.shape[TOKEN_AXIS]),))
