"""Log-probabilities of decoded tokens, measured beside the sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .rows import Row


class RawLogprobs(NamedTuple):
    """Log-probabilities of one token under the model itself, before bias, penalties and temperature."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class Probe:
    """Log-probabilities for the rows that asked, and for no other."""

    def __init__(self, rows: Sequence[Row], vocab: int) -> None:
        asked = [(line, row.request.top_logprobs) for line, row in enumerate(rows)]
        self._wanted = {line: top for line, top in asked if top is not None}
        self._lines = mx.array(list(self._wanted), dtype=mx.uint32)
        self._top = min(max(self._wanted.values()), vocab)

    def measure(self, logits: mx.array, tokens: mx.array) -> tuple[mx.array, ...]:
        """Return, lazily, what ``read`` makes log-probabilities of; ``logits`` are the model's own."""
        logits = logits[self._lines].astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logprobs, tokens[self._lines][:, None], axis=-1)[:, 0]
        if not self._top:
            return (chosen,)
        best = mx.argpartition(-logprobs, kth=self._top - 1, axis=-1)[:, : self._top]
        return chosen, best, mx.take_along_axis(logprobs, best, axis=-1)

    def read(self, measured: tuple[mx.array, ...]) -> dict[int, RawLogprobs]:
        """Return the log-probabilities by the row's place in the batch."""
        chosen = cast("list[float]", measured[0].tolist())
        none: list[list[tuple[int, float]]] = [[] for _ in chosen]
        best = none if len(measured) == 1 else _ranked(measured[1], measured[2])
        return {
            line: RawLogprobs(chosen[place], tuple(best[place][:top]))
            for place, (line, top) in enumerate(self._wanted.items())
        }


def _ranked(ids: mx.array, values: mx.array) -> list[list[tuple[int, float]]]:
    """Return each line's alternatives, best first; equal ones by id."""
    rows = zip(cast("list[list[int]]", ids.tolist()), cast("list[list[float]]", values.tolist()), strict=True)
    return [sorted(zip(*row, strict=True), key=_by_logprob) for row in rows]


def _by_logprob(pair: tuple[int, float]) -> tuple[float, int]:
    return -pair[1], pair[0]
