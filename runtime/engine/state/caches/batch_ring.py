"""Rings in one batch, plain and quantised, that keep the phase of rows which are already there.

Attention sums over tokens in the order in which they lie, so only a ring of the same phase goes on bit for
bit. mlx-lm's BatchRotatingKVCache puts every ring into temporal order when rows merge, when one joins and
when one leaves, and drops ``keep``: a row that left and came back, or merely saw another join, goes on in
another order than the row that stayed. Here a batch of full rings has one phase, rows that join are turned
to it, and a row leaves as it lies (REQUIREMENTS B7). All rows write at the same place; those that are not yet
full have padding before their first token, which the ring eats up as it turns. ``keep`` is not supported: see
``sharing.can_share``.
"""

# ruff: noqa: SLF001 - batches look into each other, and `_idx` is mlx-lm's only name for a ring's phase
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import RotatingKVCache

from . import planes as of
from .batch_halves import BatchHalves
from .rotating_quantised import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from .planes import Planes


class BatchRingKVCache(BatchHalves):
    """Rows of RotatingKVCache. One thread, its stream. Padding, lengths and phase are known to the host.

    ``offset`` [rows]: tokens of each row, for rotary positions.

    ``_used``: places of the batch that count, padding included. Below ``max_size`` tokens lie in temporal
    order and ``_idx``, the place of the next one, is ``_used``; at ``max_size`` the oldest lies at ``_idx``
    (at 0 for ``max_size``); above it, after several tokens at once, they are in order again and the oldest go
    with the next update. ``_pads`` and ``_lengths`` are those of ``_slid`` places and ``_added`` tokens ago.
    """

    def __init__(self, max_size: int, lengths: Sequence[int]) -> None:
        self.max_size = max_size
        self.offset = mx.array(list(lengths))
        self.reusable_from = [0] * len(lengths)
        self._lengths = list(lengths)
        self._pads = [0] * len(lengths)
        self._planes = []
        self._used: int = 0
        self._idx: int = 0
        self._slid: int = 0
        self._added: int = 0

    @property
    def state(self) -> tuple[mx.array, ...]:
        """Every array, to be evaluated."""
        return (*self._planes, self.offset)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Add [rows, heads, tokens, width] to every row; return what attention may look at, as it lies."""
        new = self._encoded(keys, values)
        count = of.rows_of(new)
        if count == 1:
            self._place(new)
        else:
            self._append(new)
        self._added += count
        self.offset = self.offset + count
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        """Return the places that count."""
        return of.halves(of.cut(self._planes, 0, self._used))

    def make_mask(
        self,
        N: int,  # noqa: N803 - mlx-lm's name
        window_size: int | None = None,
        return_array: bool = False,  # noqa: FBT001, FBT002 - mlx-lm's signature
    ) -> mx.array | str | None:
        """Return what hides padding, the future and what is beyond the window from the next ``N`` tokens."""
        if N == 1:
            return self._mask_of_one(window_size or self.max_size)
        window = window_size or self.max_size
        older = min(self._used, self.max_size - 1)
        pads = self._pads_after(self._used - older)
        if any(pads):
            return create_causal_mask(N, older, window_size=window, left_padding=mx.array(pads))
        if older + N > window or return_array:
            return create_causal_mask(N, older, window_size=window)
        return "causal"

    def size(self) -> int:
        """Places that attention sees, at most the window."""
        return min(self._used, self.max_size)

    def empty(self) -> bool:
        """Whether no row has a token."""
        return not self._planes

    def is_trimmable(self) -> bool:
        """Whether the last tokens can be dropped: before the ring wraps."""
        return self._used < self.max_size

    def trim(self, n: int) -> int:
        """Drop the last ``n`` tokens, as many as the shortest row has; none once the ring has wrapped."""
        if not self.is_trimmable():
            return 0
        n = min(self._used - max(self._pads), n)
        self._used -= n
        self._idx -= n
        self._added -= n
        self.offset = self.offset - n
        return n

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep these rows, in this order, and drop padding that all of them have."""
        self._count_up()
        self._lengths = [self._lengths[line] for line in batch_indices]
        self.reusable_from = [self.reusable_from[line] for line in batch_indices]
        pads = [self._pads[line] for line in batch_indices]
        lines = mx.array(list(batch_indices))
        self.offset = self.offset[lines]
        self._planes = of.picked(self._planes, lines)
        surplus = min(pads)
        if surplus:
            self._planes = of.cut(self._ordered(), surplus, self._used)
            self._used -= surplus
            self._idx = self._used
        self._pads = [pad - surplus for pad in pads]

    def extend(self, other: BatchRingKVCache) -> None:
        """Append the rows of ``other``, which is used up. Full rings of this batch stay as they lie."""
        self._absorb([other])

    def extract(self, idx: int) -> Any:
        """Return one row's cache in buffers of its own, lazily: a full ring as it lies, others in order."""
        self._count_up()
        pad = self._pads[idx]
        wrapped = self._used == self.max_size
        planes = self._planes if wrapped and not pad else self._ordered()
        row = self._row(idx, of.single(planes, idx, pad, self._used) if planes else [])
        row._idx = self._idx if wrapped and not pad else self._used - pad
        return row

    def handed_over(self) -> Any:
        """Return the only row's cache over the same buffers; the batch may go on, its next update copies."""
        self._count_up()
        assert self._pads == [0], "rows share these buffers"
        row = self._row(0, of.lent(self._planes))
        row._idx = self._idx
        return row

    @classmethod
    def merge(cls, caches: Sequence[Any]) -> BatchRingKVCache:
        """Return a batch of rings of the same geometry. A single one is not copied."""
        first, *others = (cls._empty_like(cache)._taking(cache) for cache in caches)
        if others:
            first._absorb(others)
        return first

    # --- what the quantised twin does otherwise ----------------------------------------------------

    @classmethod
    def _empty_like(cls, row: Any) -> BatchRingKVCache:
        return cls(row.max_size, [row.offset])

    def _encoded(self, keys: mx.array, values: mx.array) -> Planes:
        return [keys, values]

    def _empty_row(self) -> Any:
        return RotatingKVCache(self.max_size)

    # --- places ------------------------------------------------------------------------------------

    def _taking(self, row: Any) -> Self:
        """Take over a single row's buffers."""
        self.reusable_from = [int(getattr(row, "reusable_from", 0))]
        self._planes = of.of_halves(row.keys, row.values)
        self._used = min(row.offset, of.rows_of(self._planes)) if self._planes else 0
        self._idx = row._idx
        return self

    def _place(self, new: Planes) -> None:
        surplus = self._used - self.max_size
        if surplus > 0:
            self._planes = of.cut(self._planes, surplus, self._used)
            self._used = self._idx = self.max_size
            self._slid += surplus
        if self._used == self.max_size:
            self._idx %= self.max_size
            self._slid += 1
        else:
            self._make_room(new)
            self._used += 1
        of.write(self._planes, new, self._idx)
        self._idx += 1

    def _make_room(self, new: Planes) -> None:
        rows = of.rows_of(self._planes) if self._planes else 0
        if self._used == rows:
            more = of.blank(new, min(of.STEP, self.max_size - rows))
            self._planes = of.joined([self._planes, more]) if self._planes else more

    def _append(self, new: Planes) -> None:
        if self._planes:
            surplus = max(0, self._used - self.max_size + 1)
            self._slid += surplus
            new = of.joined([of.cut(self._ordered(), surplus, self._used), new])
        self._planes = new
        self._used = self._idx = of.rows_of(new)

    def _ordered(self) -> Planes:
        """Return the places that count from old to new."""
        if self._used == self.max_size:
            return in_order(of.cut(self._planes, 0, self._used), self._idx, self._used + 1)
        return of.cut(self._planes, 0, self._used) if self._planes else []

    def _absorb(self, others: Sequence[BatchRingKVCache]) -> None:
        """Append the rows of ``others``; the first full ring says how all full rings lie."""
        parts = [self, *others]
        used = max(part.size() for part in parts)
        phases = (part._idx % self.max_size for part in parts if part._used == self.max_size)
        phase = next(phases, 0)
        like: Planes = next((part._planes for part in parts if part._planes), self._planes)
        planes = [part._turned(used, phase, like) for part in parts] if like else []
        pads = [pad for part in parts for pad in part._pads_at(used)]
        self._lengths = [length + part._added for part in parts for length in part._lengths]
        self.reusable_from = [floor for part in parts for floor in part.reusable_from]
        self.offset = mx.concatenate([part.offset for part in parts])
        self._planes, self._pads, self._slid, self._added = of.joined(planes, 0), pads, 0, 0
        self._used, self._idx = used, phase or used

    def _turned(self, used: int, phase: int, like: Planes) -> Planes:
        """Return ``used`` places whose oldest lies at ``phase``, padding first, with room behind them."""
        room = min(self.max_size, of.room_for(used)) - used
        if not self._planes:
            return of.blank(like, used + room, rows=len(self._pads))
        if self._used == used == self.max_size and self._idx % self.max_size == phase:
            return self._planes
        kept = of.cut(self._ordered(), self._used - self.size(), self._used)
        return of.rolled(of.padded(kept, used - self.size(), room), phase)

    # --- rows --------------------------------------------------------------------------------------

    def _row(self, line: int, planes: Planes) -> Any:
        row = self._empty_row()
        if planes:
            row.keys, row.values = of.halves(planes)
        row.offset = self._lengths[line]
        if self.reusable_from[line]:
            row.reusable_from = self.reusable_from[line]
        return row

    def _count_up(self) -> None:
        self._pads = self._pads_after(0)
        self._lengths = [length + self._added for length in self._lengths]
        self._slid = self._added = 0

    def _pads_after(self, slid: int) -> list[int]:
        return [max(0, pad - self._slid - slid) for pad in self._pads]

    def _pads_at(self, used: int) -> list[int]:
        surplus, left = self._used - self.size(), used - self.size()
        return [pad + left for pad in self._pads_after(surplus)]

    def _mask_of_one(self, window: int) -> mx.array | None:
        places = min(self._used + 1, self.max_size)
        first = max(0, places - window)
        hidden = [max(first, pad) for pad in self._pads_after(self._used + 1 - places)]
        if not any(hidden):
            return None
        mask = mx.arange(places) >= mx.array(hidden)[:, None, None, None]
        if self._used < self.max_size:
            return mask
        newest = self._idx % places if self._used == self.max_size else 0
        return mx.roll(mask, newest + 1, -1)
