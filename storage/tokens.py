"""Immutable sequences of token ids, compared as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.uint32]

ITEM_BYTES = 4
_PROBE = 64


class TokenIds(Sequence[int]):
    """Token ids of a prefix: immutable, hashable, sliced without a copy. Any thread.

    The bytes are little-endian uint32, as in a container file (INTERFACE §6). ValueError for an id outside
    0 to 2**32 - 1.
    """

    __slots__ = ("_array", "_hash")

    def __init__(self, array: Array) -> None:
        array.flags.writeable = False
        self._array = array
        self._hash: int | None = None

    @classmethod
    def of(cls, ids: Iterable[int]) -> TokenIds:
        """Return ``ids`` as TokenIds, themselves if they are some already."""
        if isinstance(ids, TokenIds):
            return ids
        try:
            return cls(np.array(list(ids), dtype="<u4"))
        except OverflowError as error:
            raise ValueError(f"a token id is outside 0 to 2**32 - 1: {error}") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> TokenIds:
        """Return the ids in ``data``; ValueError unless it is whole uint32 values."""
        if len(data) % ITEM_BYTES:
            raise ValueError(f"{len(data)} bytes are no whole number of token ids")
        return cls(np.frombuffer(data, dtype="<u4"))

    def to_bytes(self) -> bytes:
        """Return the ids as little-endian uint32."""
        return self._array.tobytes()

    def tolist(self) -> list[int]:
        """Return the ids as plain integers."""
        return self._array.tolist()

    def common_prefix(self, other: TokenIds, start: int = 0) -> int:
        """Return how many tokens both begin with, given that the first ``start`` are known to be equal.

        Cost grows with the common part, not with the sequences.
        """
        end = min(len(self), len(other))
        step = _PROBE
        while start < end:
            stop = min(start + step, end)
            different = self._array[start:stop] != other._array[start:stop]
            if different.any():
                return start + int(different.argmax())
            start, step = stop, step * 4
        return end

    def starts_with(self, other: TokenIds) -> bool:
        """Whether ``other`` is a prefix of these ids, or equal to them."""
        return len(other) <= len(self) and bool((self._array[: len(other)] == other._array).all())

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> TokenIds: ...

    def __getitem__(self, index: int | slice) -> int | TokenIds:
        if isinstance(index, slice):
            part = self._array[index]
            return TokenIds(part if part.flags.c_contiguous else np.ascontiguousarray(part))
        return int(self._array[index])

    def __len__(self) -> int:
        return len(self._array)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenIds):
            return NotImplemented
        return len(self) == len(other) and bool((self._array == other._array).all())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._array.tobytes())
        return self._hash

    def __repr__(self) -> str:
        return f"TokenIds({len(self)} ids)"
