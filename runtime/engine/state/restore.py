"""Rebuild checkpoints from files: buffers of the engine's own that a reader fills in place (DESIGN §4).

A stored spec is foreign until it equals what this model's caches would hold after as many tokens. That is
known without computing anything: the model is called lazily on a few tokens with empty caches, and the shapes
of what comes out are compared (accounting.py). So no number in a file, however hostile, reaches MLX or sizes
an allocation unless the model's own state has that size. Under a quantised KV scheme a state is plain or
quantised by its length alone, and only that one is taken.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from ..device import thread_stream
from ..errors import StateMismatch
from ..memory import MlxMemoryGauge
from .accounting import SAMPLE_TOKENS, Layout, layout_of
from .layers.tensors import LayerState, blank_arrays, held_in, with_capacity
from .snapshots import MlxCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ....storage.spec import CheckpointSpec, LayerSpec
    from ..checkpoint import MemoryGauge, Segments
    from ..models.batchable import ModelHandle
    from .layers import Structure
    from .layers.codec import LayerCodec

    MakeCaches = Callable[[Any], list[Any]]


class MlxRestoreTarget:
    """``checkpoint.RestoreTarget`` on evaluated arrays of the real types: finishing computes nothing."""

    def __init__(
        self,
        spec: CheckpointSpec,
        structure: Structure,
        layers: Sequence[LayerState],
        codecs: Sequence[LayerCodec],
    ) -> None:
        self._spec = spec
        self._structure = structure
        self._layers: Sequence[LayerState] | None = layers
        self._codecs = codecs

    def segments(self) -> Segments:
        """Return writable views of all tensors; strided ones have a view per head."""
        return [tensor.segments() for layer in self._unfinished() for tensor in layer.tensors]

    def finish(self) -> MlxCheckpoint:
        """Return the checkpoint. RuntimeError on a second call; do not write to the views afterwards."""
        layers, self._layers = self._unfinished(), None
        return MlxCheckpoint(self._spec, self._structure, layers, self._codecs)

    def _unfinished(self) -> Sequence[LayerState]:
        if self._layers is None:
            raise RuntimeError("this restore is finished")
        return self._layers


class MlxRestorer:
    """``checkpoint.Restorer`` for one model. One thread from ``open`` to ``close``; it loads the model.

    ``make_caches`` gives the caches that serving this model begins with; mlx-lm's own choice by default.
    """

    def __init__(
        self,
        handle: ModelHandle,
        *,
        make_caches: MakeCaches = make_prompt_cache,
        memory: MemoryGauge | None = None,
    ) -> None:
        self._handle = handle
        self._make_caches = make_caches
        self._memory = memory or MlxMemoryGauge()
        self._samples: dict[tuple[int, bool], Layout] = {}
        self._stream: mx.ThreadLocalStream | None = None
        self._thread: int | None = None

    def open(self) -> None:
        """Take this thread's stream."""
        self._stream = thread_stream()
        self._thread = threading.get_ident()

    def allocate(self, spec: CheckpointSpec) -> MlxRestoreTarget:
        """Return buffers for ``spec``: attention layers in whole steps of capacity with room for a token.

        Raises StateMismatch, saying which layer differs in what, when this model's caches cannot hold it or
        the machine's memory cannot.
        """
        if self._stream is None or self._thread != threading.get_ident():
            raise RuntimeError("allocate belongs on the thread that opened the restorer")
        with mx.stream(self._stream):
            sample = self._check(spec)
            codecs = sample.codecs
            rooms = [codec.capacity(layer) for codec, layer in zip(codecs, spec.layers, strict=True)]
            shapes = [
                with_capacity(tensor, room)
                for layer, room in zip(spec.layers, rooms, strict=True)
                for tensor in layer.tensors
            ]
            self._check_size(sum(shape.nbytes for shape in shapes))
            arrays = iter(blank_arrays(shapes))
            layers = [_held(layer, room, arrays) for layer, room in zip(spec.layers, rooms, strict=True)]
        return MlxRestoreTarget(spec, sample.structure, layers, codecs)

    def close(self) -> None:
        """Give the stream up. Idempotent."""
        self._stream = self._thread = None
        self._samples.clear()

    def _check(self, spec: CheckpointSpec) -> Layout:
        """Return what this model's caches hold after a few tokens, if ``spec`` is the same after its own."""
        if spec.attachments:
            raise StateMismatch(f"attachments of {spec.attachments[0].schema!r} are not known here")
        if not spec.tokens:
            raise StateMismatch("no tokens, no state")
        sample = self._sample(len(spec.tokens))
        if len(spec.layers) != len(sample.layers):
            raise StateMismatch(f"{len(spec.layers)} layers, the model's caches are {len(sample.layers)}")
        for place, (codec, wanted, stored) in enumerate(
            zip(sample.codecs, sample.layers, spec.layers, strict=True)
        ):
            if stored.signature != wanted.signature:
                raise StateMismatch(
                    f"layer {place} is {stored.signature!r}, the model's is {wanted.signature!r}"
                )
            try:
                _require_equal(codec.expect(wanted, stored), stored)
                _require_floor(wanted.reusable_from, stored)
            except StateMismatch as error:
                raise StateMismatch(f"layer {place} ({stored.signature}): {error}") from error
        return sample

    def _check_size(self, needed: int) -> None:
        limit = self._memory().limit_bytes
        if limit and needed > limit:
            raise StateMismatch(f"needs {needed} bytes, the device may hold {limit}")

    def _sample(self, length: int) -> Layout:
        """Return what the model's caches hold after ``length`` tokens, or as many as it takes to know."""
        loaded = self._handle.load()
        scheme = loaded.scheme if loaded.scheme.converted_at(length) else None
        key = min(length, SAMPLE_TOKENS), scheme is not None
        if key not in self._samples:
            self._samples[key] = layout_of(loaded.model, key[0], scheme, self._make_caches)
        return self._samples[key]


def _held(layer: LayerSpec, capacity: int | None, arrays: Iterator[mx.array]) -> LayerState:
    return LayerState(
        signature=layer.signature,
        offset=layer.offset,
        trimmable=layer.trimmable,
        reusable_from=layer.reusable_from,
        tensors=tuple(held_in(next(arrays), tensor, capacity) for tensor in layer.tensors),
        geometry=dict(layer.geometry),
    )


def _require_floor(least: int, stored: LayerSpec) -> None:
    """Raise StateMismatch for a state that claims to serve prefixes from before its conversion."""
    if stored.reusable_from < least:
        raise StateMismatch(f"reusable from {stored.reusable_from}, expected {least} or more")


def _require_equal(expected: LayerSpec, stored: LayerSpec) -> None:
    """Raise StateMismatch naming the first field in which ``stored`` is not what it must be."""
    for name in ("trimmable", "geometry"):
        wanted, found = getattr(expected, name), getattr(stored, name)
        if wanted != found:
            raise StateMismatch(f"{name} {found!r}, expected {wanted!r}")
    if len(expected.tensors) != len(stored.tensors):
        raise StateMismatch(f"{len(stored.tensors)} tensors, expected {len(expected.tensors)}")
    for wanted, found in zip(expected.tensors, stored.tensors, strict=True):
        if wanted != found:
            raise StateMismatch(f"tensor {found}, expected {wanted}")
