"""All decoding rows of a lane: a batch for each kind of state, one step for all (REQUIREMENTS B3, B6).

Rows share a model call when every cache layer of theirs has the same signature. A lane has few such groups:
one, and with a delayed KV scheme a second for the rows that are not quantised yet. A row with a layer that no
batch can hold decodes in a group of its own. Groups are advanced together: every group's step is launched,
then every group's tokens of the step before are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from ..state.caches import can_share
from ..state.layers import leaves, signature_of
from ..state.scheme import BF16
from .batch import DecodeBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....storage.tokens import TokenIds
    from ..state.scheme import KvScheme
    from .batch import Decoded
    from .rows import Row

Kind = tuple[str, ...]
"""The signatures of a row's layers, and its id behind them if it cannot share."""

_NEVER: Final = 1 << 62


class DecodeGroups:
    """The running batches of a lane, seen as one. Lane thread only, under the lane's stream.

    Each row decodes from its own state whatever joins, leaves or converts beside it. ``rows`` are all rows.
    ``launched`` counts steps of the lane, however many groups took part; ``read_step`` is the number of the
    last step whose tokens are all known.
    """

    def __init__(self, model: Any, scheme: KvScheme = BF16) -> None:
        self._model = model
        self._scheme = scheme
        self._groups: dict[Kind, DecodeBatch] = {}
        self._convert_at_step = _NEVER
        self.rows: list[Row] = []
        self.launched = 0
        self.read_step = 0

    @property
    def in_flight(self) -> bool:
        """Whether a step was launched whose tokens are not yet read."""
        return any(group.in_flight for group in self._groups.values())

    @property
    def solo_rows(self) -> int:
        """How many rows decode by themselves because a layer of theirs cannot share a batch."""
        return sum(len(group.rows) for group in self._groups.values() if not group.shared)

    @property
    def groups(self) -> int:
        """How many model calls a step takes."""
        return len(self._groups)

    def join(self, rows: Sequence[Row]) -> None:
        """Take over the caches of prefilled rows; each starts with its last prompt token as input."""
        joining: dict[Kind, list[Row]] = {}
        for row in rows:
            joining.setdefault(_kind(row, row.caches), []).append(row)
        for kind, members in joining.items():
            self._group(kind).join(members)
        self._regrouped()

    def extract(self, row: Row) -> tuple[list[Any], TokenIds]:
        """Return a row's state and the tokens that it encodes: all that were fed, the launched step's too.

        The arrays are lazy and depend on the step in flight. A state that has just reached its offset of
        conversion comes converted, as any other of its length.
        """
        caches, tokens = self._group_of(row).extract(row)
        if row.convert_at is not None and len(tokens) >= row.convert_at:
            caches = self._scheme.converted(caches)
        self._scheme.mark(caches)
        return caches, tokens

    def drop_ended(self) -> None:
        """Remove the rows that have ended since the last launch."""
        if any(row.ended for row in self.rows):
            for group in self._groups.values():
                group.drop_ended()
            self._regrouped()

    def clear(self) -> None:
        """Give up all rows and their state."""
        self._groups.clear()
        self._regrouped()

    def advance(self) -> list[Decoded]:
        """Launch the next step, then return the tokens of the one before (none on the first call).

        No step is launched when every row is known to end with the tokens about to be read.
        """
        if self.launched >= self._convert_at_step:
            self._convert()
        flying = self.in_flight
        launches = [group.launch() for group in self._groups.values()]
        self.launched += any(launches)
        if not flying:
            return []
        decoded = [each for group in self._groups.values() for each in group.read()]
        self.read_step = self.launched - any(launches)
        if not all(launches):
            self._groups = {kind: group for kind, group in self._groups.items() if group.rows}
        return decoded

    def wait(self) -> None:
        """Block until the step in flight is computed. Errors of the model come out here."""
        for group in self._groups.values():
            group.wait()

    def _convert(self) -> None:
        """Move the rows that have reached their offset to the group of converted ones, between two steps."""
        for row in [row for row in self.rows if self._steps_left(row) <= 0 and not row.ended]:
            moving = self._group_of(row).let_go(row)
            caches = self._scheme.converted(moving.caches)
            row.convert_at = None
            mx.async_eval(*[cache.state for cache in caches])  # pyright: ignore[reportUnknownMemberType]
            self._group(_kind(row, caches)).admit(moving._replace(caches=caches))
        self._regrouped(emptied=True)

    def _steps_left(self, row: Row) -> int:
        return _NEVER if row.convert_at is None else row.convert_at - self._group_of(row).fed(row)

    def _group(self, kind: Kind) -> DecodeBatch:
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = DecodeBatch(self._model, shared=not kind[-1].startswith(_ALONE))
        return group

    def _group_of(self, row: Row) -> DecodeBatch:
        return next(group for group in self._groups.values() if row in group.rows)

    def _regrouped(self, *, emptied: bool = False) -> None:
        """Note who is there. A group without rows stays while its last step is unread (``emptied``)."""
        if not emptied:
            self._groups = {kind: group for kind, group in self._groups.items() if group.rows}
        self.rows = [row for group in self._groups.values() for row in group.rows]
        if self._scheme.quantises:
            left = min((self._steps_left(row) for row in self.rows), default=_NEVER)
            self._convert_at_step = _NEVER if left == _NEVER else self.launched + left


_ALONE: Final = "alone:"


def _kind(row: Row, caches: Sequence[Any]) -> Kind:
    signatures = tuple(signature_of(cache) for cache in leaves(caches))
    if all(can_share(cache) for cache in caches):
        return signatures
    return (*signatures, _ALONE + row.id)
