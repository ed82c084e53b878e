"""What every batch of attention rows shows of its planes, whether they grow or are rings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import planes as of

if TYPE_CHECKING:
    from .planes import Planes


class BatchHalves:
    """Keys and values of all rows over ``_planes``, which are none before the first token."""

    _planes: Planes

    @property
    def keys(self) -> Any:
        """All rows' keys with their room (a triple where they are quantised), None while empty."""
        return of.halves(self._planes)[0] if self._planes else None

    @keys.setter
    def keys(self, keys: Any) -> None:
        # Some models put a dependency or blanks there; room and places stay the same.
        self._planes = of.of_halves(keys, self.values)

    @property
    def values(self) -> Any:
        """All rows' values with their room (a triple where they are quantised), None while empty."""
        return of.halves(self._planes)[1] if self._planes else None

    @values.setter
    def values(self, values: Any) -> None:
        self._planes = of.of_halves(self.keys, values)

    @property
    def nbytes(self) -> int:
        """Bytes of the planes, room and padding included."""
        return sum(plane.nbytes for plane in self._planes)
