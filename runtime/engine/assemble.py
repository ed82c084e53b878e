"""From a configured model to what lanes and the scheduler need of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .backend import BackendOptions, MlxBackend
from .loading import ModelHandle
from .sources import Alias, HubRepository, parse_source
from .store import ModelStore

if TYPE_CHECKING:
    from .loading import DtypePolicy
    from .port import LaneBackend, ModelInfo, TextCodec
    from .progress import Progress


@dataclass(frozen=True, slots=True)
class MlxEngine:
    """One model, loaded when the first lane opens it and shared by all lanes and their incarnations.

    ``codec`` and ``info`` load it too if need be; from the event loop, call them only once a lane has opened.
    """

    handle: ModelHandle
    options: BackendOptions

    def backend(self) -> LaneBackend:
        """Return a fresh backend for a lane's thread."""
        return MlxBackend(self.handle, self.options)

    def codec(self) -> TextCodec:
        """Return the model's tokenizer and template."""
        return self.handle.load().codec

    def info(self) -> ModelInfo:
        """Return what others may know of the model."""
        return self.handle.load().info


def assemble(
    path: str,
    options: BackendOptions,
    *,
    dtype: DtypePolicy,
    context_length: int | None,
    progress: Progress,
) -> MlxEngine:
    """Make the model at ``path`` ready on disk (fetching and converting it if need be) and name it.

    Blocks, for minutes on a first start. Raises ModelError.
    """
    source = parse_source(path)
    directory = ModelStore().resolve(source, progress)
    name = path if isinstance(source, Alias | HubRepository) else directory.name
    handle = ModelHandle(directory, name, dtype=dtype, context_length=context_length)
    return MlxEngine(handle, options)
