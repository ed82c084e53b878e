"""Carries out the troubles of a plan on whichever process runs when their time comes."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

from samovar.runtime.kernel import AskError

from .books import ID_BYTES, covers
from .flushes import flushed

if TYPE_CHECKING:
    from tests.kit.faults import Operation

    from .process import Process
    from .troubles import Trouble
    from .world import World

LOOK_S = 0.002
PLUG_S = 3.0
ADMIN_S = 700.0


async def happen(world: World, trouble: Trouble) -> None:
    """Wait for a trouble's time, and let it happen."""
    await asyncio.sleep(trouble.at_s)
    process = await world.serving()
    world.covered(trouble.name)
    world.log.say(f"{trouble.name} {dict(trouble.details)}")
    await _MISHAPS[trouble.name](world, process, **trouble.details)


def _path(process: Process, place: float) -> str:
    paths = process.paths()
    return paths[int(place * len(paths))]


async def _crash(world: World, process: Process, place: float) -> None:
    path = _path(process, place)
    world.covered(f"crash of {_kind(path)}")
    process.system.crash(path)


def _kind(path: str) -> str:
    return "/".join(part for part in path.split("/") if not part.isdigit()) + "/n" * path[-1].isdigit()


async def _crash_on(world: World, process: Process, place: float, nth: int) -> None:
    actors = [path for path in process.actors if path != "monitor"]
    path = actors[int(place * len(actors))]
    world.covered(f"crash of {_kind(path)}")
    process.crashes[path] = nth


async def _storm(world: World, process: Process, place: float, times: int, every_s: float) -> None:
    for _ in range(times):
        await _crash(world, process, place)
        await asyncio.sleep(every_s)


async def _step_fault(world: World, process: Process, phase: str, nth: int) -> None:
    process.engine.faults.append([phase, nth])


async def _panic(world: World, process: Process, kind: str) -> None:
    world.panics.add(kind)
    world.rough = True


# -- the disk


async def _disk_fault(  # noqa: PLR0917 - all of them are what a fault is
    world: World, process: Process, kind: str, number: int, often: float, times: int | None, for_s: float
) -> None:
    chance = world.turns.chance

    def strikes(operation: Operation) -> bool:
        return operation.kind == kind and chance.random() < often

    world.covered(f"fault {kind}")
    world.rough = True
    world.books.may_evict |= number == errno.ENOSPC  # whoever says so is made room for
    world.books.unreadable |= kind in {"open", "read"}
    disk = world.disk
    fault = disk.fail_when(strikes, number, times=times)
    world.faults.append(fault)
    await asyncio.sleep(for_s)
    fault.clear()
    if fault in world.faults:
        world.faults.remove(fault)


async def _full(world: World, process: Process, free: int, for_s: float) -> None:
    disk = world.disk
    disk.capacity_bytes = disk.used_bytes + free
    world.rough = world.books.may_evict = True
    await asyncio.sleep(for_s)
    disk.capacity_bytes = None


async def _short(world: World, process: Process, write: int | None, read: int | None) -> None:
    world.disk.short_write_bytes, world.disk.short_read_bytes = write, read


async def _slow(world: World, process: Process, mean_s: float, for_s: float) -> None:
    world.op_s, world.slow = mean_s, True
    await asyncio.sleep(for_s)
    world.op_s = world.plan.shape.op_s


async def _rot(world: World, process: Process, place: float, at: int) -> None:
    """Let one bit of a file flip: nothing can be expected of it any more."""
    entries = [] if process.directory is None else process.directory.entries()
    if not entries:
        return
    entry = entries[int(place * len(entries))]
    node = world.disk._lookup(entry.path)
    if node is None:
        return
    for data in (node.data, node.durable):  # type: ignore[union-attr]
        if data:
            data[at % len(data)] ^= 1
    books = world.books
    books.rotten.append(entry)
    for key in [key for key in books.acknowledged if covers(entry, key)]:
        del books.acknowledged[key]
    world.log.say(f"rotten: {len(entry.tokens.to_bytes()) // ID_BYTES} tokens")


async def _clock(world: World, process: Process, by_s: float) -> None:
    world.wall_offset_s += by_s


# -- administration


async def _asked(asking: Any) -> Any:
    try:
        return await asking
    except AskError:
        return None  # a crash, or the end of the process: who asked knows nothing


async def _clear(world: World, process: Process, tier: Any, op_s: float | None) -> None:
    """Clear; with ``op_s`` amid reads and writes that take their time."""
    if op_s is not None:
        world.op_s = op_s
        await asyncio.sleep(10 * op_s)
    books, before, failures = world.books, len(world.clears), len(process.failures)
    troubled = world.rough or world.disk_trouble
    report = await _asked(process.tree.cache.clear_cache(tier))  # type: ignore[union-attr]
    certain = not (troubled or world.rough or world.disk_trouble) and len(process.failures) == failures
    if report is not None and tier == "all" and certain and process.present:
        books.cleared_at = max(books.cleared_at, world.clears[before])
    if op_s is not None:
        world.op_s = world.plan.shape.op_s


async def _drain(world: World, process: Process) -> None:
    await _asked(process.tree.cache.drain_cache(ADMIN_S))  # type: ignore[union-attr]


async def _flush(world: World, process: Process, timeout_s: float) -> None:
    await flushed(world, process, timeout_s)


async def _close_session(world: World, process: Process, session: str) -> None:
    await _asked(process.tree.cache.close_session(session))  # type: ignore[union-attr]


async def _pressure(world: World, process: Process, excess: int, for_s: float) -> None:
    process.engine.excess = excess
    await asyncio.sleep(for_s)
    process.engine.excess = 0


# -- the end of a process


async def _stop(world: World, process: Process, timeout_s: float) -> None:
    await world.replace("stop", timeout_s=timeout_s, only=process)


async def _kill(world: World, process: Process) -> None:
    await world.replace("kill", only=process)


async def _power(world: World, process: Process, seed: int) -> None:
    await world.replace("power", seed=seed, only=process)


async def _plug(world: World, process: Process, operation: int, seed: int) -> None:
    """Pull the plug at an operation of the disk, whichever it is."""
    disk = world.disk
    disk.stop_at(operation)
    for _ in range(int(PLUG_S / LOOK_S)):
        if disk.dead or world.process is not process:
            break
        await asyncio.sleep(LOOK_S)
    await world.replace("power", seed=seed, only=process)


_MISHAPS: dict[str, Any] = {
    "crash": _crash,
    "crash_on": _crash_on,
    "storm": _storm,
    "step_fault": _step_fault,
    "panic": _panic,
    "disk_fault": _disk_fault,
    "full": _full,
    "short": _short,
    "slow": _slow,
    "rot": _rot,
    "clock": _clock,
    "clear": _clear,
    "drain": _drain,
    "flush": _flush,
    "close_session": _close_session,
    "pressure": _pressure,
    "stop": _stop,
    "kill": _kill,
    "power": _power,
    "plug": _plug,
}
