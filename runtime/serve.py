"""The server's life: from a configuration to an exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, cast

import uvloop

from ..storage.fs import OsFilesystem
from .app import build_tree
from .engine.errors import EngineError, ModelError, SchemeRefused
from .http.actor import GetAddress
from .kernel import ActorSystem, AskError, StartFailed
from .logs import get_logger
from .observer import LogObserver
from .progress import shown_progress
from .requestlog import LineLog

if TYPE_CHECKING:
    from ..storage.filesystem import Filesystem
    from .app import Engine, Tree
    from .config import Config
    from .engine.models.loading import DtypePolicy
    from .engine.port import ModelInfo
    from .http.serving import RequestLog

EXIT_OK, EXIT_FAILED, EXIT_GAVE_UP = 0, 1, 70

ECHO_S = 0.1
"""A signal that follows the first one this soon is the same one, sent to the process and to its group."""

FLUSH_LEAST_S = 2.0
"""What a flush gets at the end even when draining took all the time there was."""

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


def serve(config: Config) -> int:
    """Serve until SIGINT or SIGTERM, or until the root supervisor gives up; return the exit code.

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
        return runner.run(run(config, engine, LineLog(), OsFilesystem()))


async def run(config: Config, engine: Engine, log: RequestLog, fs: Filesystem) -> int:
    """Run a tree on this loop until it is to end; return the exit code."""
    try:
        tree = build_tree(config, engine, log, fs)
    except EngineError as error:  # the identity of the model's states needs the model
        raise start_error(error) from error
    system = ActorSystem(tree.root, observer=LogObserver())
    tree.serving.system = system
    stop = _stop_on_signals()
    try:
        code = await _live(system, tree, config, stop)
    finally:
        await system.stop()
        tree.close()
    return code


async def _live(system: ActorSystem, tree: Tree, config: Config, stop: asyncio.Event) -> int:
    begun_s = system.now_s()
    starting = asyncio.ensure_future(system.start())
    if not await _first(starting, stop):
        return EXIT_OK  # told to stop before it was up
    if (error := starting.exception()) is not None:
        raise start_error(error) from error
    tree.serving.started()
    _log.info(
        "ready",
        address=await tree.http.ref.ask(GetAddress(), 1.0),
        model=tree.serving.model().id,
        dtype=tree.serving.model().dtype,
        kv=tree.serving.model().scheme,
        start_s=round(system.now_s() - begun_s, 3),
    )
    _tell_scheme(tree.serving.model())
    _calm_collector()
    recalling = asyncio.ensure_future(tree.recall_history())
    giving_up = asyncio.ensure_future(system.wait())
    try:
        if await _first(giving_up, stop):
            _log.error("giving_up", failure=str(giving_up.result()))
            return EXIT_GAVE_UP
        return await _end_in_order(tree, config.server.shutdown_timeout)
    finally:
        recalling.cancel()
        await asyncio.wait({recalling})


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


async def _end_in_order(tree: Tree, timeout_s: float) -> int:
    """Not ready → no admission → active requests finish → everything published is on disk.

    All of it within ``timeout_s``, but a flush gets FLUSH_LEAST_S even when the requests took it all.
    """
    until_s = asyncio.get_running_loop().time() + timeout_s
    drained = await _drain(tree, timeout_s)
    left_s = until_s - asyncio.get_running_loop().time()
    flushed = await _flush(tree, max(left_s, FLUSH_LEAST_S))
    return EXIT_OK if drained and flushed else EXIT_FAILED


async def _drain(tree: Tree, timeout_s: float) -> bool:
    tree.serving.draining = True
    _log.info("draining", timeout_s=timeout_s)
    try:
        await tree.scheduler.drain(timeout_s)
    except AskError as error:
        _log.error("drain_incomplete", error=str(error))
        return False
    _log.info("drained")
    return True


async def _flush(tree: Tree, timeout_s: float) -> bool:
    """Bring what was published to disk. True where there is no disk tier to bring it to."""
    if tree.cache is None:
        return True
    try:
        report = await tree.cache.settle(timeout_s)
    except AskError as error:
        _log.error("flush_failed", error=str(error))
        return False
    if report is None:
        return True
    figures = {
        "entries": report.entries,
        "flushed": report.flushed,
        "elapsed_ms": round(report.elapsed_ms, 1),
    }
    if report.durable:
        _log.info("flushed", **figures)
    else:
        _log.error("flush_incomplete", reason=report.reason, pending=report.pending, **figures)
    return report.durable


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


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    first_s = 0.0

    def on_signal(name: str) -> None:
        nonlocal first_s
        if not stop.is_set():
            first_s = loop.time()
            _log.info("stopping", signal=name)
            stop.set()
        elif loop.time() - first_s > ECHO_S:
            _log.warning("forced", signal=name)
            os._exit(EXIT_FAILED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number.name)
    return stop


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
