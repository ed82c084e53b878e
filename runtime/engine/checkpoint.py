"""Checkpoints as the rest of the system handles them: opaque, immutable, without MLX.

A lane makes them (``Published``), residency keeps and lends them, writers read their bytes, readers rebuild
them. Bytes pass as *segments*: memoryviews that, one after the other, are a tensor in C order. So a strided
layer needs no packing, and a reader fills the engine's own buffers (DESIGN §4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...storage.spec import CheckpointSpec

Segments: TypeAlias = "Sequence[Sequence[memoryview]]"
"""Per tensor of ``CheckpointSpec.tensors()``, in its order: flat byte views in the tensor's order."""


class Checkpoint(Protocol):
    """The state at one exact token prefix. Immutable; any thread. It lives as long as somebody holds it.

    Whoever decodes from it works on clones: nothing ever changes its bytes.
    """

    @property
    def spec(self) -> CheckpointSpec:
        """Tokens, namespace, layers."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory that it keeps alive, capacity included."""
        ...

    def segments(self) -> Segments:
        """Return read-only views of all tensors. They keep their memory alive. No copy, no MLX operation."""
        ...


class RestoreTarget(Protocol):
    """Buffers being filled from a file. One reader thread."""

    def segments(self) -> Segments:
        """Return writable views of all tensors; disjoint."""
        ...

    def finish(self) -> Checkpoint:
        """Return the checkpoint, evaluated and usable by any lane. Call once, when every byte is there."""
        ...


class Restorer(Protocol):
    """Makes buffers for restores. Everything on one pinned thread, from ``open`` to ``close``."""

    def open(self) -> None:
        """Take a stream of this thread."""
        ...

    def allocate(self, spec: CheckpointSpec) -> RestoreTarget:
        """Return evaluated buffers. Raises StateMismatch when the model's caches cannot hold ``spec``."""
        ...

    def close(self) -> None:
        """Give the stream up. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Prefix:
    """A borrowed prefix for a row: the first ``length`` tokens of ``checkpoint``."""

    checkpoint: Checkpoint
    length: int


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """What the engine holds on its device, and what it may. ``limit_bytes`` 0: unknown, no pressure."""

    active_bytes: int
    limit_bytes: int


class MemoryGauge(Protocol):
    """Reads the engine's memory. Any thread, cheap."""

    def __call__(self) -> MemoryReading:
        """Return the present reading; weights are counted even where MLX does not."""
        ...
