"""The rows that decode together: one model call and one sampling pass a step, pipelined.

Step k+1 is launched from step k's still unread tokens, then step k's tokens are read, so the device
computes while the host delivers. Joins and leaves happen between launches, on mlx-lm's batch caches
(``merge``, ``extend``, ``filter``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from .sampling import BatchSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...storage.tokens import TokenIds
    from .rows import Row

SETTLE_EVERY: Final = 256
"""Steps after which every cache array is evaluated: a few (padding of recurrent layers) are otherwise
read by no step, and their lazy graphs would grow with every token."""


class RawLogprobs(NamedTuple):
    """Log-probabilities of one token under the model itself, before bias, penalties and temperature."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class _Step:
    rows: tuple[Row, ...]
    tokens: mx.array
    probe: _Probe | None
    measured: tuple[mx.array, ...]


class _Probe:
    """Log-probabilities for the rows that asked, and for no other."""

    def __init__(self, rows: Sequence[Row], vocab: int) -> None:
        asked = [(line, row.request.top_logprobs) for line, row in enumerate(rows)]
        self._wanted = {line: top for line, top in asked if top is not None}
        self._lines = mx.array(list(self._wanted), dtype=mx.uint32)
        self._top = min(max(self._wanted.values()), vocab)

    def measure(self, logits: mx.array, tokens: mx.array) -> tuple[mx.array, ...]:
        logits = logits[self._lines].astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logprobs, tokens[self._lines][:, None], axis=-1)[:, 0]
        if not self._top:
            return (chosen,)
        best = mx.argpartition(-logprobs, kth=self._top - 1, axis=-1)[:, : self._top]
        return chosen, best, mx.take_along_axis(logprobs, best, axis=-1)

    def read(self, measured: tuple[mx.array, ...]) -> dict[int, RawLogprobs]:
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


class Decoded(NamedTuple):
    """One token of one row. The row may have ended since the step was launched."""

    row: Row
    token: int
    logprobs: RawLogprobs | None


def _merged(caches: list[Any]) -> Any:
    """Return one batch cache over the rows' caches. A row alone keeps its buffers: nothing is copied."""
    first: Any = caches[0]
    if len(caches) > 1 or type(cast("object", first)) is not KVCache or first.keys is None:
        return first.merge(caches)
    merged: Any = BatchKVCache([0])
    merged.keys, merged.values = first.keys, first.values
    merged.offset = mx.array([first.offset])
    merged._idx = first.offset  # noqa: SLF001 - its name for how many tokens its rows hold
    return merged


def _extracted(cache: Any, line: int, *, alone: bool) -> Any:
    """Return one row's cache. A row alone, which has no padding, hands over its buffers."""
    if not alone or type(cast("object", cache)) is not BatchKVCache:
        return cache.extract(line)
    single: Any = KVCache()
    single.keys, single.values = cache.keys.view(cache.keys.dtype), cache.values.view(cache.values.dtype)
    single.offset = cache._idx  # noqa: SLF001
    return single


class DecodeBatch:
    """A running batch. Lane thread only, under the lane's stream.

    Guarantees that each row decodes from its own state whatever joins or leaves. ``rows`` and the
    cache's rows are in the same order. ``launched`` counts steps; ``read_step`` is the number of the
    last step whose tokens are known.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._caches: list[Any] = []
        self._inputs: mx.array | None = None
        self._sampler: BatchSampler | None = None
        self._probe: _Probe | None = None
        self._flying: _Step | None = None
        self._joined: dict[str, int] = {}
        self.rows: list[Row] = []
        self.launched = 0
        self.read_step = 0

    @property
    def in_flight(self) -> bool:
        """Whether a step was launched whose tokens are not yet read."""
        return self._flying is not None

    def join(self, rows: Sequence[Row]) -> None:
        """Take over the caches of prefilled rows; each starts with its last prompt token as input."""
        layers = zip(*(row.caches for row in rows), strict=True)
        caches = [_merged(list(layer)) for layer in layers]
        inputs = mx.array([row.prompt[-1] for row in rows], dtype=mx.uint32)
        if self._inputs is None:
            self._caches, self._inputs = caches, inputs
        else:
            for mine, theirs in zip(self._caches, caches, strict=True):
                mine.extend(theirs)
            self._inputs = mx.concatenate([self._inputs, inputs])
        for row in rows:
            row.caches = []
            self._joined[row.id] = self.launched
        self.rows.extend(rows)
        self._regroup()

    def extract(self, row: Row) -> tuple[list[Any], TokenIds]:
        """Return a row's state and the tokens that it encodes: all that were fed, the launched step's too.

        The arrays are lazy and depend on the step in flight.
        """
        line = self.rows.index(row)
        fed = len(row.prompt) - 1 + self.launched - self._joined[row.id]
        alone = len(self.rows) == 1
        return [_extracted(cache, line, alone=alone) for cache in self._caches], row.fed(fed)

    def drop_ended(self) -> None:
        """Remove the rows that have ended since the last launch."""
        keep = [line for line, row in enumerate(self.rows) if not row.ended]
        if len(keep) == len(self.rows):
            return
        if not keep:
            self.clear()
            return
        for cache in self._caches:
            cache.filter(keep)
        assert self._inputs is not None
        self._inputs = self._inputs[mx.array(keep)]
        self.rows = [self.rows[line] for line in keep]
        self._joined = {row.id: self._joined[row.id] for row in self.rows}
        self._regroup()

    def clear(self) -> None:
        """Give up all rows and their state."""
        self.rows, self._caches, self._inputs, self._flying = [], [], None, None
        self._joined = {}
        self._regroup()

    def advance(self) -> list[Decoded]:
        """Launch the next step, then return the tokens of the one before (none on the first call).

        No step is launched when every row is known to end with the tokens about to be read.
        """
        before = self._flying
        self._flying = None
        if before is None or not all(row.ends_next for row in self.rows):
            self._flying = self._launch()
        if before is None:
            return []
        tokens = cast("list[int]", before.tokens.tolist())
        self.read_step = self.launched - (self._flying is not None)
        logprobs = before.probe.read(before.measured) if before.probe is not None else {}
        return [
            Decoded(row, token, logprobs.get(line))
            for line, (row, token) in enumerate(zip(before.rows, tokens, strict=True))
        ]

    def _launch(self) -> _Step:
        assert self._inputs is not None, "a step needs rows"
        logits: mx.array = self._model(self._inputs[:, None], cache=self._caches)[:, -1, :]
        sampler = self._grouped(logits.shape[-1])
        tokens = sampler.sample(logits)
        measured = self._probe.measure(logits, tokens) if self._probe is not None else ()
        self.launched += 1
        extra = [cache.state for cache in self._caches] if self.launched % SETTLE_EVERY == 0 else []
        mx.async_eval(  # pyright: ignore[reportUnknownMemberType]
            tokens, *measured, *sampler.pending(), *extra
        )
        self._inputs = tokens
        return _Step(tuple(self.rows), tokens, self._probe, measured)

    def _grouped(self, vocab: int) -> BatchSampler:
        if self._sampler is None:
            self._sampler = BatchSampler([row.sampler for row in self.rows], vocab)
            asked = any(row.request.top_logprobs is not None for row in self.rows)
            self._probe = _Probe(self.rows, vocab) if asked else None
        return self._sampler

    def _regroup(self) -> None:
        if self._sampler is not None:
            self._sampler.store()
        self._sampler = self._probe = None
