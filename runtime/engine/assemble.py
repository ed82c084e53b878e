"""From a configured model to what lanes and the scheduler need of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .batching.backend import BackendOptions, MlxBackend
from .memory import MlxMemoryGauge
from .models.loading import ModelHandle
from .models.sources import Alias, HubRepository, parse_source
from .models.store import ModelStore
from .state.identity import model_identity
from .state.restore import MlxRestorer
from .state.scheme import BF16, KvChoice

if TYPE_CHECKING:
    from ...storage.identity import Identity
    from .checkpoint import MemoryGauge, Restorer
    from .models.loading import DtypePolicy
    from .models.progress import Progress
    from .port import LaneBackend, ModelInfo, TextCodec


@dataclass(frozen=True, slots=True)
class MlxEngine:
    """One model, loaded when the first lane opens it and shared by all lanes and their incarnations.

    ``codec`` and ``info`` load it too if need be; from the event loop, call them only once a lane has opened.
    """

    handle: ModelHandle
    options: BackendOptions
    dtype: DtypePolicy

    def backend(self) -> LaneBackend:
        """Return a fresh backend for a lane's thread."""
        return MlxBackend(self.handle, self.options)

    def codec(self) -> TextCodec:
        """Return the model's tokenizer and template."""
        return self.handle.load().codec

    def info(self) -> ModelInfo:
        """Return what others may know of the model."""
        return self.handle.load().info

    def identity(self) -> Identity:
        """Return what the states of this model depend on. Blocks: it reads the weights the first time.

        A quantised KV scheme is known once the model is loaded, so that is done here. Raises EngineError.
        """
        scheme = self.handle.load().scheme if self.handle.kv.quantises else BF16
        return model_identity(self.handle.path, self.dtype, scheme.key)

    def restorer(self) -> Restorer:
        """Return a fresh maker of buffers for a reader's thread."""
        return MlxRestorer(self.handle)

    def memory(self) -> MemoryGauge:
        """Return the gauge of the device's memory."""
        return MlxMemoryGauge()


def assemble(
    path: str,
    options: BackendOptions,
    *,
    dtype: DtypePolicy,
    context_length: int | None,
    kv: KvChoice | None = None,
    progress: Progress,
) -> MlxEngine:
    """Make the model at ``path`` ready on disk (fetching and converting it if need be) and name it.

    Blocks, for minutes on a first start. Raises ModelError.
    """
    source = parse_source(path)
    directory = ModelStore().resolve(source, progress)
    name = path if isinstance(source, Alias | HubRepository) else directory.name
    handle = ModelHandle(directory, name, dtype=dtype, context_length=context_length, kv=kv)
    return MlxEngine(handle, options, dtype)
