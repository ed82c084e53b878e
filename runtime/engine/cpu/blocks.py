"""Attention in float32, block by block in NumPy. Knows arrays only: MLX stays in cpu/attention.py.

A block is some queries of all heads that share a head of the keys: one tall matrix. Its scores stay in a
core's cache from the first product to the second, and ``numpy.exp`` takes 0.6 ns an element (MLX's: 13 ns
and more).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import numpy as np

from ....storage.fs import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

F32: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Mask: TypeAlias = "F32 | Bools | Literal['causal'] | None"
Place: TypeAlias = "tuple[int, int, int]"
"""Line of the batch, head of the keys, first query of a block."""

_BLOCK_SCORES: Final = 256 * 1024  # 1 MiB: half of a server core's second-level cache
_BLOCK_ROWS: Final = 16  # at least, however many keys there are
_SHARED_SCORES: Final = 1 << 20  # fewer for each thread are not worth starting one
_MOST_THREADS: Final = 8
_LOWEST: Final = np.finfo(np.float32).min


@dataclass(frozen=True, slots=True)
class Operands:
    """What a call attends to; never written to.

    ``queries`` [batch, heads, length, size], ``keys`` and ``values`` [batch, key heads, total, size], any
    strides. ``mask``: ``causal`` (the last query sees the last key; total >= length), or an array
    [batch, heads, length, total] that says which keys are seen or is added to the scores. ``sinks`` [heads].
    """

    queries: F32
    keys: F32
    values: F32
    scale: float
    mask: Mask = None
    sinks: F32 | None = None

    @property
    def group(self) -> int:
        """How many heads share a head of the keys."""
        return self.queries.shape[1] // self.keys.shape[1]


def attend(given: Operands) -> F32:
    """Return the attention's result, [batch, length, heads, size], contiguous.

    Threads share the blocks where there is enough to do; none outlives the call. The blocks, and so the
    result to the last bit, depend on the shapes alone.
    """
    batch, heads, length, _ = given.queries.shape
    total = given.keys.shape[2]
    rows = min(length, max(_BLOCK_ROWS, _BLOCK_SCORES // (given.group * total)))
    blocks = _Blocks(given, rows, np.empty((batch, length, heads, given.values.shape[-1]), np.float32))
    places = list(product(range(batch), range(given.keys.shape[1]), range(0, length, rows)))
    shares = min(_MOST_THREADS, usable_cores(), len(places), batch * heads * length * total // _SHARED_SCORES)
    todo = iter(places)
    if shares > 1:
        with ThreadPoolExecutor(shares - 1, "attention") as helpers:
            others = [helpers.submit(blocks.work, todo) for _ in range(shares - 1)]
            blocks.work(todo)
            for other in others:
                other.result()
    else:
        blocks.work(todo)
    return blocks.out


@dataclass(frozen=True, slots=True)
class _Blocks:
    """One call, in blocks of ``rows`` queries; different blocks may be computed at once."""

    given: Operands
    rows: int
    out: F32

    def work(self, todo: Iterator[Place]) -> None:
        """Compute blocks until none is left. Every thread has scores of its own to work in."""
        scratch = np.empty(self.given.group * self.rows * self.given.keys.shape[2], np.float32)
        with np.errstate(all="ignore"):  # a row of infinities ends as it does in MLX: in NaN
            for place in todo:
                self._block(place, scratch)

    def _block(self, place: Place, scratch: F32) -> None:
        given, group = self.given, self.given.group
        line, key_head, start = place
        chosen = slice(start, min(start + self.rows, given.queries.shape[2]))
        heads = slice(key_head * group, (key_head + 1) * group)
        keys, mask = self._visible(line, heads, chosen)
        count, width = chosen.stop - start, keys.stop - keys.start
        queries = (given.queries[line, heads, chosen] * np.float32(given.scale)).reshape(group * count, -1)
        scores = scratch[: group * count * width].reshape(group * count, width)
        np.matmul(queries, given.keys[line, key_head, keys].T, out=scores)
        if mask is not None:
            _hide(scores.reshape(group, count, width), mask)
        sinks = None if given.sinks is None else np.repeat(given.sinks[heads], count)[:, None]
        sums = _exponentiate(scores, sinks)
        result = np.matmul(scores, given.values[line, key_head, keys])
        result /= sums
        self.out[line, chosen, heads] = result.reshape(group, count, -1).swapaxes(0, 1)

    def _visible(self, line: int, heads: slice, chosen: slice) -> tuple[slice, F32 | Bools | None]:
        """Return which keys a block has to look at, and the mask of the last of them."""
        given, total = self.given, self.given.keys.shape[2]
        everything = slice(0, total)
        if given.mask is None:
            return everything, None
        if isinstance(given.mask, str):
            end = total - given.queries.shape[2] + chosen.stop
            return slice(0, end), np.tri(chosen.stop - chosen.start, dtype=np.bool_)[None]
        mask = given.mask[line, heads, chosen]
        if mask.strides[0] == 0:  # the same for every head
            mask = mask[:1]
        if mask.dtype != np.bool_ or not mask.any(axis=2).all():  # who sees nothing averages over everything
            return everything, mask
        columns = np.flatnonzero(mask.any(axis=(0, 1)))
        keys = slice(int(columns[0]), int(columns[-1]) + 1)
        mask = mask[:, :, keys]
        return keys, None if mask.all() else mask


def _hide(scores: F32, mask: F32 | Bools) -> None:
    """Apply a mask to the last of the scores, [heads, queries, keys], in place."""
    if mask.dtype == np.bool_:
        last = scores[:, :, scores.shape[2] - mask.shape[2] :]
        np.copyto(last, _LOWEST, where=~cast("Bools", mask))
    else:
        scores += mask


def _exponentiate(scores: F32, sinks: F32 | None) -> F32:
    """Turn scores into weights in place; return their sums, [rows, 1], the sinks' share among them."""
    highest = scores.max(axis=1, keepdims=True)
    if sinks is not None:
        highest = np.maximum(highest, sinks)
    scores -= highest
    np.exp(scores, out=scores)
    sums = scores.sum(axis=1, keepdims=True)
    return sums if sinks is None else sums + np.exp(sinks - highest)
