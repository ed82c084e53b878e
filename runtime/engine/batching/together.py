"""Several short prompts in one model call (issue 4: a burst of them).

Every call reads all weights and runs every operation once, however few tokens it has: eight prompts of 40
tokens cost about half as much together (benchmarks/burst.py). They are padded on the left, as decoding rows
are, and each row then takes its own state out; so all that follows (publishing, conversion, joining) is as
after a call of its own. As for rows that decode in company, last bits may differ from those of a row alone.

Only rows that start from nothing, with layers of the plain growing kind: padding leaves a trace in a
recurrent state and takes places in a ring, and rows behind prefixes of other lengths had it in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ..state.caches import share_offsets
from ..state.caches.batch_growing import BatchGrowingKVCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .rows import Row

Turn: TypeAlias = "tuple[Row, int]"
"""A row, and how many tokens of its prompt come next."""

LONGEST_SHARED: Final = 128
"""A call of more tokens is worth its weights, and gains little."""
MOST_PADDING: Final = 16
"""Blank tokens of a row: beyond that they cost more than the call they save."""
_WASTE: Final = 1.25
"""Tokens of a shared call at most, as a multiple of those that rows asked for."""


def calls_of(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Return the turns, each list a model call, in which no padding costs more than it saves.

    Every row must have its caches already. Neighbours by length share a call, the others have one each.
    """
    calls = [[turn] for turn in turns if not _may_share(turn)]
    sharing: list[Turn] = []
    for turn in sorted((turn for turn in turns if _may_share(turn)), key=_tokens):
        if sharing and not _fits(sharing, _tokens(turn)):
            calls.append(sharing)
            sharing = []
        sharing.append(turn)
    return [*calls, sharing] if sharing else calls


def prefill_together(model: Any, turns: Sequence[Turn]) -> None:
    """Run the turns in one call and give every row its state; lazy, on the lane's stream.

    The rows' caches are replaced by such as the model would have filled for each alone.
    """
    longest = max(count for _, count in turns)
    pads = [longest - count for _, count in turns]
    layers = [BatchGrowingKVCache(pads) for _ in turns[0][0].caches]
    share_offsets(layers)
    tokens = [[0] * pad + row.prompt[:count] for pad, (row, count) in zip(pads, turns, strict=True)]
    model(mx.array(tokens), cache=layers)
    for line, (row, _) in enumerate(turns):
        row.caches = [layer.extract(line) for layer in layers]


def _may_share(turn: Turn) -> bool:
    row, count = turn
    return (
        row.prefilled == 0
        and 0 < count <= LONGEST_SHARED
        and all(type(cache) is KVCache for cache in row.caches)
    )


def _fits(sharing: Sequence[Turn], longest: int) -> bool:
    """Whether a row with ``longest`` tokens, the most of all, may come to those."""
    asked = longest + sum(map(_tokens, sharing))
    padded = longest * (len(sharing) + 1)
    return longest - _tokens(sharing[0]) <= MOST_PADDING and padded <= _WASTE * asked


def _tokens(turn: Turn) -> int:
    return turn[1]
