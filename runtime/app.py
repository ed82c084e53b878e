"""The server as a whole: the actor tree as one ordered list."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..actors.generation import GenerationActor, Lane, LaneMessage, LaneTotals
from ..actors.monitor import Monitor, MonitorActor
from ..actors.scheduler import Scheduler, SchedulerActor, SchedulerCounts, SchedulerOptions
from .http.actor import Binding, HttpActor, HttpMessage
from .http.options import HttpOptions
from .http.server import HttpServer
from .kernel import BlockingPool, ChildSpec, RestartLimit, SupervisorSpec
from .serving import TreeServing

if TYPE_CHECKING:
    from .config import Config
    from .engine.port import LaneBackend, ModelInfo, TextCodec
    from .http.serving import RequestLog

TOKENISE_THREADS = 2
MODEL_LOAD_S = 1800.0


class Engine(Protocol):
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
    http: ChildSpec[HttpMessage] = field(repr=False)


def build_tree(config: Config, engine: Engine, log: RequestLog) -> Tree:
    """Lay out the actors: started left to right, top to bottom; stopped in reverse (DESIGN §2)."""
    lanes_config, server = config.lanes, config.server
    waiting = lanes_config.queue + lanes_config.count * lanes_config.batch
    pool = BlockingPool("tokenise", TOKENISE_THREADS, limit=waiting + TOKENISE_THREADS)
    lane_specs = [_lane_spec(index, lanes_config.batch, engine) for index in range(lanes_config.count)]
    lanes = [Lane(spec.ref) for spec in lane_specs]
    options = SchedulerOptions(lanes_config.batch, lanes_config.queue, lanes_config.max_tokens)
    counts = SchedulerCounts()
    scheduler_spec = ChildSpec(
        "scheduler",
        lambda: SchedulerActor(lanes, engine.codec(), engine.info(), pool, options, counts=counts),
        capacity=8 * waiting + 256,
        on_restart="drop",
        max_tasks=waiting + 8,
    )
    monitor_spec = ChildSpec("monitor", MonitorActor, capacity=64)
    scheduler = Scheduler(scheduler_spec.ref)
    serving = TreeServing(
        scheduler,
        lanes,
        Monitor(monitor_spec.ref),
        engine.info,
        aliases=config.model.aliases,
        queue_timeout_s=server.request_timeout or float(365 * 86_400),
    )
    http_spec = _http_spec(config, serving, log)
    root = SupervisorSpec(
        "root",
        [
            monitor_spec,
            SupervisorSpec(
                "serving",
                [SupervisorSpec("lanes", lane_specs, limit=RestartLimit(5, 60.0)), scheduler_spec],
                strategy="rest_for_one",
                limit=RestartLimit(5, 60.0),
            ),
            http_spec,
        ],
        limit=RestartLimit(3, 60.0),
    )
    return Tree(root, scheduler, serving, pool, http_spec)


def _lane_spec(index: int, batch: int, engine: Engine) -> ChildSpec[LaneMessage]:
    totals = LaneTotals()
    return ChildSpec(
        str(index),
        lambda: GenerationActor(engine.backend, totals),
        capacity=4 * batch + 64,
        on_restart="drop",
        start_s=MODEL_LOAD_S,
    )


def _http_spec(config: Config, serving: TreeServing, log: RequestLog) -> ChildSpec[HttpMessage]:
    options, binding = _http_options(config), Binding(config.server.port)

    def server() -> HttpServer:
        return HttpServer(serving, replace(options, port=binding.port), log)

    return ChildSpec("http", lambda: HttpActor(server, binding), capacity=64)


def _http_options(config: Config) -> HttpOptions:
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
    )
