"""Rebuild checkpoints from files: buffers of the engine's own that a reader fills in place (DESIGN §4).

A stored spec is foreign until it equals what this model's caches would hold after as many tokens. That is
known without computing anything: the model is called lazily on a few tokens with empty caches, and the shapes
of what comes out are compared. So no number in a file, however hostile, reaches MLX or sizes an allocation
unless the model's own state has that size.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from .errors import StateMismatch
from .layers import codec_of, leaves, structure_of
from .layers.tensors import LayerState, blank_arrays, held_in, with_capacity
from .memory import MlxMemoryGauge
from .snapshots import MlxCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...storage.spec import CheckpointSpec, LayerSpec
    from .batchable import ModelHandle
    from .checkpoint import MemoryGauge, Segments
    from .layers import Structure
    from .layers.codec import LayerCodec

    MakeCaches = Callable[[Any], list[Any]]

SAMPLE_TOKENS: Final = 64
"""Tokens of the longest lazy call: convolution states and the like have their full width by then."""


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

    ``make_caches`` gives the caches that serving this model uses; mlx-lm's own choice by default.
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
        self._samples: dict[int, tuple[LayerSpec, ...]] = {}
        self._stream: mx.ThreadLocalStream | None = None
        self._thread: int | None = None

    def open(self) -> None:
        """Take a stream of this thread."""
        self._stream = mx.new_thread_local_stream(mx.default_device())
        self._thread = threading.get_ident()

    def allocate(self, spec: CheckpointSpec) -> MlxRestoreTarget:
        """Return buffers for ``spec``: attention layers in whole steps of capacity with room for a token.

        Raises StateMismatch, saying which layer differs in what, when this model's caches cannot hold it or
        the machine's memory cannot.
        """
        if self._stream is None or self._thread != threading.get_ident():
            raise RuntimeError("allocate belongs on the thread that opened the restorer")
        with mx.stream(self._stream):
            caches = self._make_caches(self._handle.load().model)
            codecs = [codec_of(cache) for cache in leaves(caches)]
            self._check(spec, codecs)
            rooms = [codec.capacity(layer) for codec, layer in zip(codecs, spec.layers, strict=True)]
            shapes = [
                with_capacity(tensor, room)
                for layer, room in zip(spec.layers, rooms, strict=True)
                for tensor in layer.tensors
            ]
            self._check_size(sum(shape.nbytes for shape in shapes))
            arrays = iter(blank_arrays(shapes))
            layers = [_held(layer, room, arrays) for layer, room in zip(spec.layers, rooms, strict=True)]
        return MlxRestoreTarget(spec, structure_of(caches), layers, codecs)

    def close(self) -> None:
        """Give the stream up. Idempotent."""
        self._stream = self._thread = None
        self._samples.clear()

    def _check(self, spec: CheckpointSpec, codecs: Sequence[LayerCodec]) -> None:
        if spec.attachments:
            raise StateMismatch(f"attachments of {spec.attachments[0].schema!r} are not known here")
        if not spec.tokens:
            raise StateMismatch("no tokens, no state")
        if len(spec.layers) != len(codecs):
            raise StateMismatch(f"{len(spec.layers)} layers, the model's caches are {len(codecs)}")
        samples = self._sample(min(len(spec.tokens), SAMPLE_TOKENS))
        for place, (codec, sample, stored) in enumerate(zip(codecs, samples, spec.layers, strict=True)):
            if stored.signature != sample.signature:
                raise StateMismatch(
                    f"layer {place} is {stored.signature!r}, the model's is {sample.signature!r}"
                )
            try:
                _require_equal(codec.expect(sample, stored), stored)
            except StateMismatch as error:
                raise StateMismatch(f"layer {place} ({stored.signature}): {error}") from error

    def _check_size(self, needed: int) -> None:
        limit = self._memory().limit_bytes
        if limit and needed > limit:
            raise StateMismatch(f"needs {needed} bytes, the device may hold {limit}")

    def _sample(self, length: int) -> tuple[LayerSpec, ...]:
        """Return what the model's caches hold after ``length`` tokens, from shapes alone."""
        if length not in self._samples:
            model = self._handle.load().model
            caches = self._make_caches(model)
            model(mx.zeros((1, length), mx.uint32), cache=caches)
            self._samples[length] = tuple(codec_of(each).hold(each, length).spec for each in leaves(caches))
        return self._samples[length]


def _held(layer: LayerSpec, capacity: int | None, arrays: Iterator[mx.array]) -> LayerState:
    return LayerState(
        signature=layer.signature,
        offset=layer.offset,
        trimmable=layer.trimmable,
        reusable_from=layer.reusable_from,
        tensors=tuple(held_in(next(arrays), tensor, capacity) for tensor in layer.tensors),
        geometry=dict(layer.geometry),
    )


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
