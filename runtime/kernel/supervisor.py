"""The actor that keeps actors alive."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from .cell import Cell, StopOutcome
from .errors import KernelError, RestartStorm, StartFailed
from .figures import ActorFigures, Counts, State
from .message import Failure
from .policy import RestartWindow, affected, restarts
from .spec import SupervisorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .system import ActorSystem

Node: TypeAlias = "Cell | Supervisor"

_SEVERITY: dict[StopOutcome, int] = {"stopped": 0, "killed": 1, "unstoppable": 2}


@dataclass(frozen=True, slots=True)
class _Ended:
    """One incarnation of a child (or, injected, of the supervisor itself) has ended unbidden."""

    node: Node
    incarnation: int
    failure: Failure | None


class _GiveUp(Exception):
    """The supervisor fails with ``error`` because of ``failure``. Never leaves the supervisor's loop."""

    def __init__(self, failure: Failure, error: BaseException) -> None:
        super().__init__()
        self.failure = failure
        self.error = error


class Supervisor:
    """Starts its children in order, restarts them by its strategy, stops them in reverse.

    A child that fails while the tree first comes up stops the start: a wrong configuration must end in an
    error, not in a restart loop. Later failures, failed restarts included, count against the limit; past
    it the supervisor stops its children and fails itself (a ``RestartStorm``). A child that is stuck in
    its previous incarnation fails to restart (``UnstoppableChild``) until that has ended. A child that is
    gone (temporary, or transient after a normal end) stays gone when the supervisor restarts.
    """

    kind: Literal["supervisor"] = "supervisor"

    def __init__(self, spec: SupervisorSpec, parent: Supervisor | None, system: ActorSystem) -> None:
        self.spec = spec
        self.parent = parent
        self.system = system
        self.path = parent.child_path(spec.id) if parent is not None else ""
        self.state: State = "stopped"
        self.incarnation = 0
        self.counts = Counts()
        self.last_failure: Failure | None = None
        self.children: list[Node] = [
            Supervisor(child, self, system)
            if isinstance(child, SupervisorSpec)
            else Cell(child, self, system)
            for child in spec.children
        ]
        self._window = RestartWindow(spec.limit)
        self._due_s: dict[int, float] = {}  # child index → loop time of its restart
        self._events: list[_Ended] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def child_path(self, child_id: str) -> str:
        """Return the path of a child; the root itself has none."""
        return f"{self.path}/{child_id}" if self.path else child_id

    def walk(self) -> Iterator[Node]:
        """Yield this supervisor and everything below it, in starting order."""
        yield self
        for child in self.children:
            if isinstance(child, Supervisor):
                yield from child.walk()
            else:
                yield child

    # -- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the children in order. Raises StartFailed, with everything stopped again."""
        self.incarnation += 1
        self.state = "starting"
        self._due_s.clear()
        self._window = RestartWindow(self.spec.limit)
        try:
            for child in self.children:
                if child.state != "gone":
                    await child.start()
                self._check_starting()
        except StartFailed:
            if self.state == "starting":  # else whoever stops this supervisor stops the children
                await self.stop(returning=True)
            raise
        self.state = "running"
        self._task = self.system.loop.create_task(self._supervise(), name=self.path or "root")

    def _check_starting(self) -> None:
        if self.state != "starting":
            raise StartFailed(self.path or "root", "it was stopped while it started")

    async def stop(self, *, returning: bool) -> StopOutcome:
        """Stop the children in reverse order; the worst of their outcomes is the result."""
        self.state = "stopping"
        await self._stop_supervising()
        outcome = await self._stop_children(returning=returning)
        self.state = "stopped" if returning else "gone"
        return outcome

    async def _stop_supervising(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _stop_children(self, *, returning: bool) -> StopOutcome:
        self._due_s.clear()
        worst: StopOutcome = "stopped"
        for child in reversed(self.children):
            outcome = await child.stop(returning=returning)
            worst = max(worst, outcome, key=lambda each: _SEVERITY[each])
        for event in self._events:
            if event.failure is not None:  # nobody decides about it any more, but it must be known
                self.system.failed(event.failure, None)
        self._events.clear()
        return worst

    def retire(self) -> None:
        """Mark everything below as gone for good."""
        self.state = "gone"
        for child in self.children:
            child.retire()

    def suspend(self) -> None:
        """Mark everything below as down but coming back."""
        self.state = "restarting"
        for child in self.children:
            if child.state != "gone":
                child.suspend()

    def inject(self, error: BaseException) -> None:
        """Fail this supervisor itself, as if it had seen a restart storm."""
        failure = Failure(self.path, self.incarnation, error, None, self.system.now_s())
        self.child_ended(self, failure)

    def will_restart(self, child: Node, *, crashed: bool) -> bool:
        """Whether a child that ends unbidden now is meant to come back."""
        if self.system.closing or self.state in ("stopped", "gone"):
            return False
        return restarts(child.spec.restart, crashed=crashed)

    def child_ended(self, child: Node, failure: Failure | None) -> None:
        """Take note that a child ended unbidden (called by the child)."""
        self._events.append(_Ended(child, child.incarnation, failure))
        self._wake.set()

    # -- restarts -------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            while True:
                await self._wait()
                while self._events:
                    await self._decide(self._events.pop(0))
                await self._restart_due()
        except _GiveUp as reason:
            await self._give_up(reason.failure, reason.error)

    async def _wait(self) -> None:
        next_s = min(self._due_s.values(), default=math.inf)
        delay_s = None if next_s == math.inf else max(0.0, next_s - self.system.now_s())
        waiter = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({waiter}, timeout=delay_s)
        finally:
            waiter.cancel()
        self._wake.clear()

    async def _decide(self, event: _Ended) -> None:
        """Plan the restart that the policy asks for. Raises _GiveUp past the limit."""
        child, failure, now_s = event.node, event.failure, self.system.now_s()
        if child is self:
            if failure is not None and event.incarnation == self.incarnation:
                raise _GiveUp(failure, failure.error)
            return
        index = self.children.index(child)
        if index in self._due_s or child.incarnation != event.incarnation or child.state == "gone":
            # It ended beside a sibling whose group took it along: its restart is planned or done already.
            if failure is not None:
                self.system.failed(failure, max(0.0, self._due_s.get(index, now_s) - now_s))
            return
        if not restarts(child.spec.restart, crashed=failure is not None):
            if failure is not None:
                self.system.failed(failure, None)
            child.retire()
            return
        if failure is None:
            ended = KernelError(f"{child.path} ended by itself")
            failure = Failure(child.path, child.incarnation, ended, None, now_s)
        await self._plan(index, failure)

    async def _plan(self, failed: int, failure: Failure) -> None:
        """Stop the group of child ``failed`` and plan its restart. Raises _GiveUp."""
        if not self._window.admit(self.system.now_s()):
            self.system.failed(failure, None)
            raise _GiveUp(failure, self._storm(failure))
        delay_s = self.spec.backoff.delay_s(self._window.count, self.system.chance)
        self.system.failed(failure, delay_s)
        due_s = self.system.now_s() + delay_s
        for index in reversed(affected(self.spec.strategy, failed, len(self.children))):
            child = self.children[index]
            if child.state == "gone":
                continue
            returning = child.spec.restart != "temporary"
            # One that is stuck is planned as well: its start fails and counts, until it has ended.
            await child.stop(returning=returning)
            if returning:
                child.suspend()
                # Later members of a group wait for the failed one, so nothing in it comes up earlier.
                self._due_s[index] = max(due_s, self._due_s.get(index, 0.0))

    async def _restart_due(self) -> None:
        """Start what is due, in order. Raises _GiveUp when a failed start passes the limit."""
        now_s = self.system.now_s()
        for index, child in enumerate(self.children):
            if self._events:
                return  # a crash meanwhile may change what is due
            if self._due_s.get(index, math.inf) > now_s:
                continue
            del self._due_s[index]
            child.counts.restarts += 1
            try:
                await child.start()
            except StartFailed as error:
                cause = error.__cause__ or error
                failure = Failure(child.path, child.incarnation, cause, None, self.system.now_s())
                child.last_failure = failure
                await self._plan(index, failure)
            else:
                self.system.observer.restarted(child.path, child.incarnation)

    def _storm(self, failure: Failure) -> RestartStorm:
        limit = self.spec.limit
        error = RestartStorm(
            f"{self.path or 'root'}: more than {limit.restarts} restarts in {limit.window_s} s;"
            f" last failure: {failure}"
        )
        error.__cause__ = failure.error
        return error

    async def _give_up(self, failure: Failure, error: BaseException) -> None:
        returning = self.parent is not None and self.parent.will_restart(self, crashed=True)
        self.state = "stopping"
        if self.parent is None:
            self.system.closing = True
        await self._stop_children(returning=returning)
        own = Failure(self.path or "root", self.incarnation, error, None, self.system.now_s())
        self.last_failure = own
        self.state = "stopped"
        self.system.observer.gave_up(self.path or "root", failure)
        if self.parent is None:
            self.system.root_failed(own)
        else:
            self.parent.child_ended(self, own)

    # -- figures ------------------------------------------------------------------------------------------

    def figures(self) -> ActorFigures:
        """Return a snapshot; a supervisor has no mailbox of its own."""
        return ActorFigures(
            path=self.path,
            kind=self.kind,
            state=self.state,
            incarnation=self.incarnation,
            depth=len(self._events),
            capacity=len(self.children),
            oldest_age_s=0.0,
            handled=self.counts.handled,
            skipped=0,
            handle_mean_s=0.0,
            handle_max_s=0.0,
            restarts=self.counts.restarts,
            dead_letters={},
            open_asks=0,
            tasks=0,
            last_failure=self.last_failure,
            unstoppable=0,
        )
