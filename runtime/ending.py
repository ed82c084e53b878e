"""An ordered end: what runs finishes, what was published comes to disk, and the exit code says so."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from .http.actor import CloseIdle, EndRequests
from .kernel import AskError
from .logs import get_logger

if TYPE_CHECKING:
    from .app import Tree

EXIT_OK, EXIT_FAILED = 0, 1

FLUSH_LEAST_S = 2.0
"""What a flush gets at the end even when draining took all the time there was."""

END_REQUESTS_S = 3.0

_log = get_logger("samovar.server")


async def end_in_order(tree: Tree, timeout_s: float) -> int:
    """Not ready → no admission → active requests finish → all that was published is on disk; the exit code.

    All of it within ``timeout_s``, but a flush gets FLUSH_LEAST_S even when the requests took it all.
    """
    until_s = asyncio.get_running_loop().time() + timeout_s
    drained = await _drain(tree, timeout_s)
    if not drained:
        await _end_requests(tree)
    left_s = until_s - asyncio.get_running_loop().time()
    flushed = await _flush(tree, max(left_s, FLUSH_LEAST_S))
    return EXIT_OK if drained and flushed else EXIT_FAILED


async def _drain(tree: Tree, timeout_s: float) -> bool:
    tree.serving.draining = True
    tree.http.ref.tell(CloseIdle())
    _log.info("draining", timeout_s=timeout_s)
    try:
        await tree.scheduler.drain(timeout_s)
    except AskError as error:
        _log.error("drain_incomplete", error=str(error))
        return False
    _log.info("drained")
    return True


async def _end_requests(tree: Tree) -> None:
    """Tell whoever still waits, now: a client should not have to sit through the flush to learn it."""
    with contextlib.suppress(AskError):
        await tree.http.ref.ask(EndRequests(), END_REQUESTS_S)


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
