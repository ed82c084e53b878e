"""What the backend needs of a loaded model, and the checks that it gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from ..errors import EngineError, UnknownCache
from ..state.layers import leaves, signature_of

if TYPE_CHECKING:
    from ....storage.tokens import TokenIds
    from ..port import Detokenizer, ModelInfo
    from ..state.scheme import KvScheme


class EndingCodec(Protocol):
    """The part of a TextCodec that decoding uses, and which tokens end a turn."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Every id that ends a turn."""
        ...

    def detokenizer(self) -> Detokenizer:
        """Return a fresh streaming detokenizer."""
        ...

    def remember(self, tokens: TokenIds) -> None:
        """Note the ids of a prompt with its reply."""
        ...


class LoadedModel(Protocol):
    """A model in memory, shared by backends one after the other or at once.

    Every array it holds is evaluated: a lazy one could be evaluated on its maker's thread only.
    """

    @property
    def model(self) -> Any:
        """The mlx-lm module: called with token ids [rows, length] and ``cache``, returns logits."""
        ...

    @property
    def codec(self) -> EndingCodec:
        """The tokenizer."""
        ...

    @property
    def info(self) -> ModelInfo:
        """What the rest of the system may know."""
        ...

    @property
    def scheme(self) -> KvScheme:
        """How its KV state is kept."""
        ...


class ModelHandle(Protocol):
    """Gives the model, loading it at most once however many backends ask."""

    def load(self) -> LoadedModel:
        """Return the loaded model; blocks while it loads."""
        ...


class BatchingUnsupported(EngineError):
    """A layer of the model keeps a cache of a class that is not known here."""

    code = "batching_unsupported"


def require_batching(model: Any) -> None:
    """Raise BatchingUnsupported when a cache layer of this model is of a class without a signature.

    What it keeps is then unknown, and so is which rows may share a model call. Rows of a class that is known
    and cannot share decode by themselves (groups.py).
    """
    for layer, cache in enumerate(leaves(make_prompt_cache(model))):
        try:
            signature_of(cache)
        except UnknownCache as error:
            raise BatchingUnsupported(f"layer {layer}: {error}") from error


def always_trims(model: Any) -> bool:
    """Whether every state of this model can be shortened to every offset: no ring and no recurrence in it."""
    return all(type(cache) in (KVCache, QuantizedKVCache) for cache in leaves(make_prompt_cache(model)))
