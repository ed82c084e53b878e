"""What a family of cache layers must be able to do, so that checkpoints can be made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .....storage.spec import LayerSpec
    from .tensors import LayerState


class LayerCodec(Protocol):
    """One cache class of mlx-lm ↔ one layer of a checkpoint. Stateless; errors are StateMismatch."""

    def signature(self, cache: Any) -> str:
        """Return the storage identity of the live cache."""
        ...

    def hold(self, cache: Any, offset: int) -> LayerState:
        """Return the cache's state, lazily: evaluate its arrays before anything else happens to the cache.

        Checks that the cache holds one sequence of ``offset`` tokens and that its fields agree.
        """
        ...

    def lend(self, state: LayerState, length: int) -> Any:
        """Return a live cache of the first ``length`` tokens over aliases of the arrays. Any thread."""
        ...

    def expect(self, sample: LayerSpec, stored: LayerSpec) -> LayerSpec:
        """Return what ``stored`` must be to fit a model whose layer is like ``sample`` after some tokens."""
        ...

    def capacity(self, stored: LayerSpec) -> int | None:
        """Return rows of the token axis to allocate on restore, None where there is no capacity to keep."""
        ...
