"""The server as a whole: the actor tree as one ordered list."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..actors.generation import GenerationActor, Lane, LaneMessage, LaneTotals
from ..actors.monitor import Monitor, MonitorActor
from ..actors.scheduler import (
    Scheduler,
    SchedulerActor,
    SchedulerMessage,
)
from ..actors.scheduling.ledger import Ledger
from ..actors.scheduling.options import SchedulerOptions
from .caching import TreeCache
from .counting import PromptCounter
from .http.access import Access
from .http.actor import SHUTDOWN_S, Binding, HttpActor, HttpMessage
from .http.options import HttpOptions
from .http.responses.store import ResponseStore, StoreLimits
from .http.server import HttpServer
from .kernel import AskError, Backoff, BlockingPool, ChildSpec, RestartLimit, SupervisorSpec
from .metrics import Metrics
from .serving import TreeServing
from .tierlog import LineTierLog
from .tiers import StatefulEngine, Tiers, build_tiers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..actors.residency import Residency
    from ..storage.filesystem import Filesystem
    from .config import Config
    from .engine.checkpoint import MemoryGauge
    from .engine.port import LaneBackend, ModelInfo, TextCodec
    from .http.serving import RequestLog

TOKENISE_THREADS = 2
MODEL_LOAD_S = 1800.0
RECALL_S = 60.0
LANES_LIMIT = RestartLimit(10, 60.0)
"""A request that crashes lanes takes two restarts to be found out: five of them a minute are survived."""
LANES_BACKOFF = Backoff(max_s=1.0)
SERVING_LIMIT = RestartLimit(2, 200.0)
ROOT_LIMIT = RestartLimit(4, 900.0)
"""A storm must end the process. So each window holds as many of the storms below it, of which one of lanes
takes up to a minute, as its limit lets through and one more."""


class Engine(StatefulEngine, Protocol):
    """Where lanes get their backends from, and what is known of the model once a lane has opened it."""

    def backend(self) -> LaneBackend:
        """Return a fresh backend; it is used on one lane's thread only."""
        ...

    def codec(self) -> TextCodec:
        """Return the model's tokenizer and template."""
        ...

    def info(self) -> ModelInfo:
        """Return what others may know of the model."""
        ...


@dataclass(frozen=True)
class Tree:
    """A tree that is ready to start, with the faces of the actors that others talk to."""

    root: SupervisorSpec
    scheduler: Scheduler
    serving: TreeServing
    pool: BlockingPool
    tiers: Tiers | None
    cache: TreeCache | None
    codec: Callable[[], TextCodec] = field(repr=False)
    http: ChildSpec[HttpMessage] = field(repr=False)
    access: Access = field(repr=False)

    async def recall_history(self) -> None:
        """Teach the tokenizer the ids of the conversations on disk, the newest best. Waits on no request."""
        if self.tiers is None or self.tiers.disk is None:
            return
        with contextlib.suppress(AskError):
            entries = await self.tiers.disk.archive.entries(RECALL_S)
            await self.pool.run(self.codec().seed_history, [entry.tokens for entry in entries])

    def adopt(self, config: Config) -> None:
        """Put those settings into force that can change while the tree runs. Loop thread only."""
        self.access.replace(http_options(config))
        self.serving.rename(config.model.aliases)

    def close(self) -> None:
        """Give up the threads that are no actor's own. After the tree has stopped."""
        self.pool.close()
        if self.tiers is not None and self.tiers.disk is not None:
            self.tiers.disk.pool.close()


def build_tree(config: Config, engine: Engine, log: RequestLog, fs: Filesystem) -> Tree:
    """Lay out the actors: started left to right, top to bottom; stopped in reverse (DESIGN §2)."""
    lanes_config, server = config.lanes, config.server
    waiting = lanes_config.queue + lanes_config.count * lanes_config.batch
    pool = BlockingPool("tokenise", TOKENISE_THREADS, limit=waiting + TOKENISE_THREADS)
    metrics = Metrics()
    tiers = build_tiers(config, engine, fs, LineTierLog(config.cache.ssd.max), metrics.wrote)
    residency = None if tiers is None else tiers.residency
    lane_specs = [
        _lane_spec(index, lanes_config.batch, engine, residency) for index in range(lanes_config.count)
    ]
    lanes = [Lane(spec.ref) for spec in lane_specs]
    ledger = Ledger()
    scheduler_spec = _scheduler_spec(config, engine, lanes, pool, residency, ledger=ledger)
    monitor_spec = ChildSpec("monitor", MonitorActor, capacity=64)
    scheduler = Scheduler(scheduler_spec.ref)
    cache = None if tiers is None else TreeCache(tiers, lanes, engine.codec, pool)
    serving = TreeServing(
        scheduler,
        lanes,
        Monitor(monitor_spec.ref),
        engine.info,
        aliases=config.model.aliases,
        queue_timeout_s=server.request_timeout or float(365 * 86_400),
        drained_in_s=lambda: ledger.drained_in_s(lanes_config.count * lanes_config.batch),
        counter=PromptCounter(engine.codec, pool),
        cache=cache,
    )
    access = Access(http_options(config))
    http_spec = _http_spec(config, serving, cache, log, metrics=metrics, access=access)
    lanes_spec = SupervisorSpec("lanes", lane_specs, limit=LANES_LIMIT, backoff=LANES_BACKOFF)
    serving_spec = SupervisorSpec(
        "serving",
        [*([] if tiers is None else [tiers.spec]), lanes_spec, scheduler_spec],
        strategy="rest_for_one",
        limit=SERVING_LIMIT,
    )
    storage = [] if tiers is None or tiers.disk is None else [tiers.disk.spec]
    root = SupervisorSpec("root", [monitor_spec, *storage, serving_spec, http_spec], limit=ROOT_LIMIT)
    return Tree(root, scheduler, serving, pool, tiers, cache, engine.codec, http_spec, access)


def _scheduler_spec(
    config: Config,
    engine: Engine,
    lanes: Sequence[Lane],
    pool: BlockingPool,
    residency: Residency | None,
    *,
    ledger: Ledger,
) -> ChildSpec[SchedulerMessage]:
    settings = config.lanes
    waiting = settings.queue + settings.count * settings.batch
    # Once, before anything runs: what running rows hold must not count against them after a restart.
    budget_bytes = functools.cache(lambda: kv_budget_bytes(engine.memory(), config.cache.ram.pressure))

    def actor() -> SchedulerActor:
        options = SchedulerOptions(
            settings.batch, settings.queue, settings.max_tokens, config.cache.ram.min_tokens, budget_bytes()
        )
        return SchedulerActor(
            lanes, engine.codec(), engine.info(), pool, options, ledger=ledger, residency=residency
        )

    return ChildSpec(
        "scheduler",
        actor,
        capacity=8 * waiting + 256,
        on_restart="drop",
        max_tasks=2 * waiting + 2 * settings.count + 8,
    )


def kv_budget_bytes(memory: MemoryGauge, pressure: float) -> int:
    """Return what is left for the states of running requests; 0 where that is not known.

    Call it when the weights are loaded and nothing runs: what is held then is not to be had.
    """
    reading = memory()
    return max(0, int(reading.limit_bytes * pressure) - reading.active_bytes)


def _lane_spec(index: int, batch: int, engine: Engine, residency: Residency | None) -> ChildSpec[LaneMessage]:
    totals = LaneTotals()
    return ChildSpec(
        str(index),
        lambda: GenerationActor(engine.backend, totals, residency),
        capacity=4 * batch + 64,
        on_restart="drop",
        start_s=MODEL_LOAD_S,
    )


def _http_spec(
    config: Config,
    serving: TreeServing,
    cache: TreeCache | None,
    log: RequestLog,
    *,
    metrics: Metrics,
    access: Access,
) -> ChildSpec[HttpMessage]:
    options, binding = http_options(config), Binding(config.server.port)
    limits = StoreLimits(size_bytes=config.server.responses_max, ttl_s=config.server.responses_ttl)
    responses = ResponseStore(limits)

    def server() -> HttpServer:
        here = replace(options, port=binding.port)
        return HttpServer(
            serving, here, log, cache=cache, metrics=metrics, access=access, responses=responses
        )

    return ChildSpec("http", lambda: HttpActor(server, binding), capacity=64, shutdown_s=SHUTDOWN_S)


def http_options(config: Config) -> HttpOptions:
    """Return what the HTTP layer is told of a configuration."""
    server = config.server
    return HttpOptions(
        host=server.host,
        port=server.port,
        unix_socket=Path(server.unix_socket).expanduser() if server.unix_socket else None,
        api_keys=server.api_keys,
        admin_keys=server.admin_keys,
        allow_unauthenticated=server.allow_unauthenticated,
        allowed_hosts=server.allowed_hosts,
        cors_origins=server.cors_origins,
        max_body_bytes=server.max_body,
        request_timeout_s=server.request_timeout or None,
        fault_injection=server.fault_injection,
        metrics=config.metrics.enabled,
    )
