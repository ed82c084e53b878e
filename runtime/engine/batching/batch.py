"""The rows that decode together: one model call and one sampling pass a step, pipelined.

Step k+1 is launched from step k's still unread tokens, then step k's tokens are read, so the device
computes while the host delivers. With rows whose replies are constrained its sampling is launched once those
tokens are known (masking.py). Joins and leaves happen between launches, on batch caches
(``extend``, ``filter``; caches/ makes them of rows and rows of them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import mlx.core as mx

from ..cpu import rotary as cpu_rotary
from ..state.caches import batch_of, row_of, share_offsets
from .logprobs import Probe
from .masking import masks_of
from .sampling import BatchSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....storage.tokens import TokenIds
    from .logprobs import RawLogprobs
    from .masking import BatchMasks
    from .rows import Row

SETTLE_EVERY: Final = 256
"""Steps after which every cache array is evaluated: a few (padding of recurrent layers) are otherwise
read by no step, and their lazy graphs would grow with every token."""


@dataclass(frozen=True, slots=True)
class _Step:
    rows: tuple[Row, ...]
    tokens: mx.array
    probe: Probe | None
    measured: tuple[mx.array, ...]


class Decoded(NamedTuple):
    """One token of one row. The row may have ended since the step was launched."""

    row: Row
    token: int
    logprobs: RawLogprobs | None


def forward(model: Any, inputs: mx.array, caches: list[Any]) -> mx.array:
    """Return the logits [rows, vocab] of one token for each row, lazily, and put it into the caches."""
    cpu_rotary.keep_angles_of(share_offsets(caches))
    return model(inputs[:, None], cache=caches)[:, -1, :]


class Moving(NamedTuple):
    """A row between two batches: its state, how many tokens this encodes, and the input still to come."""

    row: Row
    caches: list[Any]
    fed: int
    next_input: mx.array


class DecodeBatch:
    """A running batch of rows whose cache layers are of the same kinds. Lane thread only, under its stream.

    Guarantees that each row decodes from its own state whatever joins or leaves. ``rows`` and the
    cache's rows are in the same order. ``launched`` counts steps; ``read_step`` is the number of the
    last step whose tokens are known. One that is not ``shared`` takes a single row and uses its caches as
    they are, whatever they are.
    """

    def __init__(self, model: Any, *, shared: bool = True) -> None:
        self._model = model
        self.shared = shared
        self._caches: list[Any] = []
        self._inputs: mx.array | None = None
        self._sampler: BatchSampler | None = None
        self._probe: Probe | None = None
        self._masks: BatchMasks | None = None
        self._flying: _Step | None = None
        self._unread: _Step | None = None
        self._fed_before: dict[str, int] = {}
        self.rows: list[Row] = []
        self.launched = 0
        self.read_step = 0

    @property
    def in_flight(self) -> bool:
        """Whether a step was launched whose tokens are not yet read."""
        return self._flying is not None

    def join(self, rows: Sequence[Row]) -> None:
        """Take over the caches of prefilled rows; each starts with its last prompt token as input."""
        caches = [row.caches for row in rows]
        for row in rows:
            row.caches = []
            self._fed_before[row.id] = len(row.prompt) - 1 - self.launched
        self._add(rows, caches, mx.array([row.prompt[-1] for row in rows], dtype=mx.uint32))

    def admit(self, moving: Moving) -> None:
        """Take over a row that another batch let go."""
        self._fed_before[moving.row.id] = moving.fed - self.launched
        self._add([moving.row], [moving.caches], moving.next_input)

    def let_go(self, row: Row) -> Moving:
        """Remove a row that decodes on in another batch. Its token in flight is still read here."""
        line = self.rows.index(row)
        caches, fed = self._caches_of(line), self.fed(row)
        assert self._inputs is not None, "a row that decodes has an input"
        moving = Moving(row, caches, fed, self._inputs[line : line + 1])
        self._keep([each for each in range(len(self.rows)) if each != line])
        return moving

    def fed(self, row: Row) -> int:
        """Return how many tokens a row's state encodes, the launched step's too."""
        return self._fed_before[row.id] + self.launched

    def extract(self, row: Row) -> tuple[list[Any], TokenIds]:
        """Return a row's state and the tokens that it encodes: all that were fed, the launched step's too.

        The arrays are lazy and depend on the step in flight.
        """
        return self._caches_of(self.rows.index(row)), row.fed(self.fed(row))

    def drop_ended(self) -> None:
        """Remove the rows that have ended since the last launch."""
        keep = [line for line, row in enumerate(self.rows) if not row.ended]
        if not keep:
            self.clear()
        elif len(keep) < len(self.rows):
            self._keep(keep)

    def clear(self) -> None:
        """Give up all rows and their state."""
        self._flying = self._unread = None
        self._keep([])

    def advance(self) -> list[Decoded]:
        """Launch the next step, then return the tokens of the one before (none on the first call)."""
        self.launch()
        return self.read()

    def launch(self) -> bool:
        """Launch the next step and return whether there was one to launch.

        There is none without rows, nor when every row is known to end with the tokens in flight. Those are
        to be read before the next launch.
        """
        self._unread, self._flying = self._flying, None
        if self.rows and (self._unread is None or not all(row.ends_next for row in self.rows)):
            self._flying = self._launch()
        return self._flying is not None

    def wait(self) -> None:
        """Block until the step in flight is computed."""
        if self._flying is not None:
            mx.eval(self._flying.tokens)  # pyright: ignore[reportUnknownMemberType]

    def read(self) -> list[Decoded]:
        """Return the tokens of the step that was in flight when the newest was launched."""
        before, self._unread = self._unread, None
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
        if self._sampler is None:
            self._masks = masks_of(self.rows)
        if self._masks is not None:
            mx.async_eval(self._inputs)  # pyright: ignore[reportUnknownMemberType]
        logits = forward(self._model, self._inputs, self._caches)
        sampler = self._grouped(logits.shape[-1])
        masked = logits if self._masks is None else self._masks.apply(logits, self._inputs)
        tokens = sampler.sample(masked)
        measured = self._probe.measure(logits, tokens) if self._probe is not None else ()
        self.launched += 1
        extra = [cache.state for cache in self._caches] if self.launched % SETTLE_EVERY == 0 else []
        mx.async_eval(  # pyright: ignore[reportUnknownMemberType]
            tokens, *measured, *sampler.pending(), *extra
        )
        self._inputs = tokens
        return _Step(tuple(self.rows), tokens, self._probe, measured)

    def _add(self, rows: Sequence[Row], caches: Sequence[list[Any]], inputs: mx.array) -> None:
        if not self.shared:
            assert len(rows) == 1, "rows that cannot share a batch come alone"
            assert not self.rows, "a batch of its own is taken"
            self._caches, self._inputs = caches[0], inputs
        else:
            layers = [batch_of(list(layer)) for layer in zip(*caches, strict=True)]
            if self._inputs is None:
                self._caches, self._inputs = layers, inputs
            else:
                for mine, theirs in zip(self._caches, layers, strict=True):
                    mine.extend(theirs)
                self._inputs = mx.concatenate([self._inputs, inputs])
        self.rows.extend(rows)
        self._regroup()

    def _caches_of(self, line: int) -> list[Any]:
        if not self.shared:
            return list(self._caches)
        alone = len(self.rows) == 1
        return [row_of(cache, line, alone=alone) for cache in self._caches]

    def _keep(self, lines: list[int]) -> None:
        """Keep these rows only. A step in flight is left to be read."""
        self._regroup()
        self.rows = [self.rows[line] for line in lines]
        self._fed_before = {row.id: self._fed_before[row.id] for row in self.rows}
        if not lines:
            self._caches, self._inputs = [], None
            return
        for cache in self._caches:
            cache.filter(lines)
        assert self._inputs is not None
        self._inputs = self._inputs[mx.array(lines)]

    def _grouped(self, vocab: int) -> BatchSampler:
        if self._sampler is None:
            self._sampler = BatchSampler([row.sampler for row in self.rows], vocab)
            asked = any(row.request.top_logprobs is not None for row in self.rows)
            self._probe = Probe(self.rows, vocab) if asked else None
        return self._sampler

    def _regroup(self) -> None:
        if self._sampler is not None:
            self._sampler.store()
        self._sampler = self._probe = None
