"""``kv:rotating``: mlx-lm's RotatingKVCache, a window of the last ``max_size`` tokens.

The ring is kept as it lies, with ``idx``, the row that is written next: decode sums over rows in the order in
which they lie, so only a ring of the same phase continues bit for bit. After a prefill chunk of S tokens
mlx-lm holds up to ``max_size + S - 1`` rows in temporal order and drops the oldest ones at the next update,
whatever that is; a checkpoint leaves those out, which gives the same ring from then on.

Before the wrap (``offset < max_size``) rows are in temporal order and ``idx`` is the offset, so a shorter
prefix is the same rows with a smaller offset. After it, older rows are gone: no trim.

``kv:rotating-quant:<bits>:<group>`` is the same ring in packed numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlx_lm.models.cache import RotatingKVCache

from ...errors import StateMismatch
from ..caches.rotating_quantised import RotatingQuantizedKVCache
from .plain import growing_capacity
from .quantised import halves_of, triples_of
from .tensors import TOKEN_AXIS, LayerState, alias, held_rows, require_offset, reusable_from, with_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx

    from .....storage.spec import LayerSpec
    from .tensors import Runs


class RingCodec:
    """Geometry: ``max_size``, ``keep`` (rows at the front that never leave) and ``idx``."""

    def signature(self, cache: Any) -> str:
        """Return ``kv:rotating``."""
        del cache
        return "kv:rotating"

    def hold(self, cache: Any, offset: int) -> LayerState:
        """Hold the rows of the window."""
        require_offset(cache, offset)
        if cache.keys is None:
            raise StateMismatch(f"an empty ring has no state after {offset} tokens")
        parts = self._parts(cache)
        runs, idx = _window(cache, offset, parts[0][1].shape[TOKEN_AXIS])
        return LayerState(
            signature=self.signature(cache),
            offset=offset,
            trimmable=offset < cache.max_size,
            reusable_from=reusable_from(cache),
            tensors=tuple(held_rows(name, array, runs) for name, array in parts),
            geometry={"max_size": cache.max_size, "keep": cache.keep, "idx": idx, **self._scheme(cache)},
        )

    def lend(self, state: LayerState, length: int) -> Any:
        """Return a ring of the first ``length`` tokens."""
        max_size, idx = state.geometry["max_size"], state.geometry["idx"]
        cache = self._empty(state)
        cache.keys, cache.values = self._halves([alias(tensor.array) for tensor in state.tensors])
        cache.offset = length
        if state.offset < max_size:
            idx = length
        elif idx == max_size:  # temporal order, perhaps with rows to be dropped
            idx = state.tensors[0].array.shape[TOKEN_AXIS]
        cache._idx = idx  # noqa: SLF001 - mlx-lm's only name for the ring's phase
        return cache

    def expect(self, sample: LayerSpec, stored: LayerSpec) -> LayerSpec:
        """One row a token up to the window; the phase is the stored one if it is a possible one."""
        max_size, keep = sample.geometry["max_size"], sample.geometry["keep"]
        rows = min(stored.offset, max_size)
        idx = stored.geometry.get("idx")
        if not (idx == rows or (stored.offset >= max_size and _inside(idx, keep, max_size))):
            raise StateMismatch(f"a ring of {rows} rows cannot be at row {idx!r}")
        return replace(
            sample,
            offset=stored.offset,
            trimmable=stored.offset < max_size,
            reusable_from=stored.reusable_from,
            geometry={**sample.geometry, "idx": idx},
            tensors=tuple(with_rows(tensor, rows) for tensor in sample.tensors),
        )

    def capacity(self, stored: LayerSpec) -> int | None:
        """As a growing cache before the wrap, never more than the window."""
        return min(growing_capacity(stored.offset), stored.geometry["max_size"])

    def _parts(self, cache: Any) -> list[tuple[str, mx.array]]:
        return [("keys", cache.keys), ("values", cache.values)]

    def _halves(self, arrays: Sequence[mx.array]) -> Sequence[Any]:
        return arrays

    def _scheme(self, cache: Any) -> dict[str, int]:
        del cache
        return {}

    def _empty(self, state: LayerState) -> Any:
        return RotatingKVCache(state.geometry["max_size"], keep=state.geometry["keep"])


class QuantisedRingCodec(RingCodec):
    """Geometry: a ring's, with ``bits`` and ``group_size``."""

    def signature(self, cache: Any) -> str:
        """Return ``kv:rotating-quant:`` with bits and group."""
        return f"kv:rotating-quant:{cache.bits}:{cache.group_size}"

    def _parts(self, cache: Any) -> list[tuple[str, mx.array]]:
        return triples_of(cache)

    def _halves(self, arrays: Sequence[mx.array]) -> Sequence[Any]:
        return halves_of(arrays)

    def _scheme(self, cache: Any) -> dict[str, int]:
        return {"bits": cache.bits, "group_size": cache.group_size}

    def _empty(self, state: LayerState) -> Any:
        geometry = state.geometry
        return RotatingQuantizedKVCache(
            geometry["max_size"],
            geometry["keep"],
            group_size=geometry["group_size"],
            bits=geometry["bits"],
        )


def _inside(idx: object, keep: int, max_size: int) -> bool:
    return isinstance(idx, int) and not isinstance(idx, bool) and keep < idx <= max_size


def _window(cache: Any, offset: int, rows: int) -> tuple[Runs, int]:
    """Return the rows of the window and the phase among them; StateMismatch for a ring that is not right."""
    max_size, keep = cache.max_size, cache.keep
    idx: int = cache._idx  # noqa: SLF001 - mlx-lm's only name for the ring's phase
    if offset < max_size and idx == offset <= rows <= max_size:
        return ((0, offset),), idx
    if offset >= max_size and idx == rows >= max_size:
        surplus = rows - max_size
        return ((0, keep), (keep + surplus, rows)) if surplus else ((0, rows),), max_size
    if offset >= max_size and rows == max_size and keep < idx < max_size:
        return ((0, rows),), idx
    raise StateMismatch(
        f"a ring of {max_size} (keep {keep}) after {offset} tokens cannot be at row {idx} of {rows}"
    )
