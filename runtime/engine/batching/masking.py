"""Rows whose replies are constrained: which tokens they may take, in the same step as everybody else's.

A mask needs the token of the step before, which is otherwise read only after the next step was launched. So
the model's part of the step is launched first; while it computes, the token is read (it was done earlier),
guides go on, and masks are filled on the host. Only then is the sampling launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx
import numpy as np

from ..errors import ConstraintFailed, EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..port import RowRequest
    from ..prompt import RowGuide
    from .rows import Row

GUIDE_ERRORS: Final = (EngineError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError)
"""What a guide may raise over one row; anything else is a crash of the lane."""


class RowMask:
    """One row's guide while it decodes. Lane thread only.

    The guide hears of a token when the next one is about to be drawn, and never of one that ends the row for
    certain. When it raises, or allows nothing, ``failure`` says why, and ``failed_at`` before which token of
    those drawn here: what is drawn from there on means nothing.
    """

    __slots__ = ("_ends", "_guide", "_taken", "failed_at", "failure")

    def __init__(self, guide: RowGuide, ends: frozenset[int]) -> None:
        self._guide = guide
        self._ends = ends
        self._taken: int | None = None
        self.failure: str | None = None
        self.failed_at = 0

    def next(self, token: int, vocab: int, *, is_last: bool) -> NDArray[np.bool_] | None:
        """Return what may be drawn behind ``token``, the row's input; None for all.

        The first input is the prompt's end, the others were drawn; ``is_last`` says that the row ends with
        this one.
        """
        drawn = self._taken is not None
        self._taken = 0 if self._taken is None else self._taken + 1
        if self.failure is not None or (drawn and (is_last or token in self._ends)):
            return None
        try:
            if drawn:
                self._guide.advance(token)
            return _usable(self._guide.allowed(vocab), vocab)
        except GUIDE_ERRORS as error:
            self.failure, self.failed_at = str(error) or type(error).__name__, self._taken
            return None


def mask_of(request: RowRequest, end_tokens: frozenset[int]) -> RowMask | None:
    """Return the mask of a row behind what it has emitted. Raises one of GUIDE_ERRORS."""
    if request.guide is None:
        return None
    return RowMask(request.guide.start(request.emitted), end_tokens | request.stop_tokens)


def _usable(allowed: NDArray[np.bool_] | None, vocab: int) -> NDArray[np.bool_] | None:
    if allowed is None:
        return None
    if allowed.shape != (vocab,):
        raise ConstraintFailed(f"a mask of shape {allowed.shape} does not fit {vocab} tokens")
    if not allowed.any():
        raise ConstraintFailed("the constraint on the reply allows no token here")
    return allowed


class BatchMasks:
    """The masks of a batch's rows; made anew whenever they change. Lane thread, under its stream."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._masks = [(line, row.mask) for line, row in enumerate(rows) if row.mask is not None]

    def apply(self, logits: mx.array, inputs: mx.array) -> mx.array:
        """Launch ``logits``, read ``inputs`` and return the logits masked, -inf where a token may not be.

        Lines without a mask come back as they are. ``inputs`` should be launched before ``logits``, so that
        reading them does not wait for those.
        """
        mx.async_eval(logits)  # pyright: ignore[reportUnknownMemberType]
        tokens = cast("list[int]", inputs.tolist())
        vocab = logits.shape[-1]
        lines: list[int] = []
        allowed: list[NDArray[np.bool_]] = []
        for line, mask in self._masks:
            here = mask.next(tokens[line], vocab, is_last=self._rows[line].ends_next)
            if here is not None:
                lines.append(line)
                allowed.append(here)
        return logits if not lines else self._masked(logits, lines, allowed)

    def _masked(self, logits: mx.array, lines: list[int], allowed: list[NDArray[np.bool_]]) -> mx.array:
        whole = np.ones(logits.shape, dtype=np.bool_)
        whole[lines] = allowed
        allowed_here = mx.array(whole)  # pyright: ignore[reportArgumentType]
        return mx.where(allowed_here, logits, mx.array(-np.inf, dtype=logits.dtype))


def masks_of(rows: Sequence[Row]) -> BatchMasks | None:
    """Return the masks of a batch, None where no row has one."""
    return BatchMasks(rows) if any(row.mask is not None for row in rows) else None
