"""What a checkpoint is made of, as plain data: the part of a KV state that files and indexes know.

A checkpoint is the state of a model at one exact token prefix (DESIGN §5). Its layers are the
cache-owning layers of the model in order, nested cache lists flattened; each is a signature, a few numbers
and tensors. Nothing here knows what a signature means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .tokens import TokenIds

DTYPE_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
}

Scalar: TypeAlias = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: C order, no padding. ValueError for an unknown dtype or a negative size."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"tensor {self.name}: unknown dtype {self.dtype!r}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"tensor {self.name}: negative size in shape {self.shape}")

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer's state after ``offset`` tokens.

    ``trimmable``: whether it can be shortened to any offset from ``reusable_from`` on. ``reusable_from``
    is the lowest offset at which the state is numerically valid. ``geometry`` holds the numbers that the
    signature's codec needs to rebuild the layer.
    """

    signature: str
    offset: int
    trimmable: bool
    reusable_from: int = 0
    geometry: Mapping[str, int] = field(default_factory=dict[str, int])
    tensors: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class AttachmentSpec:
    """State that a method keeps beside the layers (seed §5.7); a checkpoint that has one never trims."""

    schema: str
    values: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    tensors: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """The state at exactly ``tokens`` under ``namespace``. ValueError when a layer's offset differs.

    That check is what keeps a state from ever being stored under tokens that it does not encode.
    """

    tokens: TokenIds
    namespace: str
    layers: tuple[LayerSpec, ...]
    attachments: tuple[AttachmentSpec, ...] = ()

    def __post_init__(self) -> None:
        for place, layer in enumerate(self.layers):
            if layer.offset != len(self.tokens):
                raise ValueError(f"layer {place} holds {layer.offset} tokens, its key has {len(self.tokens)}")
            if not 0 <= layer.reusable_from <= layer.offset:
                raise ValueError(f"layer {place}: reusable_from {layer.reusable_from} of {layer.offset}")

    @property
    def trimmable(self) -> bool:
        """Whether a shorter prefix can be served from it: every layer trims and nothing is attached."""
        return not self.attachments and all(layer.trimmable for layer in self.layers)

    @property
    def reusable_from(self) -> int:
        """The shortest prefix that it can serve: the whole one when it cannot be trimmed."""
        if not self.trimmable:
            return len(self.tokens)
        return max((layer.reusable_from for layer in self.layers), default=0)

    def tensors(self) -> Iterator[TensorSpec]:
        """Yield every tensor in file order: layers first, then attachments."""
        for layer in self.layers:
            yield from layer.tensors
        for attachment in self.attachments:
            yield from attachment.tensors

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without padding or capacity."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def serves(self, length: int) -> bool:
        """Whether the first ``length`` tokens can be served from it."""
        return length == len(self.tokens) or (self.reusable_from <= length < len(self.tokens))
