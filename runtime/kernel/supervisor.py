"""The actor that keeps actors alive."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .cell import Cell, StopOutcome
from .errors import InjectedCrash, KernelError, RestartStorm, StartFailed
from .figures import ActorFigures, Counts, State
from .message import Failure
from .policy import RestartWindow, affected, restarts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .spec import SupervisorSpec
    from .system import ActorSystem

Node: TypeAlias = "Cell | Supervisor"


class Supervisor:
    """Starts its children in order, restarts them by its strategy, stops them in reverse.

    A child that fails while the tree first comes up stops the start: a wrong configuration must end in an
    error, not in a restart loop. Later failures, failed restarts included, count against the limit; past
    it the supervisor stops its children and fails itself (a ``RestartStorm``).
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
            Supervisor(child, self, system) if hasattr(child, "children") else Cell(child, self, system)  # type: ignore[arg-type]
            for child in spec.children
        ]
        self._window = RestartWindow(spec.limit)
        self._due_s: dict[int, float] = {}  # child index → loop time of its restart
        self._events: list[tuple[Node, Failure | None]] = []
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
        self._events.clear()
        self._due_s.clear()
        self._window = RestartWindow(self.spec.limit)
        for child in self.children:
            try:
                await child.start()
            except StartFailed:
                await self.stop(returning=True)
                raise
        self.state = "running"
        self._task = self.system.loop.create_task(self._supervise(), name=self.path or "root")

    async def stop(self, *, returning: bool) -> StopOutcome:
        """Stop the children in reverse order; the worst of their outcomes is the result."""
        self.state = "stopping"
        await self._stop_supervising()
        outcome = await self._stop_children(0, returning=returning)
        self.state = "stopped" if returning else "gone"
        return outcome

    async def _stop_supervising(self) -> None:
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task() and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _stop_children(self, first: int, *, returning: bool) -> StopOutcome:
        outcomes: list[StopOutcome] = [
            await child.stop(returning=returning) for child in reversed(self.children[first:])
        ]
        return max(outcomes, key=("stopped", "killed", "unstoppable").index, default="stopped")

    def retire(self) -> None:
        """Mark everything below as gone for good."""
        self.state = "gone"
        for child in self.children:
            child.retire()

    def suspend(self) -> None:
        """Mark everything below as down but coming back."""
        self.state = "restarting"
        for child in self.children:
            if child.state not in ("gone", "unstoppable"):
                child.suspend()

    def inject(self, error: BaseException) -> None:
        """Fail this supervisor itself, as if it had seen a restart storm."""
        failure = Failure(self.path, self.incarnation, error, None, self.system.now_s())
        self._events.append((self, failure))
        self._wake.set()

    # -- restarts -------------------------------------------------------------------------------------

    def will_restart(self, child: Node, *, crashed: bool) -> bool:
        """Whether a child that ends now is meant to come back."""
        if self.state not in ("running", "stopping", "restarting") or self.system.closing:
            return False
        return self.state != "running" or restarts(child.spec.restart, crashed=crashed)

    def child_ended(self, child: Node, failure: Failure | None) -> None:
        """Take note that a child ended unbidden (called by the child)."""
        self._events.append((child, failure))
        self._wake.set()

    async def _supervise(self) -> None:
        while True:
            await self._wait()
            while self._events:
                child, failure = self._events.pop(0)
                if child is self and failure is not None:
                    return await self._give_up(failure, failure.error)
                storm = await self._decide(child, failure)
                if storm is not None:
                    return await self._give_up(storm, None)
            storm = await self._restart_due()
            if storm is not None:
                return await self._give_up(storm, None)

    async def _wait(self) -> None:
        next_s = min(self._due_s.values(), default=math.inf)
        delay_s = None if next_s == math.inf else max(0.0, next_s - self.system.now_s())
        waiter = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({waiter}, timeout=delay_s)
        finally:
            waiter.cancel()
        self._wake.clear()

    async def _decide(self, child: Node, failure: Failure | None) -> Failure | None:
        """Plan the restart that the policy asks for; return the failure that passed the limit, if any."""
        index = self.children.index(child)
        if not restarts(child.spec.restart, crashed=failure is not None):
            if failure is not None:
                self.system.observer.failed(failure, None)
            child.retire()
            return None
        failure = failure or Failure(
            child.path, child.incarnation, KernelError("ended by itself"), None, self.system.now_s()
        )
        if not self._window.admit(self.system.now_s()):
            self.system.observer.failed(failure, None)
            return failure
        delay_s = self.spec.backoff.delay_s(self._window.count, self.system.chance)
        self.system.observer.failed(failure, delay_s)
        await self._plan(index, delay_s)
        return None

    async def _plan(self, failed: int, delay_s: float) -> None:
        group = affected(self.spec.strategy, failed, len(self.children))
        due_s = self.system.now_s() + delay_s
        for index in reversed(group):
            child = self.children[index]
            if child.state in ("gone", "unstoppable"):
                continue
            if child.state in ("running", "starting"):
                await child.stop(returning=True)
            if child.state != "unstoppable":
                child.suspend()
            # Later members of a group start after the failed one, so nothing in it comes up earlier.
            self._due_s[index] = max(due_s, self._due_s.get(index, 0.0))

    async def _restart_due(self) -> Failure | None:
        now_s = self.system.now_s()
        for index in sorted(index for index, due_s in self._due_s.items() if due_s <= now_s):
            if self._due_s.get(index, math.inf) > now_s:
                continue  # an earlier member of its group failed to start and took it along
            del self._due_s[index]
            child = self.children[index]
            child.counts.restarts += 1
            try:
                await child.start()
            except StartFailed as error:
                cause = error.__cause__ or error
                failure = Failure(child.path, child.incarnation, cause, None, self.system.now_s())
                child.last_failure = failure
                storm = await self._decide_again(index, failure)
                if storm is not None:
                    return storm
            else:
                self.system.observer.restarted(child.path, child.incarnation)
        return None

    async def _decide_again(self, index: int, failure: Failure) -> Failure | None:
        storm = await self._decide(self.children[index], failure)
        if storm is None:
            group = affected(self.spec.strategy, index, len(self.children))
            due_s = self._due_s.get(index, 0.0)
            for later in group:
                if later in self._due_s:
                    self._due_s[later] = max(due_s, self._due_s[later])
        return storm

    async def _give_up(self, failure: Failure, injected: BaseException | None) -> None:
        self.state = "stopping"
        self._due_s.clear()
        await self._stop_children(0, returning=True)
        error: BaseException = injected or RestartStorm(
            f"{self.path or 'root'}: more than {self.spec.limit.restarts} restarts"
            f" in {self.spec.limit.window_s} s; last failure: {failure}"
        )
        if error.__cause__ is None and error is not failure.error:
            error.__cause__ = failure.error
        own = Failure(self.path, self.incarnation, error, None, self.system.now_s())
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


__all__ = ["InjectedCrash", "Node", "Supervisor"]
