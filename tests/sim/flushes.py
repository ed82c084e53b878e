"""What must hold of a flush, and of what an exit code of 0 says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samovar.runtime.kernel import AskError

from .books import lengths, uncovered

if TYPE_CHECKING:
    from samovar.actors.spilling.spill_reports import FlushReport

    from .books import Key
    from .process import Process
    from .world import World


async def flushed(world: World, process: Process, timeout_s: float, *, must: bool = False) -> None:
    """Flush, and hold the report against what is there."""
    cache, books = process.tree.cache, world.books
    owed, failures, clears = held_keys(process), len(process.failures), len(world.clears)
    gone = sum(books.left.values())
    if cache is None:
        return
    try:
        report = await cache.flush(timeout_s)
    except AskError as error:
        if must:
            books.wrong(f"a flush at rest: {error!r}")
        return
    if report.durable != (report.reason is None) or report.elapsed_ms > 1000.0 * (timeout_s + 2.0):
        books.wrong(f"it contradicts itself: {report}")
    disturbed = len(process.failures) > failures or len(world.clears) > clears or not process.present
    if report.durable and not disturbed and process.directory is not None:
        left = gone != sum(books.left.values())
        lost = uncovered(owed, process.directory.entries())
        if lost and not left:
            books.wrong(f"flushed as durable and not there: {lengths(lost)}")
        for key in owed:
            if key not in lost and uncovered([key], books.rotten):
                books.acknowledged[key] = None
    world.covered(f"flush {'durable' if report.durable else 'not durable'}")
    if must and not report.durable and world.plan.shape.ssd and not books.may_evict:
        await _confessed(world, process, report)


async def _confessed(world: World, process: Process, report: FlushReport) -> None:
    """At rest only what RAM had to let go may keep a flush from being durable, and it is told of once."""
    lost = process.lost
    if report.pending or not 0 < report.missing <= lost:
        world.books.wrong(f"at rest, and not durable, with {lost} lost: {report}")
    elif process.confessed:
        world.books.wrong(f"told of again: {report}")
    process.confessed = True
    world.covered("flush confesses")


def held_keys(process: Process) -> list[Key]:
    """Return what residency holds now."""
    residency = process.running("serving/residency")
    entries = () if residency is None else residency._ram.entries
    return [(entry.namespace, entry.tokens.to_bytes()) for entry in entries]


def of_durable(world: World, process: Process, why: str) -> None:
    """Everything that residency holds is on disk, but for what its cap does not take."""
    directory = process.directory
    if directory is None or world.books.may_evict:
        return
    held = held_keys(process)
    if lost := uncovered(held, directory.entries()):
        world.books.wrong(f"{why}, and not on disk: {lengths(lost)}")
