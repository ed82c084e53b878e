"""Prompts on their way into caches: whose turn it is, and the passes that run them.

Rows are prefilled alone, each in its own cache: no padding, so a row's state does not depend on its
neighbours, and the state can be lent or published at any chunk. Short prompts share a pass's budget
one after the other.

Turn: the shortest remaining prompt first, so a short prompt that arrives during a long prefill waits
for one pass, not for all of it, and equal prompts finish in order instead of all late. Every
ELDER_TURN-th turn belongs to the row that came first, so the longest prompt is never starved: it gets at
least that share however many short ones keep coming. Turns, not clocks: the order is reproducible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .rows import Cache, Row

ELDER_TURN: Final = 4


class PrefillQueue:
    """Rows that hold a place in the lane and whose prompts are not yet in their caches."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._turns = 0

    def add(self, row: Row) -> None:
        """Append a row; rows stay in order of arrival."""
        self.rows.append(row)

    def discard(self, gone: Iterable[Row]) -> None:
        """Forget rows that ended or whose prompt is complete."""
        ids = {id(row) for row in gone}
        self.rows = [row for row in self.rows if id(row) not in ids]

    def plan(self, budget: int) -> list[tuple[Row, int]]:
        """Return which rows prefill how many tokens in a pass of ``budget`` tokens, in order.

        A row comes up at most once. A row with nothing to prefill costs nothing and comes with 0.
        """
        candidates = list(self.rows)
        turns: list[tuple[Row, int]] = []
        while candidates and budget > 0:
            row = self._next(candidates)
            candidates.remove(row)
            count = min(row.to_stop, budget)
            budget -= count
            turns.append((row, count))
        return turns

    def _next(self, candidates: list[Row]) -> Row:
        self._turns += 1
        if self._turns % ELDER_TURN == 0:
            return candidates[0]
        return min(candidates, key=_remaining)


def _remaining(row: Row) -> int:
    return row.remaining


@dataclass(frozen=True, slots=True)
class PrefillPass:
    """Chunks that were launched together and are done when ``states`` are evaluated.

    ``step`` is the number of decode steps launched before it: a read of a later step proves it done.
    """

    turns: tuple[tuple[Row, int], ...]
    states: tuple[object, ...]
    step: int

    @property
    def tokens(self) -> int:
        """Prompt tokens in this pass."""
        return sum(count for _, count in self.turns)

    def wait(self) -> None:
        """Block until the chunks are in their caches. Errors of the model come out here."""
        mx.eval(*self.states)  # pyright: ignore[reportUnknownMemberType]


def launch_pass(model: Any, turns: list[tuple[Row, int]], step: int) -> PrefillPass:
    """Start computing the chunks and return at once. The logits are never evaluated."""
    states: list[object] = []
    for row, count in turns:
        if not row.caches:
            row.caches = cast("list[Cache]", make_prompt_cache(model))
        if count:
            chunk = row.prompt[row.prefilled : row.prefilled + count]
            model(mx.array([chunk]), cache=row.caches)
            states.append([cache.state for cache in row.caches])
    if states:
        mx.async_eval(*states)  # pyright: ignore[reportUnknownMemberType]
    return PrefillPass(tuple(turns), tuple(states), step)
