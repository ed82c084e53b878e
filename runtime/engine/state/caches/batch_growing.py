"""Rows of growing layers in one batch, left-padded so that all end at the same token.

The plain one does what mlx-lm's BatchKVCache does, with two differences: the host knows the padding, so that
no join, leave or extraction waits for the step in flight; and where there is no padding there is no mask, so
that a row alone computes as it would without a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache, create_attention_mask

from . import planes as of
from .batch_halves import BatchHalves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .planes import Planes


class BatchGrowingKVCache(BatchHalves):
    """Rows of KVCache. One thread, its stream.

    Guarantees that each row holds bit for bit what it would hold alone, and that padding has no weight.
    ``offset`` [rows]: tokens of each row, for rotary positions; ``left_padding`` [rows]: blank tokens before
    them.
    """

    def __init__(self, left_padding: Sequence[int]) -> None:
        self._pads = list(left_padding)
        self._planes = []
        self._idx: int = 0
        self.reusable_from = [0] * len(self._pads)
        self.left_padding = mx.array(self._pads)
        self.offset = -self.left_padding

    @property
    def state(self) -> tuple[mx.array, ...]:
        """Every array, to be evaluated."""
        return (*self._planes, self.offset, self.left_padding)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Append [rows, heads, tokens, width] to every row; return keys and values of all tokens so far."""
        new = self._encoded(keys, values)
        self._planes = of.grown(self._planes, new, self._idx)
        of.write(self._planes, new, self._idx)
        self._idx += of.rows_of(new)
        self.offset = self.offset + of.rows_of(new)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        """Return keys and values of all tokens so far."""
        return of.halves(of.cut(self._planes, 0, self._idx))

    def make_mask(
        self,
        N: int,  # noqa: N803 - mlx-lm's name
        return_array: bool = False,  # noqa: FBT001, FBT002 - mlx-lm's signature
        window_size: int | None = None,
    ) -> mx.array | str | None:
        """Return what hides padding and the future from the next ``N`` tokens; a row alone needs no more."""
        if not any(self._pads):
            return create_attention_mask(N, self._idx, return_array, window_size)
        return create_causal_mask(
            N, offset=self._idx, window_size=window_size, left_padding=self.left_padding
        )

    def size(self) -> int:
        """Tokens of the longest row."""
        return self._idx

    def empty(self) -> bool:
        """Whether no row has a token."""
        return not self._planes

    def is_trimmable(self) -> bool:
        """Whether the last tokens can be dropped: always."""
        return True

    def trim(self, n: int) -> int:
        """Drop the last ``n`` tokens of every row, as many as the shortest has; return how many went."""
        n = min(self._idx - max(self._pads), n)
        self._idx -= n
        self.offset = self.offset - n
        return n

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep these rows, in this order, and drop padding that all of them have."""
        self._pads = [self._pads[line] for line in batch_indices]
        self.reusable_from = [self.reusable_from[line] for line in batch_indices]
        lines = mx.array(list(batch_indices))
        self.offset = self.offset[lines]
        surplus = min(self._pads)
        if self._planes:
            kept = of.picked(self._planes, lines)
            self._planes = of.cut(kept, surplus, of.rows_of(kept))
        self._set_pads([pad - surplus for pad in self._pads])
        self._idx -= surplus

    def extend(self, other: BatchGrowingKVCache) -> None:
        """Append the rows of ``other``, which is used up."""
        last = max(self._idx, other._idx)
        pads = [*self._moved_by(last), *other._moved_by(last)]
        if like := self._planes or other._planes:
            room = of.room_for(last)
            self._planes = of.joined(
                [self._ending_at(last, room, like), other._ending_at(last, room, like)], 0
            )
        self.offset = mx.concatenate([self.offset, other.offset])
        self.reusable_from += other.reusable_from
        self._set_pads(pads)
        self._idx = last

    def follow(self, other: BatchGrowingKVCache) -> None:
        """Hold the very offsets of another layer where they are the same numbers."""
        if self._pads == other._pads and self._idx == other._idx:
            self.offset = other.offset

    def extract(self, idx: int) -> Any:
        """Return one row's cache in buffers of its own, lazily."""
        planes = of.single(self._planes, idx, self._pads[idx], self._idx) if self._planes else []
        return self._row(planes, idx)

    def handed_over(self) -> Any:
        """Return the only row's cache over the same buffers; the batch may go on, its next update copies."""
        assert self._pads == [0], "rows share these buffers"
        return self._row(of.lent(self._planes), 0)

    @classmethod
    def merge(cls, caches: Sequence[Any]) -> BatchGrowingKVCache:
        """Return a batch of rows of the same geometry. A single one is not copied."""
        rows = [of.of_halves(cache.keys, cache.values) for cache in caches]
        lengths: list[int] = [cache.offset for cache in caches]
        longest = max(lengths)
        pads = [longest - length for length in lengths]
        batch = cls._padded_like(caches[0], pads)
        batch.reusable_from = [int(getattr(cache, "reusable_from", 0)) for cache in caches]
        like = next((planes for planes in rows if planes), None)
        if like is not None:
            batch._planes = rows[0] if len(rows) == 1 else _stacked(rows, lengths, pads, like)  # noqa: SLF001
        batch._idx = longest  # noqa: SLF001
        batch.offset = mx.array(lengths)
        return batch

    # --- what the quantised twin does otherwise ----------------------------------------------------

    @classmethod
    def _padded_like(cls, row: Any, pads: Sequence[int]) -> BatchGrowingKVCache:
        del row
        return cls(pads)

    def _encoded(self, keys: mx.array, values: mx.array) -> Planes:
        return [keys, values]

    def _empty_row(self) -> Any:
        return KVCache()

    # --- rows --------------------------------------------------------------------------------------

    def _row(self, planes: Planes, line: int) -> Any:
        row = self._empty_row()
        if planes:
            row.keys, row.values = of.halves(planes)
        row.offset = self._idx - self._pads[line]
        if self.reusable_from[line]:
            row.reusable_from = self.reusable_from[line]
        return row

    def _set_pads(self, pads: list[int]) -> None:
        if pads != self._pads or len(pads) != self.left_padding.size:
            self.left_padding = mx.array(pads)
        self._pads = pads

    def _moved_by(self, last: int) -> list[int]:
        return [pad + last - self._idx for pad in self._pads]

    def _ending_at(self, last: int, room: int, like: Planes) -> Planes:
        """Return the planes with the last token at ``last`` and ``room`` tokens in all."""
        if not self._planes:
            return of.blank(like, room, rows=len(self._pads))
        left = last - self._idx
        kept = of.cut(self._planes, 0, min(of.rows_of(self._planes), room - left))
        return of.padded(kept, left, room - left - of.rows_of(kept))


def share_offsets(caches: Sequence[Any]) -> mx.array | None:
    """Let growing layers of the same rows hold one array of offsets: one kernel a step for all of them.

    Returns that array, which nobody changes in place; None without such layers.
    """
    growing = [cache for cache in caches if isinstance(cache, BatchGrowingKVCache)]
    for cache in growing[1:]:
        cache.follow(growing[0])
    return growing[0].offset if growing else None


def _stacked(rows: list[Planes], lengths: list[int], pads: list[int], like: Planes) -> Planes:
    """Return the rows beneath each other, ending at the same token, with room behind it."""
    room = of.room_for(lengths[0] + pads[0])
    return of.joined(
        [
            of.padded(of.cut(planes, 0, length), pad, room - pad - length)
            if planes
            else of.blank(like, room, rows=1)
            for planes, length, pad in zip(rows, lengths, pads, strict=True)
        ],
        0,
    )
