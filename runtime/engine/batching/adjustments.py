"""Logit bias and penalties of the rows of a batch, as matrices over the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..port import Sampling
    from .sampling import RowSampler


def column(values: list[float]) -> mx.array:
    """Return one value a row, to be spread over the vocabulary."""
    return mx.array(values, dtype=mx.float32)[:, None]


class Adjustments:
    """Bias and penalties of the rows that have any, as matrices over the vocabulary."""

    def __init__(self, rows: Sequence[RowSampler], vocab: int) -> None:
        self.rows = rows
        settings = [row.settings for row in rows]
        self._repetition = column([each.repetition_penalty for each in settings])
        self._presence = column([each.presence_penalty for each in settings])
        self._frequency = column([each.frequency_penalty for each in settings])
        self._bias = mx.stack([_bias_of(each, vocab) for each in settings])
        self._in_prompt = mx.stack([_seen_in(row, vocab) for row in rows])
        self.counts = mx.stack([_counts_of(row, vocab) for row in rows])
        self._lines = mx.arange(len(rows))

    def apply(self, logits: mx.array) -> mx.array:
        """Return adjusted float32 logits. Repetition looks at prompt and output, the others at output."""
        logits = logits.astype(mx.float32) + self._bias
        used = self.counts > 0
        damped = mx.where(logits < 0, logits * self._repetition, logits / self._repetition)
        logits = mx.where(self._in_prompt | used, damped, logits)
        return logits - self._presence * used - self._frequency * self.counts

    def note(self, tokens: mx.array) -> None:
        """Count the tokens just drawn (still lazy: nothing waits for them)."""
        self.counts = self.counts.at[self._lines, tokens].add(1.0)  # pyright: ignore[reportUnknownMemberType]

    def store(self) -> None:
        """Hand each row its counts, so that they outlive this grouping."""
        for line, row in enumerate(self.rows):
            row.counts = self.counts[line]


def _bias_of(settings: Sampling, vocab: int) -> mx.array:
    bias = mx.zeros((vocab,), dtype=mx.float32)
    if settings.logit_bias:
        bias[mx.array(list(settings.logit_bias))] = mx.array(
            list(settings.logit_bias.values()), dtype=mx.float32
        )
    return bias


def _seen_in(row: RowSampler, vocab: int) -> mx.array:
    seen = mx.zeros((vocab,), dtype=mx.bool_)
    if row.settings.repetition_penalty != 1.0 and row.prompt:
        seen[mx.array(sorted(set(row.prompt)))] = True
    return seen


def _counts_of(row: RowSampler, vocab: int) -> mx.array:
    if row.counts is not None:
        return row.counts
    if not row.emitted:
        return mx.zeros((vocab,), dtype=mx.float32)
    return mx.array(np.bincount(row.emitted, minlength=vocab).astype(np.float32))
