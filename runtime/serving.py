"""What the HTTP layer sees of the actor tree."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from .http.serving import Readiness
from .kernel import AskError
from .version import version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..actors.generation import Lane
    from ..actors.monitor import Monitor
    from ..actors.requests import Admission, GenerationRequest, Refused
    from ..actors.scheduler import Scheduler
    from .caching import TreeCache
    from .counting import PromptCounter
    from .engine.port import ModelInfo
    from .kernel import ActorFigures, ActorSystem

STATS_ASK_S = 2.0


class TreeServing:
    """Implements ``http.serving.Serving`` over a running tree. Loop thread only.

    ``system`` is set once the tree exists; until then nothing is ready.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        lanes: Sequence[Lane],
        monitor: Monitor,
        model: Callable[[], ModelInfo],
        *,
        aliases: Sequence[str],
        queue_timeout_s: float,
        drained_in_s: Callable[[], float],
        counter: PromptCounter,
        cache: TreeCache | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._lanes = lanes
        self._monitor = monitor
        self._model = model
        self._counter = counter
        self._cache = cache
        self._aliases = tuple(aliases)
        self._queue_timeout_s = queue_timeout_s
        self._drained_in_s = drained_in_s
        self._started_s = time.monotonic()
        self._version = version()
        self.system: ActorSystem | None = None
        self.draining = False
        self._was_ready = False

    def model(self) -> ModelInfo:
        """Return the served model."""
        return self._model()

    def aliases(self) -> Sequence[str]:
        """Return its further names."""
        return self._aliases

    async def submit(self, request: GenerationRequest) -> Admission:
        """Submit a request; see ``Scheduler.submit``."""
        return await self._scheduler.submit(request, self._queue_timeout_s)

    async def count_tokens(self, request: GenerationRequest) -> int | Refused:
        """Count a prompt; see ``PromptCounter.count``."""
        return await self._counter.count(request)

    def rename(self, aliases: Sequence[str]) -> None:
        """Replace the model's further names."""
        self._aliases = tuple(aliases)

    @property
    def healthy(self) -> bool:
        """Whether nothing of the tree is down, whether or not it is draining."""
        return self.system is not None and not self._down()

    def _down(self) -> Mapping[str, str]:
        """Return what does not run, with its state. The HTTP server is known to run where it is asked."""
        figures = [] if self.system is None else self.system.figures()
        return {f.path: f.state for f in figures if f.state != "running" and f.path != "http"}

    def started(self) -> None:
        """Note that the tree is up: from now on a part that is down is coming back."""
        self._was_ready = True

    def readiness(self) -> Readiness:
        """Ready when the whole tree runs and is not draining; recovering when it once was up."""
        if self.system is None:
            return Readiness(ready=False, detail={"tree": "starting"})
        degraded = None if self._cache is None else self._cache.degraded
        down = self._down()
        ready = not down and not self.draining
        self._was_ready = self._was_ready or ready
        recovering = self._was_ready and bool(down)
        retry_after_s = self._drained_in_s() if self.draining else None
        return Readiness(
            ready,
            self.draining,
            recovering=recovering,
            degraded=degraded,
            retry_after_s=retry_after_s,
            detail=down,
        )

    async def stats(self) -> Mapping[str, object]:
        """Return the parts of ``/stats`` that exist; a part whose actor does not answer is null."""
        figures = self.system.figures() if self.system is not None else []
        return {
            "server": {
                "version": self._version,
                "model": self._model().id,
                "uptime_s": time.monotonic() - self._started_s,
                "draining": self.draining,
            },
            "scheduler": await self._scheduler_stats(),
            "lanes": await asyncio.gather(
                *(self._lane_stats(index, lane, figures) for index, lane in enumerate(self._lanes))
            ),
            **(
                {"prompt_cache": None, "ssd_cache": None}
                if self._cache is None
                else await self._cache.stats()
            ),
            "kv": {"scheme": self._model().scheme, "layers": dict(self._model().layers)},
            "actors": {
                "restarts": sum(f.restarts for f in figures),
                "dead_letters": sum(sum(f.dead_letters.values()) for f in figures),
                "open_asks": sum(f.open_asks for f in figures),
            },
            "loop": {"lag_ms_p99": await self._lag_ms()},
        }

    def tree(self) -> Sequence[Mapping[str, object]]:
        """Return one mapping per actor and supervisor, in starting order."""
        return [_described(f) for f in self.system.figures()] if self.system is not None else []

    def crash(self, path: str) -> bool:
        """Crash the actor at ``path``."""
        return self.system is not None and self.system.crash(path)

    async def _scheduler_stats(self) -> object:
        try:
            return asdict(await self._scheduler.figures(STATS_ASK_S))
        except AskError:
            return None

    async def _lane_stats(self, index: int, lane: Lane, figures: Sequence[ActorFigures]) -> object:
        restarts = next((f.restarts for f in figures if f.path == lane.ref.path), 0)
        try:
            return {"id": index, **asdict(await lane.figures(STATS_ASK_S)), "restarts": restarts}
        except AskError:
            return {"id": index, "restarts": restarts}

    async def _lag_ms(self) -> float | None:
        try:
            return await self._monitor.lag_ms_p99(STATS_ASK_S)
        except AskError:
            return None


def _described(figures: ActorFigures) -> Mapping[str, object]:
    failure = figures.last_failure
    return {
        "path": figures.path,
        "kind": figures.kind,
        "state": figures.state,
        "incarnation": figures.incarnation,
        "depth": figures.depth,
        "capacity": figures.capacity,
        "oldest_age_ms": figures.oldest_age_s * 1000.0,
        "handled": figures.handled,
        "skipped": figures.skipped,
        "handle_ms_mean": figures.handle_mean_s * 1000.0,
        "handle_ms_max": figures.handle_max_s * 1000.0,
        "restarts": figures.restarts,
        "dead_letters": dict(figures.dead_letters),
        "open_asks": figures.open_asks,
        "tasks": figures.tasks,
        "unstoppable": figures.unstoppable,
        "last_failure": None if failure is None else f"{type(failure.error).__name__}: {failure.error}",
    }
