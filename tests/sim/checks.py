"""What must hold of a tree at any moment, at rest, and of one that goes on after a last restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from samovar.runtime.kernel import AskError

from .books import ID_BYTES, lengths, uncovered
from .client import Call
from .engine import serves_from
from .flushes import flushed, held_keys
from .plan import Turn

if TYPE_CHECKING:
    from .books import Key
    from .process import Process
    from .world import World

ASK_S = 1000.0
ROUNDS = 400
GO_ON = 3
AT_REST_ONLY = ("storage/archive",)
"""Their books are also changed on a thread of theirs."""


# -- at any moment


async def watch(world: World) -> None:
    """Compare the books of all actors, and their counters, now and then."""
    while True:
        await asyncio.sleep(world.chance.uniform(0.05, 1.0))
        process = world.process
        if process is not None and not process.stopping:
            integrity(world, process, at_rest=False)
            await _counters(world, process)
            world.judge()


def integrity(world: World, process: Process, *, at_rest: bool) -> None:
    """Let every actor that runs look at its own books."""
    for path in list(process.actors):
        actor = process.running(path)
        if actor is None or (path in AT_REST_ONLY and not at_rest):
            continue
        check = getattr(actor, "check_integrity", None)
        if check is not None:
            try:
                check()
            except AssertionError as error:
                world.books.wrong(f"{path}: {error!r}")
    _check_cleared(world, process)
    directory, shape = process.directory, world.plan.shape
    if directory is not None and not world.disk_trouble and process.running("storage/archive"):
        figures = directory.figures()
        if figures.total_bytes > shape.ssd_bytes and not figures.unrecovered:
            world.books.wrong(f"the disk tier takes {figures.total_bytes} of {shape.ssd_bytes} bytes")


def _check_cleared(world: World, process: Process) -> None:
    """What was put before everything was cleared is nowhere."""
    books = world.books
    if not books.cleared_at:
        return
    files = () if process.directory is None else process.directory.entries()
    keys = [*held_keys(process), *((entry.namespace, entry.tokens.to_bytes()) for entry in files)]
    if risen := [key for key in keys if books.put.get(key, 0) <= books.cleared_at]:
        books.wrong(f"cleared at message {books.cleared_at}, and there again: {lengths(risen)}")


async def _counters(world: World, process: Process) -> None:
    stats = await process.tree.serving.stats()
    if process is world.process:
        process.counters.look(stats, world.books)


# -- at rest


async def at_rest(world: World) -> None:
    """Wait until nothing goes on any more, then compare everything."""
    world.heal()
    process = await world.serving()
    for _ in range(ROUNDS):
        await asyncio.sleep(0.25)
        process = await world.serving()
        if await _rests(world, process):
            break
    else:
        world.books.wrong(f"it never comes to rest: {_busy(world, process)}")
        world.judge()
    integrity(world, process, at_rest=True)
    await _check_rest(world, process)
    await _counters(world, process)
    world.judge()
    await flushed(world, process, 600.0, must=True)
    _check_disk(world, process)
    world.judge()


async def _rests(world: World, process: Process) -> bool:
    if not process.system.running or process.calls or not world.turns.idle():
        return False
    if any(each.open_asks or each.depth for each in process.system.figures() if each.path != "monitor"):
        return False
    try:
        requests = await process.tree.scheduler.figures(ASK_S)
    except AskError:
        return False
    return (requests.queued, requests.running) == (0, 0) and not _unrecovered(process)


def _unrecovered(process: Process) -> int:
    """Return how much of a scan is still to be tried again."""
    return 0 if process.directory is None else process.directory.figures().unrecovered


def _busy(world: World, process: Process) -> list[str]:
    busy = [
        f"{each.path} {each.state} {each.depth} waiting, {each.open_asks} asked"
        for each in process.system.figures()
        if each.state != "running" or each.depth or each.open_asks
    ]
    busy.append(f"{_unrecovered(process)} unrecovered")
    return [*busy, f"{len(process.calls)} calls", f"threads idle: {world.turns.idle()}"]


async def _check_rest(world: World, process: Process) -> None:
    wrong = world.books.wrong
    for stream in process.streams:
        if stream.terminal is None:
            wrong(f"{stream.id} has no end")
    requests = await process.tree.scheduler.figures(ASK_S)
    ended = requests.finished + requests.cancelled + requests.failed
    if requests.admitted > ended:
        wrong(f"of {requests.admitted} admitted requests {ended} have ended")
    if process.tree.tiers is None:
        return
    held = await process.tree.tiers.residency.figures(ASK_S)
    if held.leases or held.waiting or held.restoring:
        wrong(f"at rest, and {held.leases} leases, {held.waiting} waiting, {held.restoring} restoring")
    if held.bytes > world.plan.shape.hard_bytes:
        wrong(f"{held.bytes} bytes in RAM")
    for path, actor in process.actors.items():
        if path.startswith("serving/lanes/") and actor._rows:  # type: ignore[attr-defined]
            wrong(f"{path} still has rows: {list(actor._rows)}")  # type: ignore[attr-defined]


def _check_disk(world: World, process: Process) -> None:
    """Files and figures agree, nothing in RAM passes for durable that is not, nothing is over the cap."""
    residency, directory = process.running("serving/residency"), process.directory
    if directory is None or residency is None:
        return
    durable = [(e.namespace, e.tokens.to_bytes()) for e in residency._ram.entries if e.durable]
    if lost := uncovered(durable, directory.entries()):
        world.books.wrong(f"durable in RAM and not on disk: {lengths(lost)}")
    if lost := uncovered(world.books.acknowledged, directory.entries()):
        world.books.wrong(f"acknowledged and not on disk: {lengths(lost)}")
    held = [(e.namespace, e.tokens.to_bytes()) for e in residency._ram.entries]
    absent = [key for key in process.owed if not _covered(key, held, world.plan.shape.kind)]
    nowhere = uncovered(uncovered(absent, directory.entries()), world.books.gone)
    if nowhere and not process.lost:
        world.books.wrong(f"published, and in neither tier, and nothing made it go: {lengths(nowhere)}")
    kept = sum(len(data) for path, data in world.disk.files().items() if path.suffix in {".kv", ".tmp"})
    figures = directory.figures()
    known = figures.total_bytes + figures.foreign_bytes
    if kept > known and not world.books.unreadable:
        world.books.wrong(f"{kept} bytes of files, of which {known} are known: {figures}")


def _covered(key: Key, held: list[Key], kind: str) -> bool:
    count = len(key[1]) // ID_BYTES
    return any(
        other == key
        or (
            other[0] == key[0]
            and other[1].startswith(key[1])
            and serves_from(kind, len(other[1]) // ID_BYTES) <= count
        )
        for other in held
    )


# -- afterwards


async def go_on(world: World) -> None:
    """Take up old conversations on the last process: they are answered rightly, from whatever is left."""
    process = await world.serving()
    turn = Turn("and then?", 6, 0.0)
    for client, history in list(world.last_prompts.values())[:GO_ON]:
        calmer = replace(client, turns=())
        call = Call(world, calmer, turn, list(history), f"{client.name}.after")
        outcome: Any = await call.make(process)
        if outcome not in {"finished", "refused", "failed"}:
            world.books.wrong(f"{call.id} {outcome}")
