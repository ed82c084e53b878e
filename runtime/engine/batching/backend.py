"""The MLX backend of a lane: continuous batching over one model, behind ``port.LaneBackend``.

Here is what opens and closes; what a lane does in between is in runner.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import mlx.core as mx
from mlx_lm.utils import maybe_set_recommended_wired_limit

from ..cpu.installing import install
from ..device import computes_on_cpu, thread_stream
from ..memory import MlxMemoryGauge
from ..models.batchable import always_trims, require_batching
from ..port import AtWork, LaneFigures
from .chunks import ChunkSizer
from .delivery import Delivery
from .groups import DecodeGroups
from .pool import BufferPool
from .prefill import Prefiller
from .publishing import Publisher
from .runner import Runner
from .suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..models.batchable import LoadedModel, ModelHandle
    from ..port import ModelInfo, RowEvent, RowRequest

_CPU_CHUNK: Final = 512
_GPU_CHUNK: Final = 2048


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Limits of one lane.

    ``batch``: rows that hold state at once. ``prefill_chunk``: tokens of one pass (None: 512 on a CPU,
    else 2048); it may take fewer, see chunks.py. ``decode_gap_ms``: how far a pass may draw the tokens of
    rows that decode apart. ``publish_min_tokens``: the shortest state that rows publish.
    """

    batch: int = 8
    prefill_chunk: int | None = None
    decode_gap_ms: float = 250.0
    publish_min_tokens: int = 32


class MlxBackend:
    """``port.LaneBackend`` on MLX. One thread calls everything, from ``open`` to ``close``.

    ``completion_tokens`` counts the tokens of the row's deltas: an end token is neither text nor
    counted; the token that completed a stop string is counted. Every inserted row gets exactly one
    terminal event. Values a row cannot be decoded with are ``Failed`` for that row; what the model
    raises comes out of ``step`` and leaves the backend unusable. A resumed row that was complete already
    ends with the next step, without a model call and without publishing: its state would have to be
    computed for that.

    ``launch_computes``: whether launching a pass takes as long as the pass, as it does on a CPU. None asks
    the device. ``shares_calls``: whether short prompts share a model call (together.py); None: on a CPU, the
    only device where it was measured.
    """

    def __init__(
        self,
        handle: ModelHandle,
        options: BackendOptions | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        launch_computes: bool | None = None,
        shares_calls: bool | None = None,
    ) -> None:
        self._handle = handle
        self._options = options or BackendOptions()
        self._clock = clock
        self._launch_computes = launch_computes
        self._shares_calls = shares_calls
        self._suspects = Suspects()
        self._wired_limit: int | None = None
        self._opened: tuple[mx.ThreadLocalStream, Runner] | None = None

    def open(self) -> ModelInfo:
        """Load the model and take this thread's stream. Raises EngineError when it cannot batch."""
        loaded = self._handle.load()
        install()
        stream = thread_stream()
        with mx.stream(stream):
            require_batching(loaded.model)
        self._wired_limit = maybe_set_recommended_wired_limit()
        self._opened = stream, self._runner(loaded)
        return loaded.info

    def _runner(self, loaded: LoadedModel) -> Runner:
        publisher = Publisher(
            self._options.publish_min_tokens,
            loaded.codec,
            self._suspects,
            always_trims=always_trims(loaded.model),
        )
        return Runner(
            loaded,
            batch=DecodeGroups(loaded.model, loaded.scheme),
            prefill=Prefiller(
                loaded.model, self._sizer(), self._clock, together=_or_on_cpu(self._shares_calls)
            ),
            publisher=publisher,
            delivery=Delivery(loaded.codec, publisher, self._suspects),
            pool=BufferPool(MlxMemoryGauge()().limit_bytes),
            suspects=self._suspects,
            places=self._options.batch,
            launch_computes=_or_on_cpu(self._launch_computes),
            clock=self._clock,
        )

    def _sizer(self) -> ChunkSizer:
        chunk = self._options.prefill_chunk
        if chunk is None:
            chunk = _CPU_CHUNK if computes_on_cpu() else _GPU_CHUNK
        return ChunkSizer(chunk, self._options.decode_gap_ms / 1e3)

    def insert(self, request: RowRequest) -> None:
        """Queue a row. ValueError for an id that is already there: that is the caller's mistake."""
        _, runner = self._need_open()
        runner.insert(request)

    def cancel(self, row_id: str) -> None:
        """End a row now; it is out of every later launch, and ``Cancelled`` comes with the next step."""
        if self._opened is not None:
            self._opened[1].cancel(row_id)

    @property
    def busy(self) -> bool:
        """Whether rows are left or events are still to be handed out."""
        return self._opened is not None and self._opened[1].busy

    @property
    def at_work(self) -> AtWork:
        """The phase and its rows: all those whose work may be what failed where a result was waited for."""
        return self._suspects.read()

    def step(self) -> list[RowEvent]:
        """Do one decode step and/or one prefill pass."""
        stream, runner = self._need_open()
        with mx.stream(stream):
            return runner.step()

    def figures(self) -> LaneFigures:
        """Return the figures; step times are the gaps that decoding rows saw, prefill included."""
        return LaneFigures() if self._opened is None else self._opened[1].figures()

    def close(self) -> None:
        """Drop every row and buffer; the weights stay with the handle. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        stream, runner = opened
        with mx.stream(stream):
            mx.synchronize(stream)
            runner.clear()
        if self._wired_limit is not None:
            mx.set_wired_limit(self._wired_limit)
            self._wired_limit = None

    def _need_open(self) -> tuple[mx.ThreadLocalStream, Runner]:
        if self._opened is None:
            raise RuntimeError("the backend is not open")
        return self._opened


def _or_on_cpu(chosen: bool | None) -> bool:  # noqa: FBT001
    return computes_on_cpu() if chosen is None else chosen
