"""The running tree."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from .cell import Cell
from .deadlines import Deadlines
from .errors import InjectedCrash, StartFailed, forget_tracebacks
from .observer import Observer, Silent
from .places import ThreadPlaces
from .supervisor import Supervisor
from .turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cell import StopOutcome
    from .figures import ActorFigures
    from .message import Failure
    from .observer import DeadLetter
    from .ref import ActorRef
    from .spec import SupervisorSpec

_CLOCK_TOLERANCE_S = 1.0
_KEPT_REPORTS = 256
_IDLE_THREADS = 64


class Tap(Protocol):
    """Lets a test stand between an actor and its messages."""

    async def before(self, cell: Cell, message: Any) -> None:
        """Return to let ``message`` be handled, raise to crash the actor, wait to hold it."""
        ...


class ActorSystem:
    """One tree of actors on one event loop.

    ``start`` brings the tree up in order or raises StartFailed with everything stopped again. ``wait``
    returns when the root gave up; ``stop`` takes the tree down in reverse order within the budgets of
    its specs. Loop thread only.

    Args:
        root: the tree.
        chance: source of jitter; pass a seeded one to make runs repeatable.
        observer: is told of failures, restarts and dead letters as they happen.
        detect_cycles: refuse asks that would wait for their own asker.
        kill_grace_s: how long a killed actor may take to end before it is called unstoppable.
        tap: for tests.
    """

    def __init__(
        self,
        root: SupervisorSpec,
        *,
        chance: random.Random | None = None,
        observer: Observer | None = None,
        detect_cycles: bool = True,
        kill_grace_s: float = 1.0,
        tap: Tap | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        # The stock loop and uvloop keep monotonic time; asking for it directly is several times cheaper than
        # their method, and finer than uvloop's milliseconds. A virtual clock is far from it.
        real = abs(self.loop.time() - time.monotonic()) < _CLOCK_TOLERANCE_S
        self.now_s: Callable[[], float] = time.monotonic if real else self.loop.time
        self.deadlines = Deadlines(self.loop)
        self.turn = Turn(self.loop)
        self.thread_places = ThreadPlaces(_IDLE_THREADS)
        self.chance = chance or random.Random()  # noqa: S311 - jitter, no secret
        self.observer: Observer = observer or Silent()
        self.detect_cycles = detect_cycles
        self.kill_grace_s = kill_grace_s
        self.tap = tap
        self.closing = False
        self.dead_letters: deque[DeadLetter] = deque(maxlen=_KEPT_REPORTS)
        self.unstoppable: deque[tuple[str, str]] = deque(maxlen=_KEPT_REPORTS)
        self.root = Supervisor(root, None, self)
        self._nodes = {node.path: node for node in self.root.walk()}
        self._gave_up: asyncio.Future[Failure] = self.loop.create_future()
        self._stopping: asyncio.Task[StopOutcome] | None = None

    async def start(self) -> None:
        """Bring the tree up. Raises StartFailed, after which every actor is gone; once only.

        When the caller is cancelled meanwhile, what is up stays up until ``stop``.
        """
        try:
            await self.root.start()
        except StartFailed:
            self._close()
            self.root.retire()
            raise

    async def wait(self) -> Failure:
        """Wait until the root supervisor gives up; return why. The tree is stopped then."""
        return await asyncio.shield(self._gave_up)

    async def stop(self) -> StopOutcome:
        """Stop the tree. "unstoppable" means that something was left running, now or earlier.

        Idempotent: further callers wait for the same stop, which goes on if a caller is cancelled.
        """
        self._close()
        if self._stopping is None:
            self._stopping = self.loop.create_task(self.root.stop(returning=False), name="stop")
        outcome = await asyncio.shield(self._stopping)
        return "unstoppable" if self.unstoppable else outcome

    @property
    def running(self) -> bool:
        """Whether every actor and supervisor of the tree runs."""
        return all(node.state == "running" for node in self._nodes.values())

    def figures(self) -> list[ActorFigures]:
        """Return a snapshot of every actor and supervisor below the root, in starting order."""
        return [node.figures() for node in self._nodes.values() if node is not self.root]

    def crash(self, path: str, error: BaseException | None = None) -> bool:
        """Crash the actor or supervisor at ``path`` on purpose.

        An actor crashes before its next message. False when there is none or it is down at the moment.
        """
        node = self._nodes.get(path)
        if node is None or node is self.root or node.state not in ("starting", "running", "stopping"):
            return False
        node.inject(error or InjectedCrash(f"{path}: crashed on purpose"))
        return True

    def cell_of(self, ref: ActorRef[Any]) -> Cell:
        """Return the cell behind a ref of this tree (kernel-internal)."""
        node = self._nodes.get(ref.path)
        if not isinstance(node, Cell) or node.ref is not ref:
            raise RuntimeError(f"{ref!r} is not an actor of this tree")
        return node

    def root_failed(self, failure: Failure) -> None:
        """Note that the root gave up (called by it)."""
        self._close()
        self.root.retire()
        if not self._gave_up.done():
            self._gave_up.set_result(failure)

    def failed(self, failure: Failure, restart_in_s: float | None) -> None:
        """Tell the observer of a failure; from then on it is kept without what its tracebacks hold."""
        self.observer.failed(failure, restart_in_s)
        forget_tracebacks(failure.error)

    def _close(self) -> None:
        """Nothing comes back any more, so no thread waits for a successor of what ran on it."""
        self.closing = True
        self.thread_places.close()

    def bury(self, letter: DeadLetter) -> None:
        """Record a dead letter (called by cells)."""
        self.dead_letters.append(letter)
        self.observer.dead_letter(letter)

    def left_behind(self, path: str, what: str) -> None:
        """Record a task or thread that would not end (called by cells)."""
        self.unstoppable.append((path, what))
        self.observer.unstoppable(path, what)
