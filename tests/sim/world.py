"""The machine around the processes: disk, wall clock, clients, troubles; one process after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from samovar.runtime.ending import end_in_order
from samovar.runtime.kernel import StartFailed

from tests.kit.disk import FaultDisk

from . import checks
from .books import Books
from .client import live
from .endings import of_ended
from .engine import Planned
from .flushes import of_durable
from .journal import Journal
from .mishaps import happen
from .process import Process

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from samovar.storage.directory import CheckpointDirectory

    from tests.cache.turns import TurnLoop, Turns
    from tests.kit.faults import Fault, Operation

    from .plan import Client, Plan

EPOCH_S = 1_700_000_000.0
PATIENCE_S = 4000.0
"""Virtual seconds after which a run that does not end is stuck."""
STARTS = 40
DOWN_S = 0.3
End: TypeAlias = Literal["stop", "kill", "power", "gave up"]


class Broken(AssertionError):
    """A promise was broken."""


class World:
    """One run. Loop thread, but for ``hook`` and ``wall``."""

    def __init__(self, plan: Plan, turns: Turns, loop: TurnLoop) -> None:
        self.plan, self.turns = plan, turns
        self.chance = Random(plan.seed + 1)
        self.log = Journal(turns.now_s)
        self.books = Books(plan.shape.kind, may_evict=plan.shape.ssd_bytes < 1 << 30)
        self.coverage: Counter[str] = Counter()
        self.clears: list[int] = []
        self.wall_offset_s = 0.0
        self.faults: list[Fault] = []
        self.panics: set[str] = set()
        self.op_s = plan.shape.op_s
        self.rough = self.slow = False
        self.last_prompts: dict[str, tuple[Client, tuple[str, ...]]] = {}
        self.process: Process | None = None
        self.latest: Process
        self._up = asyncio.Event()
        self._turnover = asyncio.Lock()
        self._processes = 0
        self._keepers: list[asyncio.Task[None]] = []
        self._adopt(FaultDisk(clock=self.wall))
        turns.pace = self._pace

    def wall(self) -> float:
        """Return Unix seconds, as wrong as the clock is set."""
        return EPOCH_S + self.turns.now_s() + self.wall_offset_s

    def covered(self, what: str) -> None:
        """Count that something came up."""
        self.coverage[what] += 1

    # -- the disk

    @property
    def disk_trouble(self) -> bool:
        """Whether something may still be wrong with the disk."""
        return bool(self.faults or self.panics) or self.disk.dead or self.disk.capacity_bytes is not None

    def _adopt(self, disk: FaultDisk) -> None:
        self.disk = disk
        disk.hook = self.hook
        disk.capacity_bytes = None
        self.faults.clear()
        self.panics.clear()
        self.rough = self.slow = False

    def hook(self, operation: Operation) -> None:
        """Let an operation take its time, and then kill the thread that is at it, if that is planned."""
        self.turns.hook(operation)
        if operation.kind in self.panics:
            self.panics.discard(operation.kind)
            raise Planned(f"a thread dies in {operation.kind}")

    def _pace(self, _: Operation) -> float | None:
        chance = self.turns.chance
        if self.disk.dead or chance.random() < 0.6:
            return None
        return chance.expovariate(1 / self.op_s) if self.op_s else 0.0

    def heal(self) -> None:
        """Let the disk be as good as new from now on, and what is planned and has not come not come."""
        if self.process is not None:
            self.process.crashes.clear()
            self.process.engine.faults.clear()
        for fault in self.faults:
            fault.clear()
        self.faults.clear()
        self.panics.clear()
        self.disk.capacity_bytes = self.disk.short_write_bytes = self.disk.short_read_bytes = None
        self.op_s = self.plan.shape.op_s
        self.turns.hurry()

    # -- processes

    def directory_made(self, *given: Any) -> CheckpointDirectory:
        """Make a directory for the latest process, in the place of the class itself."""
        return self.latest.directory_made(*given)

    async def serving(self) -> Process:
        """Wait until there is a process that answers; it may be about to end."""
        while self.process is None:
            await self._up.wait()
        return self.process

    async def begin(self) -> None:
        """Start a process, again and again as a service manager does."""
        for _ in range(STARTS):
            self._processes += 1
            process = self.latest = Process(self, self._processes)
            try:
                await process.start()
            except StartFailed as error:
                if not (self.disk_trouble or process.failures):
                    self.books.wrong(f"it does not start: {error!r}")
                self.covered("start failed")
                process.tree.close()
                of_ended(self, process)
                self._adopt(self.disk.kill())
                await asyncio.sleep(DOWN_S)
                continue
            self.process = process
            self._up.set()
            self.log.say(f"process {self._processes} runs")
            self._keepers.append(asyncio.ensure_future(self._keep(process)))
            return
        raise Broken("no process starts any more")

    async def _keep(self, process: Process) -> None:
        """Replace a process whose root supervisor gives up."""
        await process.system.wait()
        await self.replace("gave up", only=process)

    async def replace(
        self, how: End, *, seed: int = 0, timeout_s: float = 120.0, only: Process | None = None
    ) -> None:
        """End the process, and start the next one on what is left. Not if it is another than ``only``."""
        async with self._turnover:
            process = self.process
            if process is None or (only is not None and process is not only):
                return
            self.log.say(f"{how}")
            self.covered(f"end {how}")
            if how == "stop":
                await self._stop(process, timeout_s)
            self.process = None
            self._up.clear()
            disk = await self._fallen(process, how, seed)
            of_ended(self, process)
            self._adopt(disk)
            await asyncio.sleep(DOWN_S)
            await self.begin()

    async def _stop(self, process: Process, timeout_s: float) -> None:
        """End in order: what the exit code calls durable is durable."""
        calm = not self._rough_since(process)
        work = asyncio.ensure_future(end_in_order(process.tree, timeout_s))
        await asyncio.wait({work, *self._keepers[-1:]}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() or process.given_up:
            work.cancel()
            await asyncio.wait({work})
            return
        code = work.result()
        self.covered(f"exit {code}")
        if code == 0:
            of_durable(self, process, "stopped with 0")
        elif calm and timeout_s > 60.0 and not (self.books.may_evict or self._rough_since(process)):
            self.books.wrong("it stopped with 1, and nothing was wrong")

    def _rough_since(self, process: Process) -> bool:
        return self.rough or self.slow or self.disk_trouble or bool(process.failures or process.lost)

    async def _fallen(self, process: Process, how: End, seed: int) -> FaultDisk:
        """Take a process down; return the disk that the next one finds."""
        disk = None
        if how in {"kill", "power"}:
            disk = self.disk.crash(seed) if how == "power" else self.disk.kill()
            process.present = False
            self.disk.unplug()
        if self.slow:
            process.stuck_allowed = True
        self.turns.hurry()
        await process.end()
        process.present = False
        return disk or self.disk.kill()

    # -- a run

    async def run(self) -> None:
        """Live the plan, then come to rest, and see what a last restart finds."""
        await self.begin()
        looking = asyncio.ensure_future(checks.watch(self))
        doing: list[Awaitable[None]] = [live(self, client) for client in self.plan.clients]
        doing += [happen(self, trouble) for trouble in self.plan.troubles]
        work = [asyncio.ensure_future(each) for each in doing]
        work.append(asyncio.ensure_future(self._heal_at_last()))
        await asyncio.wait(work, timeout=PATIENCE_S)
        stuck = [task for task in work if not task.done()]
        for task in work:
            if task.done():
                task.result()
        if stuck:
            self.books.wrong(f"{len(stuck)} clients or troubles wait for ever")
        looking.cancel()
        self.judge()
        await checks.at_rest(self)
        await self.replace(self.plan.ends, seed=self.plan.seed)
        await checks.go_on(self)
        await checks.at_rest(self)
        await self._close()
        self.judge()

    async def _heal_at_last(self) -> None:
        await asyncio.sleep(self.plan.lasts_s + 1.0)
        self.heal()

    async def _close(self) -> None:
        process = await self.serving()
        code = await end_in_order(process.tree, 120.0)
        if code != 0 and not (self.books.may_evict or process.lost):
            self.books.wrong("the last stop did not bring everything to disk")
        self.process = None
        await process.end()
        of_ended(self, process)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.wait(self._keepers)

    def judge(self) -> None:
        """Raise what is wrong."""
        if self.books.wrongs:
            raise Broken("\n".join(self.books.wrongs))
