"""The server's life: from a configuration to an exit code."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Any, cast

import uvloop

from ..storage.fs import OsFilesystem
from .app import build_tree
from .ending import EXIT_OK, end_in_order
from .engine.errors import EngineError, ModelError, SchemeRefused
from .http.actor import GetAddress
from .kernel import ActorSystem, StartFailed
from .logs import get_logger
from .notify import Notifier, service_manager
from .observer import LogObserver
from .progress import shown_progress
from .reload import Reloader
from .requestlog import LineLog
from .signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..storage.filesystem import Filesystem
    from .app import Engine, Tree
    from .config import Config, Loaded
    from .engine.checkpoint import MemoryReading
    from .engine.models.loading import DtypePolicy
    from .engine.port import ModelInfo
    from .http.serving import RequestLog

EXIT_GAVE_UP = 70

_log = get_logger("samovar.server")


class StartError(Exception):
    """The server could not start. ``code`` is that of the cause; the message names the setting at fault.

    ``usage`` says that it cannot ever start with these settings.
    """

    retryable = False

    def __init__(self, message: str, code: str, *, usage: bool) -> None:
        super().__init__(message)
        self.code = code
        self.usage = usage


def serve(config: Config, reread: Callable[[], Loaded] | None = None) -> int:
    """Serve until SIGINT or SIGTERM, or until the root supervisor gives up; return the exit code.

    ``reread`` reads the configuration's sources again, for SIGHUP; any thread, raises ConfigError.

    0: stopped in order. 1: active requests outlasted ``shutdown_timeout``, or not all that was published came
    to disk. 70: the root supervisor gave up.
    Raises StartError when it could not start. Main thread only. The caller should end the process with
    ``os._exit``: a thread that would not stop may still run.
    """
    try:
        engine = mlx_engine(config)
    except ModelError as error:
        raise start_error(error) from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config, engine, LineLog(), OsFilesystem(), reread))


async def run(
    config: Config,
    engine: Engine,
    log: RequestLog,
    fs: Filesystem,
    reread: Callable[[], Loaded] | None = None,
) -> int:
    """Run a tree on this loop until it is to end; return the exit code."""
    signals, manager = Signals(reloads=reread is not None).install(), service_manager()
    manager.status("starting")
    try:
        tree = build_tree(config, engine, log, fs)
    except EngineError as error:  # the identity of the model's states needs the model
        raise start_error(error) from error
    system = ActorSystem(tree.root, observer=LogObserver())
    tree.serving.system = system
    reloader = Reloader(config, reread, tree.adopt)
    _tell_memory(config, engine.memory()())
    try:
        code = await _live(system, tree, reloader, signals, manager)
    finally:
        await system.stop()
        tree.close()
    return code


async def _live(
    system: ActorSystem, tree: Tree, reloader: Reloader, signals: Signals, manager: Notifier
) -> int:
    begun_s = system.now_s()
    starting = asyncio.ensure_future(system.start())
    if not await _first(starting, signals.stop):
        return EXIT_OK  # told to stop before it was up
    if (error := starting.exception()) is not None:
        raise start_error(error) from error
    tree.serving.started()
    address = await tree.http.ref.ask(GetAddress(), 1.0)
    _tell_ready(tree.serving.model(), address, system.now_s() - begun_s)
    _calm_collector()
    status = f"serving {tree.serving.model().id} on {address}"
    manager.ready(status)
    chores = [
        asyncio.ensure_future(tree.recall_history()),
        asyncio.ensure_future(_reload_when_told(reloader, signals, manager, status)),
        asyncio.ensure_future(manager.watch(lambda: tree.serving.healthy)),
    ]
    try:
        return await _until_told(system, tree, reloader, signals, manager)
    finally:
        for chore in chores:
            chore.cancel()
        await asyncio.wait(chores)


async def _until_told(
    system: ActorSystem, tree: Tree, reloader: Reloader, signals: Signals, manager: Notifier
) -> int:
    giving_up = asyncio.ensure_future(system.wait())
    if await _first(giving_up, signals.stop):
        _log.error("giving_up", failure=str(giving_up.result()))
        return EXIT_GAVE_UP
    manager.stopping("finishing what runs, then flushing")
    return await end_in_order(tree, reloader.config.server.shutdown_timeout)


async def _reload_when_told(reloader: Reloader, signals: Signals, manager: Notifier, status: str) -> None:
    while True:
        await signals.reload.wait()
        signals.reload.clear()
        manager.reloading()
        took = await reloader.reload()
        manager.ready(status if took else f"{status}; the last reload was refused, see the log")


def _tell_ready(model: ModelInfo, address: str, start_s: float) -> None:
    _log.info(
        "ready",
        address=address,
        model=model.id,
        dtype=model.dtype,
        kv=model.scheme,
        start_s=round(start_s, 3),
    )
    _tell_scheme(model)


def _tell_memory(config: Config, reading: MemoryReading) -> None:
    """Say so where the cache is allowed more than there is: cache.ram.pressure will be what limits it."""
    if 0 < reading.limit_bytes < config.cache.ram.max:
        _log.warning(
            "cache_above_memory",
            key="cache.ram.max",
            max_bytes=config.cache.ram.max,
            memory_bytes=reading.limit_bytes,
            in_force=f"cache.ram.pressure = {config.cache.ram.pressure:.0%} of the memory",
        )


def _tell_scheme(model: ModelInfo) -> None:
    """Say which cache layers are kept how, where that is not the model's own way."""
    if model.scheme == "bf16":
        return
    _log.info("kv_scheme", scheme=model.scheme, layers=dict(model.layers))
    for note in model.scheme_notes:
        _log.warning("kv_layers_kept", scheme=model.scheme, reason=note)


def _calm_collector() -> None:
    """Keep what lives as long as the process out of the garbage collector's full passes.

    Measured with 512 streaming clients: full collections stopped the loop for 85 to 97 ms, and not at all
    afterwards.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


async def _first(work: asyncio.Future[Any], stop: asyncio.Event) -> bool:
    """Wait for ``work`` or ``stop``; True when the work ended first. It is cancelled otherwise."""
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({work, stopping}, return_when="FIRST_COMPLETED")
    stopping.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
        return False
    return True


def start_error(error: BaseException) -> StartError:
    """Return what to tell of a start that failed."""
    cause = error.__cause__ if isinstance(error, StartFailed) and error.__cause__ else error
    code = getattr(cause, "code", "start_failed")
    if isinstance(cause, ModelError):
        return StartError(f"model.path: {cause}", code, usage=not cause.retryable)
    if isinstance(cause, SchemeRefused):
        return StartError(str(cause), code, usage=True)
    if isinstance(error, StartFailed) and "/archive" in error.path and isinstance(cause, OSError):
        return StartError(f"cache.ssd.dir: {cause}", code, usage=True)
    return StartError(str(cause), code, usage=False)


def mlx_engine(config: Config) -> Engine:
    """Fetch, convert and name the configured model. Raises ModelError."""
    from .engine.assemble import assemble  # noqa: PLC0415 - another engine should not cost loading MLX
    from .engine.batching.backend import BackendOptions  # noqa: PLC0415
    from .engine.device import device_report  # noqa: PLC0415
    from .engine.state.scheme import KvChoice  # noqa: PLC0415

    report = device_report()
    _log.info("device", mlx=report.mlx_version, device=report.device, name=report.name)
    if report.is_cpu and not report.blas.active:
        _log.warning("slow_blas", reason=report.blas.reason, mend="samovar doctor")
    options = BackendOptions(
        config.lanes.batch,
        config.lanes.prefill_chunk,
        config.lanes.decode_gap * 1000.0,
        publish_min_tokens=config.cache.ram.min_tokens,
    )
    with shown_progress(sys.stderr) as progress:
        return assemble(
            config.model.path,
            options,
            dtype=cast("DtypePolicy", config.model.dtype),
            context_length=config.model.context_length,
            kv=KvChoice(config.kv.scheme, config.kv.group_size, config.kv.start),
            progress=progress,
        )
