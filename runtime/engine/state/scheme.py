"""How a model's attention state is kept: the KV scheme, resolved once (REQUIREMENTS C1, C2; seed §3).

A row's state is plain up to one offset and quantised from there on. That offset follows from the scheme and
the row's prompt alone, never from how prefill was cut into passes, so the same prompt gives the same numbers
however busy the lane is:

* with ``start`` N > 0 it is N, in the prompt or in the reply;
* with ``start`` 0 it is the first offset at which the row's prefill stops for a reason of its own: where it
  publishes, where its prompt ends, or after FLOAT_TOKENS tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import mlx.core as mx

from .caches import quantised
from .layers import leaves, nest, structure_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..batching.rows import Cache, Row

SchemeName: TypeAlias = Literal["bf16", "kv8", "kv4", "config"]

FLOAT_TOKENS: Final = 2048
"""With ``start`` 0, tokens of a cold prompt that are kept in floats at most (mlx-lm's prefill step, which is
where its own loop converts). Attention over floats is faster and exact, and so much memory is bounded."""


@dataclass(frozen=True, slots=True)
class KvChoice:
    """The ``[kv]`` section of the configuration: what is asked for. ``group_size`` is the largest wanted."""

    scheme: str = "bf16"
    group_size: int = 64
    start: int = 0

    @property
    def quantises(self) -> bool:
        """Whether it asks for anything but the model's own floats."""
        return self.scheme != "bf16"


@dataclass(frozen=True, slots=True)
class LayerScheme:
    """One layer's affine quantisation: bits a value, and values that share a scale."""

    bits: int
    group_size: int

    def __str__(self) -> str:
        return f"{self.bits}:{self.group_size}"


@dataclass(frozen=True, slots=True)
class KvScheme:
    """Which cache layers are quantised how, and from which offset on. Immutable; any thread.

    ``layers``: one for each cache layer, nested lists flattened; None keeps the model's own cache. It is
    empty for bf16. ``notes`` say, for an operator, which layers are kept and why.
    """

    name: str = "bf16"
    layers: tuple[LayerScheme | None, ...] = ()
    start: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def quantises(self) -> bool:
        """Whether any layer is converted."""
        return any(layer is not None for layer in self.layers)

    @property
    def key(self) -> str:
        """What a state's bytes depend on: bits and group of every layer, and the start (REQUIREMENTS C4)."""
        if not self.quantises:
            return "bf16"
        runs = ((str(layer) if layer else "own", len(list(same))) for layer, same in groupby(self.layers))
        return f"affine from {self.start}: " + ", ".join(f"{count} x {layer}" for layer, count in runs)

    def converted_at(self, tokens: int) -> bool:
        """Whether a kept state of so many tokens is quantised: its length alone decides."""
        return self.quantises and tokens >= max(self.start, 1)

    def plan(self, row: Row) -> None:
        """Fix at which offset ``row`` converts. After its publication points are known.

        A row that starts from quantised state has none; one that starts from plain state goes on to its own.
        """
        if not self.quantises or self.converted_at(row.cached):
            row.convert_at = None
            return
        stops = (*row.publish_at, len(row.request.tokens) - 1, FLOAT_TOKENS)
        row.convert_at = self.start or max(1, min(stops))

    def settle(self, row: Row) -> None:
        """Convert the row's own caches if its prefill has reached its offset. They must be evaluated.

        Lane thread, under its stream. Each layer is computed and its source freed before the next.
        """
        if row.convert_at is None or row.prefilled < row.convert_at:
            return
        row.convert_at = None
        row.caches = self.converted(row.caches, wait=True)

    def converted(self, caches: list[Cache], *, wait: bool = False) -> list[Cache]:
        """Return the caches under this scheme and empty ``caches``; what is quantised already stays.

        With ``wait`` layer by layer, so that no more than one layer exists twice; else lazily. State at
        offset 0 is left alone: there is nothing in it. For rows that are no part of a batch.
        """
        structure, flat = structure_of(caches), list(leaves(caches))
        caches.clear()
        for place, how in enumerate(self.layers):
            if how is None or is_quantised(flat[place]) or flat[place].empty():
                continue
            twin = quantised(flat[place], how.bits, how.group_size)
            flat[place] = twin
            if wait:
                mx.eval(twin.state)  # pyright: ignore[reportUnknownMemberType]
        self.mark(flat)
        return cast("list[Cache]", nest(structure, iter(flat)))

    def mark(self, caches: Iterable[Any]) -> None:
        """Note on a row's quantised layers that they serve no prefix shorter than ``start``.

        A shorter prefix of the same prompt would be plain: other numbers (seed, "Minimum reusable offsets").
        """
        for cache in leaves(caches):
            if is_quantised(cache):
                cache.reusable_from = self.start


def is_quantised(cache: Any) -> bool:
    """Whether a cache layer holds packed numbers: attention takes its road by the same attribute."""
    return hasattr(cache, "bits")


BF16: Final = KvScheme()
