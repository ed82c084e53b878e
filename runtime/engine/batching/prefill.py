"""Prompts on their way into caches: whose turn it is, and the passes that run them.

Between passes every row has a cache of its own, without padding, so the state can be lent or published at
any chunk. Short prompts share a pass's budget and, on a CPU, its model call (together.py).

Turn: the shortest remaining prompt first, so a short prompt that arrives during a long prefill waits
for one pass, not for all of it, and equal prompts finish in order instead of all late. Every
ELDER_TURN-th turn belongs to the row that came first, so the longest prompt is never starved: it gets at
least that share however many short ones keep coming. Turns, not clocks: the order is reproducible.

A pass that completes prompts is not stretched by part of another: those rows decode at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from .pace import RateWindow
from .together import calls_of, prefill_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .chunks import ChunkSizer, PassBudget
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

    def plan(self, budget: PassBudget) -> list[tuple[Row, int]]:
        """Return which rows prefill how many tokens in a pass of that budget, in order.

        A row comes up at most once. A row with nothing to prefill costs nothing and comes with 0.
        """
        candidates = list(self.rows)
        turns: list[tuple[Row, int]] = []
        completes = False
        while candidates:
            row = self._next(candidates)
            candidates.remove(row)
            count = budget.grant(row.prefilled, row.to_stop)
            complete = count == row.remaining
            if not complete and (completes or not count):
                break
            completes = completes or complete
            turns.append((row, count))
            self._turns += 1
        return turns

    def _next(self, candidates: list[Row]) -> Row:
        if (self._turns + 1) % ELDER_TURN == 0:
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

    @property
    def rows(self) -> list[Row]:
        """The rows that have a turn in it."""
        return [row for row, _ in self.turns]

    def wait(self) -> None:
        """Block until the chunks are in their caches. Errors of the model come out here."""
        mx.eval(*self.states)  # pyright: ignore[reportUnknownMemberType]


def launch_pass(
    model: Any, turns: list[tuple[Row, int]], step: int, *, together: bool = False
) -> PrefillPass:
    """Start computing the chunks and return at once. The logits are never evaluated.

    ``together``: short prompts may share a model call.
    """
    for row, _ in turns:
        if not row.caches:
            row.caches = cast("list[Cache]", make_prompt_cache(model))
    chunks = [turn for turn in turns if turn[1]]
    for call in calls_of(chunks) if together else [[turn] for turn in chunks]:
        if len(call) > 1:
            prefill_together(model, call)
            continue
        ((row, count),) = call
        chunk = row.prompt[row.prefilled : row.prefilled + count]
        model(mx.array([chunk]), cache=row.caches)
    states: list[object] = [[cache.state for cache in row.caches] for row, _ in chunks]
    if states:
        mx.async_eval(*states)  # pyright: ignore[reportUnknownMemberType]
    return PrefillPass(tuple(turns), tuple(states), step)


def _middle(done: PrefillPass) -> float:
    """Return how many tokens stand before a token of the pass, on average over its tokens."""
    return sum(count * (row.prefilled + count / 2) for row, count in done.turns) / done.tokens


class Prefiller:
    """Plans passes over a queue of rows, runs one at a time, and learns what they take. Lane thread only.

    ``together``: short prompts share model calls.
    """

    def __init__(
        self,
        model: Any,
        sizer: ChunkSizer,
        clock: Callable[[], float] = time.perf_counter,
        *,
        together: bool = False,
    ) -> None:
        self._model = model
        self._together = together
        self._sizer = sizer
        self._clock = clock
        self._began_s = 0.0
        self.queue = PrefillQueue()
        self.running: PrefillPass | None = None
        self.rates = RateWindow()
        self.prefilled_tokens = 0

    def plan(self, *, decoding: bool, step_s: float) -> list[tuple[Row, int]]:
        """Return the turns of the next pass."""
        return self.queue.plan(self._sizer.budget(decoding=decoding, step_s=step_s))

    def worth_holding(self, step_s: float, limit_s: float) -> bool:
        """Whether rows that could decode should wait for all prompts of the queue."""
        prompts = [(row.prefilled, row.remaining) for row in self.queue.rows]
        return bool(prompts) and self._sizer.worth_holding(prompts, step_s, limit_s)

    def launch(self, turns: list[tuple[Row, int]], step: int) -> PrefillPass:
        """Start a pass of these turns behind decode step ``step``."""
        self._began_s = self._clock()
        for row, _ in turns:
            if row.prefill_started_s is None:
                row.prefill_started_s = self._began_s
        self.running = launch_pass(self._model, turns, step, together=self._together)
        return self.running

    def wait(self) -> float:
        """See the running pass through; return the seconds since its launch."""
        assert self.running is not None, "nothing runs"
        self.running.wait()
        return self._clock() - self._began_s

    def done(self, seconds: float) -> list[tuple[Row, int]]:
        """Account for the running pass, which took ``seconds``; return the turns of rows that go on."""
        done, self.running = self.running, None
        assert done is not None, "nothing runs"
        if done.tokens:
            self._sizer.record(done.tokens, _middle(done), seconds)
            self.rates.record(done.tokens, seconds)
            self.prefilled_tokens += done.tokens
        turns = [(row, count) for row, count in done.turns if not row.ended]
        for row, count in turns:
            row.prefilled += count
        self.queue.discard(row for row, _ in turns if row.remaining == 0)
        return turns

    def drop_ended(self) -> None:
        """Forget the rows that have ended."""
        self.queue.discard([row for row in self.queue.rows if row.ended])

    def forget(self) -> None:
        """Give up all rows and the running pass."""
        self.queue = PrefillQueue()
        self.running = None
