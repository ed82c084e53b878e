"""A window of the last tokens, quantised: mlx-lm's RotatingKVCache in packed numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_lm.models.cache import RotatingKVCache

from . import planes as of

if TYPE_CHECKING:
    import mlx.core as mx

    from .planes import Planes


class RotatingQuantizedKVCache(RotatingKVCache):
    """One row's ring. Lane thread, its stream.

    Guarantees that tokens lie where RotatingKVCache would put them, whatever the updates: one token at a time
    in place, several in temporal order behind up to ``max_size - 1`` older ones; ``keep`` tokens at the front
    never leave. So masks are its own, and the ring's phase (``_idx``) means the same. ``keys`` and ``values``
    are triples. Trimmable before the ring wraps; after it ``trim`` drops nothing, where mlx-lm's corrupts.
    """

    def __init__(self, max_size: int, keep: int = 0, group_size: int = 64, bits: int = 8) -> None:
        super().__init__(max_size, keep=keep)
        self.group_size = group_size
        self.bits = bits
        self.keys: Any = None
        self.values: Any = None
        self.max_size: int = max_size
        self.keep: int = keep
        self.offset: int = 0
        self._idx: int = 0

    @property
    def planes(self) -> Planes:
        """The six arrays as they lie, none while empty."""
        return of.of_halves(self.keys, self.values)

    @property
    def state(self) -> tuple[object, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] - as QuantizedKVCache's
        """Every array, to be evaluated, and the numbers that place them."""
        return (
            self.keys,
            self.values,
            self.offset,
            self.keep,
            self.max_size,
            self._idx,
            self.group_size,
            self.bits,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, room included."""
        return sum(plane.nbytes for plane in self.planes)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Add [1, heads, tokens, width]; return the triples of what attention may look at, as it lies."""
        new = of.quantise(keys, values, bits=self.bits, group_size=self.group_size)
        place = self._placed if of.rows_of(new) == 1 else self._appended
        self.keys, self.values = of.halves(place(self.planes, new))
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        """Return the triples of the tokens there are."""
        planes = self.planes
        return of.halves(of.cut(planes, 0, min(self.offset, of.rows_of(planes))))

    def trim(self, n: int) -> int:
        """Drop the last ``n`` tokens; 0 and nothing else once the ring has wrapped."""
        if self.offset >= self.max_size:
            return 0
        n = min(self.offset, n)
        self.offset -= n
        self._idx -= n
        return n

    def _appended(self, planes: Planes, new: Planes) -> Planes:
        count = of.rows_of(new)
        if planes:
            planes = in_order(planes, self._idx, self.offset, self.keep)
            planes = without(planes, self.keep, of.rows_of(planes) - self.max_size + 1)
            new = of.joined([planes, new])
        self.offset += count
        self._idx = of.rows_of(new)
        return new

    def _placed(self, planes: Planes, new: Planes) -> Planes:
        rows = of.rows_of(planes) if planes else 0
        if self.offset >= rows and rows < self.max_size:
            more = of.blank(new, min(of.STEP, self.max_size - rows))
            planes = of.joined([planes, more]) if planes else more
            self._idx = self.offset
        elif rows > self.max_size:
            planes = without(planes, self.keep, rows - self.max_size)
            self._idx = self.max_size
        if self._idx == self.max_size:
            self._idx = self.keep
        of.write(planes, new, self._idx)
        self.offset += 1
        self._idx += 1
        return planes


def in_order(planes: Planes, idx: int, offset: int, keep: int = 0) -> Planes:
    """Return a ring's tokens from old to new, those that never leave in front, without its room."""
    if idx == of.rows_of(planes):
        return planes
    if idx >= offset:
        return of.cut(planes, 0, idx)
    parts = [of.cut(planes, 0, keep), of.cut(planes, idx, of.rows_of(planes)), of.cut(planes, keep, idx)]
    return of.joined([part for part in parts if of.rows_of(part)])


def without(planes: Planes, keep: int, surplus: int) -> Planes:
    """Return the planes without the ``surplus`` oldest tokens behind those that never leave."""
    if surplus <= 0:
        return planes
    rest = of.cut(planes, keep + surplus, of.rows_of(planes))
    return of.joined([of.cut(planes, 0, keep), rest]) if keep else rest
