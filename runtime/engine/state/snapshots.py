"""Checkpoints of live caches, and live caches of checkpoints.

``snapshot`` is references, not a copy: the live cache goes on, its next update copies each buffer once, and
the checkpoint keeps what it has. ``clone`` is the reverse: new cache objects over aliases of the
checkpoint's arrays, with a smaller offset if a shorter prefix is lent (DESIGN §4, §5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx

from ....storage.spec import CheckpointSpec
from ..errors import StateMismatch
from .layers import codec_of, leaves, nest, signature_of, structure_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ....storage.tokens import TokenIds
    from ..batching.rows import Cache
    from ..checkpoint import Checkpoint, Segments
    from .layers import Structure
    from .layers.codec import LayerCodec
    from .layers.tensors import HeldTensor, LayerState


class MlxCheckpoint:
    """``checkpoint.Checkpoint`` on MLX arrays, all evaluated and in C order. Immutable; any thread."""

    __slots__ = ("_codecs", "_layers", "_structure", "held_bytes", "spec")

    def __init__(
        self,
        spec: CheckpointSpec,
        structure: Structure,
        layers: Sequence[LayerState],
        codecs: Sequence[LayerCodec],
    ) -> None:
        self.spec = spec
        self._structure = structure
        self._layers = tuple(layers)
        self._codecs = tuple(codecs)
        # By their sizes, not by their addresses: asking a GPU's array for one moves it to the host.
        self.held_bytes = sum(tensor.array.nbytes for tensor in self._tensors())

    def segments(self) -> Segments:
        """Return read-only views of all tensors, in the order of the spec."""
        return [[part.toreadonly() for part in tensor.segments()] for tensor in self._tensors()]

    def lend(self, length: int) -> list[Cache]:
        """Return live caches of the first ``length`` tokens; see ``clone``."""
        if length < 1 or not self.spec.serves(length):
            raise StateMismatch(
                f"a checkpoint of {len(self.spec.tokens)} tokens, reusable from {self.spec.reusable_from},"
                f" does not serve {length}"
            )
        lent = (_lend(codec, layer, length) for codec, layer in zip(self._codecs, self._layers, strict=True))
        return cast("list[Cache]", nest(self._structure, lent))

    def _tensors(self) -> Iterator[HeldTensor]:
        for layer in self._layers:
            yield from layer.tensors

    def __repr__(self) -> str:
        return f"MlxCheckpoint({len(self.spec.tokens)} tokens, {len(self._layers)} layers)"


def snapshot(caches: Sequence[Any], tokens: TokenIds, namespace: str) -> MlxCheckpoint:
    """Return the state of a row's caches (a batch of one), which must encode exactly ``tokens``.

    On the thread whose stream computes the caches, under that stream. Waits until the state is computed;
    nothing is copied but arrays that are not in C order or are part of a larger buffer (the first chunk of a
    ring, convolution states, rows of a batch that were not made contiguous). Raises UnknownCache for a class
    without a signature, StateMismatch when a layer holds another number of tokens or is no single row.
    """
    if not tokens:
        raise StateMismatch("no tokens, no state")
    flat = list(leaves(caches))
    codecs = [codec_of(cache) for cache in flat]
    layers: list[LayerState] = []
    for place, (codec, cache) in enumerate(zip(codecs, flat, strict=True)):
        try:
            layers.append(codec.hold(cache, len(tokens)))
        except StateMismatch as error:
            raise StateMismatch(f"layer {place} ({signature_of(cache)}): {error}") from error
    mx.eval([tensor.array for layer in layers for tensor in layer.tensors])  # pyright: ignore[reportUnknownMemberType]
    spec = CheckpointSpec(tokens, namespace, tuple(layer.spec for layer in layers))
    return MlxCheckpoint(spec, structure_of(caches), layers, codecs)


def clone(checkpoint: Checkpoint, length: int) -> list[Cache]:
    """Return live caches of the checkpoint's first ``length`` tokens, for a row to go on from.

    No MLX operation and no copy, so any thread may call it and any lane may use the result; the first update
    of a lent cache copies that buffer. Raises StateMismatch when the checkpoint cannot serve the length or
    was not made here.
    """
    if not isinstance(checkpoint, MlxCheckpoint):
        raise StateMismatch(f"{type(checkpoint).__name__} is no checkpoint of this engine")
    return checkpoint.lend(length)


def _lend(codec: LayerCodec, layer: LayerState, length: int) -> Any:
    cache = codec.lend(layer, length)
    if layer.reusable_from:
        cache.reusable_from = layer.reusable_from
    return cache
