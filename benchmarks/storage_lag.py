"""How late the event loop is while the storage actors work: two restores, two writes and a scan at a time.

The actors are the real ones (archive, readers, writers, each on threads of its own) over the real disk; only
the engine's buffers are plain ones. A ticker asks for the loop every millisecond, in a process that does
nothing else, first with the actors idle.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import uvloop
from samovar.actors.archive import Archive, ArchiveActor, ArchiveTotals, archive_pool
from samovar.actors.reader import ReaderActor, ReaderCounts, Readers, RestoreJob
from samovar.actors.writer import WriteJob, WriterActor, Writers, checkpoint_writer
from samovar.runtime.kernel import ActorSystem, ChildSpec, SupervisorSpec
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.tokens import TokenIds

from .storage_figures import PATIENCE, Figure, Load
from .storage_scan import IDENTITY, LIMITS, Contents, fill
from .storage_transfer import FS, LAYERS, make_state, strided

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from samovar.storage.spec import CheckpointSpec

    from .storage_transfer import State

TICK_S = 0.001
GOAL_MS = 20.0
ASK_S = 60.0
POOL = 2
SCANNED_TOKENS = 8_000


@dataclass(frozen=True)
class Buffers:
    """Plain memory as a checkpoint, and as what is being restored."""

    spec: CheckpointSpec
    views: Sequence[Sequence[memoryview]]

    @property
    def held_bytes(self) -> int:
        """Bytes of the tensors."""
        return self.spec.nbytes

    def segments(self) -> Sequence[Sequence[memoryview]]:
        """Return the views."""
        return self.views

    def finish(self) -> Buffers:
        """Return itself."""
        return self


class BufferRestorer:
    """Stands for the engine's restorer."""

    def open(self) -> None:
        """Do nothing."""

    def allocate(self, spec: CheckpointSpec) -> Buffers:
        """Return fresh memory, laid out as the engine's."""
        return Buffers(spec, [strided(len(spec.tokens), np.empty) for _ in spec.tensors()])

    def close(self) -> None:
        """Do nothing."""


class Tree:
    """The storage actors over one root."""

    def __init__(self, root: Path) -> None:
        self._pool = archive_pool()
        directory = partial(CheckpointDirectory, FS, root, IDENTITY, LIMITS)
        archive = ChildSpec(
            "archive",
            lambda: ArchiveActor(directory, self._pool, lambda: None, ArchiveTotals()),
            capacity=256,
            start_s=300.0,
        )
        counts = ReaderCounts()
        readers = [
            ChildSpec(f"reader{n}", lambda: ReaderActor(BufferRestorer, FS, IDENTITY.id, counts), capacity=16)
            for n in range(POOL)
        ]
        write = checkpoint_writer(FS, time.time)
        writers = [
            ChildSpec(f"writer{n}", partial(WriterActor, write), capacity=16, shutdown_s=60.0)
            for n in range(POOL)
        ]
        self._system = ActorSystem(SupervisorSpec("storage", [archive, *readers, *writers]))
        self.archive = Archive(archive.ref)
        self.readers = Readers([reader.ref for reader in readers], counts)
        self.writers = Writers([writer.ref for writer in writers])
        self._jobs = itertools.count()

    async def start(self) -> None:
        """Start the actors: the archive scans its root."""
        await self._system.start()

    async def stop(self) -> None:
        """Stop them and their thread."""
        await self._system.stop()
        self._pool.close()

    async def store(self, checkpoint: Buffers) -> None:
        """Write a checkpoint durably."""
        reservation = await self.archive.reserve(checkpoint.spec, ASK_S)
        stored = await self.writers.write(WriteJob(reservation, checkpoint, IDENTITY.id), ASK_S)
        await self.archive.commit(reservation, stored, ASK_S)

    async def restore(self, tokens: TokenIds) -> None:
        """Find and read a checkpoint."""
        prompt = TokenIds(np.append(np.array(tokens.tolist(), np.uint32), np.uint32(0)))
        match = (await self.archive.find(prompt, "", 0, ASK_S)).match
        assert match is not None
        await self.readers.restore(RestoreJob(str(next(self._jobs)), match.entry), ASK_S)


@dataclass
class Window:
    """What was done while lateness was measured."""

    late_ms: list[float] = field(default_factory=list[float])
    done: dict[str, int] = field(default_factory=dict[str, int])
    others: float = 0.0


async def _watched(seconds: float, work: dict[str, Callable[[], Awaitable[None]]]) -> Window:
    """Repeat each piece of work for ``seconds``; return how late the ticks between were."""
    PATIENCE.wait()
    window, until = Window(), time.monotonic() + seconds
    load = Load.now()
    tasks = [asyncio.create_task(_repeat(name, each, until, window)) for name, each in work.items()]
    while time.monotonic() < until or not all(task.done() for task in tasks):
        asked = time.perf_counter()
        await asyncio.sleep(TICK_S)
        window.late_ms.append((time.perf_counter() - asked - TICK_S) * 1e3)
    window.others = load.others()
    await asyncio.gather(*tasks)
    return window


async def _repeat(name: str, work: Callable[[], Awaitable[None]], until: float, window: Window) -> None:
    while time.monotonic() < until:
        await work()
        window.done[name] = window.done.get(name, 0) + 1


async def _measure(folder: Path, state: State, seconds: float, rounds: int) -> list[tuple[Window, Window]]:
    tree = Tree(folder / "used")
    await tree.start()
    checkpoints = [_renamed(state, number) for number in range(2 * POOL)]
    read, written = checkpoints[:POOL], checkpoints[POOL:]
    for checkpoint in read:
        await tree.store(checkpoint)
    work: dict[str, Callable[[], Awaitable[None]]] = {"scans": partial(_scan, folder / "scanned")}
    for number in range(POOL):
        work[f"restores {number}"] = partial(tree.restore, read[number].spec.tokens)
        work[f"writes {number}"] = partial(tree.store, written[number])
    windows = [(await _watched(seconds / 4, {}), await _watched(seconds, work)) for _ in range(rounds)]
    await tree.stop()
    return windows


async def _scan(root: Path) -> None:
    tree = Tree(root)
    await tree.start()
    await tree.stop()


def _renamed(state: State, number: int) -> Buffers:
    """Return the state under tokens of its own."""
    tokens = TokenIds(np.array([number, *range(1, len(state.spec.tokens))], np.uint32))
    return Buffers(replace(state.spec, tokens=tokens), state.segments)


def measure_lag(folder: Path, size_bytes: int, files: int, seconds: float, rounds: int) -> list[Figure]:
    """Return the lateness of the loop, idle and with everything going on, of the quietest of the rounds."""
    fill(folder / "scanned", Contents(files, SCANNED_TOKENS))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        windows = runner.run(_measure(folder, make_state(size_bytes), seconds, rounds))
    idle, busy = min(windows, key=lambda pair: pair[1].others)
    figures = [
        _figure("idle", idle, None),
        _figure(f"restores, writes, scans ({LAYERS} layers)", busy, GOAL_MS),
    ]
    every = ", ".join(f"{_percentile(window.late_ms, 99):.1f}" for _, window in windows)
    figures[1].facts["each round"] = f"{every} ms"
    return figures


def _figure(name: str, window: Window, goal: float | None) -> Figure:
    facts: dict[str, object] = {
        "p50": round(_percentile(window.late_ms, 50), 2),
        "max": round(max(window.late_ms), 1),
        "ticks": len(window.late_ms),
        "others": f"{window.others:.0%}",
    }
    for kind in ("restores", "writes", "scans"):
        facts[kind] = sum(count for name, count in window.done.items() if name.startswith(kind))
    return Figure(f"loop lag p99, {name}", _percentile(window.late_ms, 99), "ms", goal, "less", facts)


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]
