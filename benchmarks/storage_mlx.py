"""The engine's own buffers for the storage benchmark: a checkpoint of MLX arrays, and restores into such.

Imported only when asked for; everything else in the storage benchmark runs without MLX.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from samovar.runtime.engine.state.restore import MlxRestorer
from samovar.runtime.engine.state.scheme import BF16, KvScheme
from samovar.runtime.engine.state.snapshots import snapshot
from samovar.storage.container import read_tensors
from samovar.storage.tokens import TokenIds

from .storage_figures import Figure, clocked, in_turns
from .storage_transfer import (
    FS,
    HEAD_DIM,
    HEADS,
    LAYERS,
    TOKEN_BYTES,
    State,
    leave_cache,
    raw_read,
    store,
)

import mlx.core as mx  # isort: skip - after the engine, which loads OpenBLAS first
from mlx_lm.models import llama  # isort: skip
from mlx_lm.models.cache import make_prompt_cache  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

    from samovar.runtime.engine.checkpoint import RestoreTarget
    from samovar.storage.container import StoredCheckpoint


@dataclass(frozen=True)
class Handle:
    """A model with the cache of a large one and next to no weights; its own handle."""

    model: llama.Model
    scheme: KvScheme = BF16

    @classmethod
    def make(cls) -> Handle:
        """Build it."""
        sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64, "num_hidden_layers": LAYERS}
        heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM}
        model = llama.Model(llama.ModelArgs(model_type="llama", rms_norm_eps=1e-5, **sizes, **heads))
        model.set_dtype(mx.bfloat16)
        mx.eval(model.parameters())
        return cls(model)

    def load(self) -> Handle:
        """Return itself."""
        return self


class Engine:
    """Checkpoints of one model. One thread."""

    def __init__(self) -> None:
        self._handle = Handle.make()
        self._restorer = MlxRestorer(self._handle)
        self._restorer.open()

    def checkpoint(self, size_bytes: int) -> State:
        """Return one of random numbers."""
        tokens = max(1, size_bytes // TOKEN_BYTES)
        caches = make_prompt_cache(self._handle.model)
        for cache in caches:
            shape = (1, HEADS, tokens, HEAD_DIM)
            cache.update_and_fetch(*(mx.random.normal(shape).astype(mx.bfloat16) for _ in "kv"))
        held = snapshot(caches, TokenIds.of(range(tokens)), "")
        return State(held.spec, held.segments())

    def allocate(self, source: State) -> RestoreTarget:
        """Return buffers to restore into."""
        return self._restorer.allocate(source.spec)


def measure_whole_restore(folder: Path, engine: Engine, source: State, rounds: int) -> list[Figure]:
    """Return a whole restore (allocate, read, verify, finish) against a raw read into fresh memory."""
    path = folder / "whole.kv"
    stored = store(path, source, "xxh3-128")
    restored = _restore(path, stored, engine, source)
    assert _same(restored, source), "the bytes that came back are not those that were written"
    figures: list[Figure] = []
    for temperature in ("cold", "warm"):
        cold = temperature == "cold"
        contenders = {
            "restore": partial(_timed, path, cold, partial(_restore, path, stored, engine, source)),
            "raw": partial(_timed, path, cold, partial(_raw, path, source.nbytes)),
        }
        turns = in_turns(contenders, rounds)
        label = f"restore with allocation / raw read, {temperature}, MLX"
        facts = turns.facts("raw", "restore")
        figures.append(Figure(label, turns.ratio("raw", "restore"), "x", 0.8, "more", facts))
    path.unlink()
    return figures


def _restore(path: Path, stored: StoredCheckpoint, engine: Engine, source: State) -> State:
    target = engine.allocate(source)
    read_tensors(FS, path, stored, target.segments())
    return State(source.spec, target.finish().segments())


def _raw(path: Path, size_bytes: int) -> None:
    raw_read(path, memoryview(bytearray(size_bytes)))


def _timed(path: Path, cold: bool, work: partial[object]) -> float:
    if cold:
        leave_cache(path)
    return clocked(work)


def _same(one: State, other: State) -> bool:
    pieces = zip(itertools.chain(*one.segments), itertools.chain(*other.segments), strict=True)
    return all(a == b for a, b in pieces)
