"""How rows pick their next tokens: one vectorised pass over the batch, chance from each row alone.

Order of work, per row: logit bias, repetition, presence and frequency penalties; then, on the model's
own distribution, top-p, min-p and top-k as thresholds that must all be passed; then temperature; then
one draw. That is mlx-lm's order, so settings carry over. Two differences: tokens that tie with the last
one that top-k keeps are kept too, and penalties look back without a limit, presence and frequency over
the output alone.

Chance: the draw at sequence position ``n`` uses the key ``(seed, n)`` mixed on the host. The position
counts the prompt and what was emitted, so a resumed request draws on as it would have. The draw is
Gumbel-max, not an inverse CDF: a rounding difference of the logits between batch shapes can only change
it where two perturbed logits tie, while in a CDF it moves every later boundary.
"""

from __future__ import annotations

import secrets
from itertools import chain
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np

from .adjustments import Adjustments, column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..port import Sampling

GREEDY_BELOW: Final = 1e-4
"""Temperatures below this are greedy: dividing by them would only overflow."""

_MASK: Final = (1 << 64) - 1
_OFF: Final = float("-inf")


def draw_keys(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the keys of many draws, [rows, 2] words of 32 bits: splitmix64 of seed and position."""
    word = seeds * np.uint64(0xD1342543DE82EF95) + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    halves = np.stack([word >> np.uint64(32), word & np.uint64(0xFFFFFFFF)], axis=-1)
    return halves.astype(np.uint32)


class RowSampler:
    """One row's settings and what they remember. A row without a seed gets one of its own.

    ``emitted`` is output that the row has already given, in an earlier lane: chance and penalties go on
    behind it. Settings that leave only the best token are greedy, so that a tie falls as it does there.
    """

    __slots__ = ("adjusts", "counts", "emitted", "greedy", "position", "prompt", "seed", "settings")

    def __init__(self, settings: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        self.settings = settings
        self.seed = secrets.randbits(64) if settings.seed is None else settings.seed & _MASK
        self.prompt = prompt
        self.emitted = emitted
        self.position = len(prompt) + len(emitted)
        self.greedy = (
            settings.temperature < GREEDY_BELOW
            or settings.top_k == 1
            or settings.top_p <= 0.0
            or settings.min_p >= 1.0
        )
        self.adjusts = (
            settings.repetition_penalty != 1.0
            or settings.presence_penalty != 0.0
            or settings.frequency_penalty != 0.0
            or bool(settings.logit_bias)
        )
        self.counts: mx.array | None = None

    def ranks(self, vocab: int) -> int:
        """Return how many of the best logits the row's filters must see in order; 0 for none."""
        if 0 < self.settings.top_k < vocab:
            return self.settings.top_k
        return vocab if self.settings.top_p < 1.0 else 0


class _Draw:
    """Rows that draw with the same depth of ranking: one set of kernels for all of them."""

    def __init__(self, rows: Sequence[RowSampler], ranks: int, vocab: int) -> None:
        self._seeds = np.array([row.seed for row in rows], dtype=np.uint64)
        self._positions = np.array([row.position for row in rows], dtype=np.uint64)
        self._ranks = ranks
        settings = [row.settings for row in rows]
        self._temperature = column([each.temperature for each in settings])
        top_k = [each.top_k if 0 < each.top_k < vocab else ranks for each in settings]
        self._last_rank = mx.array(top_k)[:, None] - 1
        self._limits_rank = any(each.top_k > 0 for each in settings)
        self._top_p = column([each.top_p for each in settings]) if _any_top_p(settings) else None
        self._min_p = (
            column([each.min_p for each in settings]) if any(s.min_p > 0 for s in settings) else None
        )

    def draw(self, logits: mx.array) -> mx.array:
        logits = logits.astype(mx.float32)
        floor = self._floor(logits)
        if floor is not None:
            logits = mx.where(logits < floor, _OFF, logits)
        keys = mx.array(draw_keys(self._seeds, self._positions))
        self._positions += np.uint64(1)
        return _gumbel_argmax(logits / self._temperature, keys)

    def _floor(self, logits: mx.array) -> mx.array | None:
        """Return the logit below which a row's tokens are out, or None when no filter is on."""
        floors: list[mx.array] = []
        if self._min_p is not None:
            floors.append(mx.max(logits, axis=-1, keepdims=True) + mx.log(self._min_p))
        if self._ranks:
            full = self._ranks == logits.shape[-1]
            best = logits if full else mx.topk(logits, self._ranks, axis=-1)
            ranked = -mx.sort(-best, axis=-1)
            if self._limits_rank:
                floors.append(mx.take_along_axis(ranked, self._last_rank, axis=-1))
            if self._top_p is not None:
                floors.append(self._nucleus_floor(ranked, logits, self._top_p))
        if not floors:
            return None
        return (
            floors[0] if len(floors) == 1 else mx.max(mx.concatenate(floors, axis=-1), axis=-1, keepdims=True)
        )

    @staticmethod
    def _nucleus_floor(ranked: mx.array, logits: mx.array, top_p: mx.array) -> mx.array:
        """The smallest set of best tokens whose mass reaches top-p; tokens past it are below its last."""
        mass = mx.exp(ranked - mx.logsumexp(logits, axis=-1, keepdims=True))
        before = mx.cumsum(mass, axis=-1) - mass
        kept = mx.maximum(mx.sum(before < top_p, axis=-1, keepdims=True), 1)
        floor = mx.take_along_axis(ranked, kept - 1, axis=-1)
        return mx.where(top_p < 1.0, floor, _OFF)


def _any_top_p(settings: Sequence[Sampling]) -> bool:
    return any(each.top_p < 1.0 for each in settings)


def _one_row(logits: mx.array, key: mx.array) -> mx.array:
    return mx.random.categorical(logits, key=key)


_gumbel_argmax = mx.vmap(_one_row)


class BatchSampler:
    """Picks the next token of every row of a batch; made anew whenever the batch's rows change.

    All-greedy rows without adjustments cost one argmax. Otherwise at most four groups, whatever the
    number of rows: greedy, and drawing rows that rank nothing, their best k, or the whole vocabulary.
    Lane thread, under its stream.
    """

    def __init__(self, rows: Sequence[RowSampler], vocab: int) -> None:
        self._rows = rows
        self._vocab = vocab
        adjusted = [line for line, row in enumerate(rows) if row.adjusts]
        self._adjusted = _lines(adjusted, len(rows))
        self._adjustments = Adjustments([rows[line] for line in adjusted], vocab) if adjusted else None
        groups = self._grouped(rows, vocab)
        self._groups = [(_lines(lines, len(rows)), draw) for lines, draw in groups]
        order = list(chain.from_iterable(lines for lines, _ in groups))
        self._inverse = mx.array(sorted(range(len(order)), key=order.__getitem__))
        self._sampled = 0

    @staticmethod
    def _grouped(rows: Sequence[RowSampler], vocab: int) -> list[tuple[list[int], _Draw | None]]:
        greedy = [line for line, row in enumerate(rows) if row.greedy]
        drawing: dict[str, list[int]] = {}
        for line, row in enumerate(rows):
            if not row.greedy:
                ranks = row.ranks(vocab)
                kind = "none" if not ranks else "all" if ranks == vocab else "best"
                drawing.setdefault(kind, []).append(line)
        groups: list[tuple[list[int], _Draw | None]] = [(greedy, None)] if greedy else []
        for lines in drawing.values():
            members = [rows[line] for line in lines]
            groups.append((lines, _Draw(members, max(row.ranks(vocab) for row in members), vocab)))
        return groups

    def sample(self, logits: mx.array) -> mx.array:
        """Return one token per row, lazily. ``logits`` is [rows, vocab] in the model's dtype."""
        logits = self._adjust(logits)
        picked = [_pick(draw, logits if lines is None else logits[lines]) for lines, draw in self._groups]
        tokens = picked[0] if len(picked) == 1 else mx.concatenate(picked)[self._inverse]
        if self._adjustments is not None:
            self._adjustments.note(tokens if self._adjusted is None else tokens[self._adjusted])
        self._sampled += 1
        return tokens

    def _adjust(self, logits: mx.array) -> mx.array:
        if self._adjustments is None:
            return logits
        if self._adjusted is None:
            return self._adjustments.apply(logits)
        changed = logits.astype(mx.float32)
        changed[self._adjusted] = self._adjustments.apply(logits[self._adjusted])
        return changed

    def pending(self) -> list[mx.array]:
        """Return what must be evaluated with the tokens, so that lazy graphs do not grow."""
        return [] if self._adjustments is None else [self._adjustments.counts]

    def store(self) -> None:
        """Put what rows remember back into them; call before the batch is grouped anew."""
        if self._adjustments is not None:
            self._adjustments.store()
        for row in self._rows:
            row.position += self._sampled
        self._sampled = 0


def _pick(draw: _Draw | None, logits: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1).astype(mx.uint32) if draw is None else draw.draw(logits)


def _lines(lines: list[int], rows: int) -> mx.array | None:
    """Return an index of ``lines``, or None where it would be all rows."""
    return None if len(lines) == rows else mx.array(lines, dtype=mx.uint32)
