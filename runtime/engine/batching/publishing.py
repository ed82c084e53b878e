"""What a row leaves behind for others: checkpoints of its prompt and of its whole run.

A row publishes its prompt where the next turn will render it again, as soon as that much is prefilled, and
everything that it was fed when it has ended by itself. Its ``Finished`` follows its last ``Published``, so
whoever reacts to the end of a reply finds the reply's state already there.

Keeping state is a nicety. When it fails (there is no memory for the copy, say) the state is not published
and counted, and the row goes on or ends as if it had been.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import mlx.core as mx

from ..errors import StateError
from ..port import Published
from ..state.snapshots import snapshot

if TYPE_CHECKING:
    from ....storage.tokens import TokenIds
    from ..port import Finished, RowEvent
    from .groups import DecodeGroups
    from .rows import Row
    from .suspects import Suspects

NOT_KEPT: Final = (MemoryError, RuntimeError, ValueError, StateError)
"""What MLX and the layers' codecs raise over a state that cannot be copied or described."""


class Memory(Protocol):
    """Where the ids of replies are remembered; a TextCodec is one."""

    def remember(self, tokens: TokenIds) -> None:
        """Note a prompt with its reply."""
        ...


@dataclass(frozen=True, slots=True)
class _Leaving:
    row: Row
    caches: list[Any]
    tokens: TokenIds
    finished: Finished


class Publisher:
    """Makes a lane's checkpoints. Lane thread only, under the lane's stream.

    ``min_tokens``: shorter states are not worth keeping. ``always_trims`` says that every state of the model
    can be shortened, so that one checkpoint serves every prefix of it. ``failed`` counts the states that
    could not be kept.
    """

    def __init__(self, min_tokens: int, memory: Memory, suspects: Suspects, *, always_trims: bool) -> None:
        self._min_tokens = min_tokens
        self._memory = memory
        self._suspects = suspects
        self._always_trims = always_trims
        self.failed = 0
        self._leaving: list[_Leaving] = []
        self._due: list[_Leaving] = []

    def plan(self, row: Row) -> None:
        """Decide at which offsets of its request's prompt a row publishes."""
        if not row.request.publish:
            return
        last = row.asked - 1
        if self._always_trims:
            worth = last - row.cached >= self._min_tokens
            offsets = [last] if worth else []
        else:
            offsets = [row.request.boundary, last]
        row.publish_at = frozenset(
            at for at in offsets if max(row.cached + 1, self._min_tokens) <= at <= last
        )

    def reached(self, row: Row) -> Published | None:
        """Publish the row's own caches if it has just reached one of its offsets. They must be evaluated."""
        if row.prefilled not in row.publish_at:
            return None
        return self._published(row, row.caches, row.fed(row.prefilled), provisional=True)

    def recall(self, row: Row) -> None:
        """Remember the ids of a row that an earlier lane had completed. Its state is not here to publish."""
        if row.request.publish:
            self._memory.remember(row.fed(len(row.prompt)))

    def leave(self, batch: DecodeGroups, row: Row, finished: Finished) -> bool:
        """Take over a row that has just ended; ``settle`` gives its ``finished`` after its state.

        False when nothing of it is kept; its end is then the caller's to report.
        """
        if not row.request.publish:
            return False
        self._memory.remember(row.fed(len(row.prompt) + len(row.output)))
        if len(row.prompt) + len(row.output) <= self._min_tokens:
            return False
        self._suspects.note("extract", (row,))
        try:
            caches, tokens = batch.extract(row)
            mx.async_eval(*[cache.state for cache in caches])  # pyright: ignore[reportUnknownMemberType]
        except NOT_KEPT:
            self.failed += 1
            return False
        self._leaving.append(_Leaving(row, caches, tokens, finished))
        return True

    def settle(self, *, wait: bool) -> list[tuple[Row, list[RowEvent]]]:
        """Return the last events of rows that left before the previous call, or with ``wait`` of all.

        A copy is launched behind the step in flight. One step later it is done; waiting for it at once would
        hold up the rows that go on.
        """
        due, self._due, self._leaving = self._due, self._leaving, []
        if wait:
            due, self._due = [*due, *self._due], []
        ended: list[tuple[Row, list[RowEvent]]] = []
        for each in due:
            published = self._published(each.row, each.caches, each.tokens)
            ended.append((each.row, [each.finished] if published is None else [published, each.finished]))
        return ended

    def _published(
        self, row: Row, caches: list[Any], tokens: TokenIds, *, provisional: bool = False
    ) -> Published | None:
        """Return the state as an event, waiting until it is computed; None if it cannot be kept."""
        self._suspects.note("publish", (row,))
        try:
            mx.eval([cache.state for cache in caches])  # pyright: ignore[reportUnknownMemberType]
            return Published(row.id, snapshot(caches, tokens, row.request.namespace), provisional)
        except NOT_KEPT:
            self.failed += 1
            return None
