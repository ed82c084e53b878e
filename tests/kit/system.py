"""A tree under test: steered by the test, checked when it ends."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from samovar.runtime.kernel import (
    ActorRef,
    ActorSystem,
    DeadLetter,
    Failure,
    InjectedCrash,
    SupervisorSpec,
)

from .loop import VirtualLoop

if TYPE_CHECKING:
    from types import TracebackType

    from samovar.runtime.kernel.cell import Cell


class LeftBehind(AssertionError):
    """The test left something that it neither declared nor cleaned up."""


@dataclass
class _Steering:
    """The system's tap: holds actors for stepping and crashes them on chosen messages."""

    held: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    crashes: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    handled: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=10_000))

    async def before(self, cell: Cell, message: Any) -> None:
        gate = self.held.get(cell.path)
        if gate is not None:
            await gate.acquire()
        self.handled.append((cell.path, type(message).__name__))
        due = None
        for plan in self.crashes[cell.path]:
            if isinstance(message, plan[0]):
                plan[1] -= 1
                if plan[1] == 0:
                    due = plan[2]
        if due is not None:
            raise due


@dataclass
class _Record:
    """The system's observer."""

    failures: deque[Failure] = field(default_factory=deque)
    delays: list[tuple[str, float | None]] = field(default_factory=list)
    restarts: list[tuple[str, int]] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    stuck: list[tuple[str, str]] = field(default_factory=list)
    letters: deque[DeadLetter] = field(default_factory=deque)

    def failed(self, failure: Failure, restart_in_s: float | None) -> None:
        self.failures.append(failure)
        self.delays.append((failure.path, restart_in_s))

    def restarted(self, path: str, incarnation: int) -> None:
        self.restarts.append((path, incarnation))

    def gave_up(self, path: str, failure: Failure) -> None:
        self.given_up.append(path)

    def unstoppable(self, path: str, what: str) -> None:
        self.stuck.append((path, what))

    def dead_letter(self, letter: DeadLetter) -> None:
        self.letters.append(letter)


class KitSystem:
    """Runs a tree on the VirtualLoop: ``async with KitSystem(spec) as kit: ...``.

    On leaving, the tree is stopped and the test fails if there is an ask that nobody answered, a failure
    or dead letter that the test did not read with ``failure`` / ``dead_letter``, something unstoppable
    that it did not declare, or a thread that still runs.
    """

    tapped: ClassVar[bool] = True
    """Whether tests can steer. Without, idle actors handle asks by hand-off, as they do outside of tests."""

    def __init__(self, root: SupervisorSpec, *, seed: int = 0, kill_grace_s: float = 1.0) -> None:
        self._steering = _Steering()
        self.record = _Record()
        self._threads = set(threading.enumerate())
        self.system = ActorSystem(
            root,
            chance=random.Random(seed),
            observer=self.record,
            kill_grace_s=kill_grace_s,
            tap=self._steering if self.tapped else None,
        )
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "KitSystem needs the virtual loop: decorate with @virtual"
        self._loop = loop

    async def __aenter__(self) -> Self:
        await self.system.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ref_path in list(self._steering.held):
            self._let_go(ref_path)
        if error is not None:
            await self.system.stop()
            return
        await self.settle()
        open_asks = {f.path: f.open_asks for f in self.system.figures() if f.open_asks}
        await self.system.stop()
        await self.settle()
        self._check(open_asks)

    def _check(self, open_asks: dict[str, int]) -> None:
        left: list[str] = []
        if open_asks:
            left.append(f"open asks: {open_asks}")
        if self.record.failures:
            left.append(f"unread failures: {[str(f) for f in self.record.failures]}")
        if self.record.letters:
            left.append(f"undeclared dead letters: {list(self.record.letters)}")
        if self.record.stuck:
            left.append(f"undeclared unstoppable: {self.record.stuck}")
        threads = self._live_threads()
        if threads:
            left.append(f"live threads: {threads}")
        if left:
            raise LeftBehind("; ".join(left))

    def _live_threads(self) -> list[str]:
        """Return the threads that came since the start and do not end within a moment.

        Idle workers of anyio are none of the tree's: they end with the loop.
        """
        new = [thread for thread in threading.enumerate() if thread not in self._threads]
        new = [thread for thread in new if thread.name != "AnyIO worker thread"]
        for thread in new:
            thread.join(timeout=0.2)
        return [thread.name for thread in new if thread.is_alive()]

    # -- steering -------------------------------------------------------------------------------------

    def hold(self, ref: ActorRef[Any]) -> None:
        """Let ``ref`` handle messages only one at a time, by ``step``."""
        assert self.tapped
        self._steering.held[ref.path] = asyncio.Semaphore(0)

    def release(self, ref: ActorRef[Any]) -> None:
        """Let a held actor run freely again."""
        self._let_go(ref.path)

    def _let_go(self, path: str) -> None:
        self._steering.held.pop(path).release()

    async def step(self, ref: ActorRef[Any]) -> None:
        """Let a held actor handle exactly one message, and settle."""
        self._steering.held[ref.path].release()
        await self.settle()

    def crash_on(
        self, ref: ActorRef[Any], kind: type, nth: int = 1, error: BaseException | None = None
    ) -> None:
        """Crash ``ref`` when it is about to handle its ``nth`` message of ``kind`` from now."""
        assert self.tapped
        error = error or InjectedCrash(f"crash on {kind.__name__} number {nth}")
        self._steering.crashes[ref.path].append([kind, nth, error])

    async def settle(self) -> None:
        """Run until nothing can happen without the clock moving."""
        await self._loop.settle()

    async def advance(self, by_s: float) -> None:
        """Let ``by_s`` seconds pass, with everything that is due in them, and settle."""
        await asyncio.sleep(by_s)
        await self.settle()

    @property
    def handled(self) -> list[tuple[str, str]]:
        """Path and message type of everything handled so far, in order over the whole tree."""
        assert self.tapped
        return list(self._steering.handled)

    # -- reading --------------------------------------------------------------------------------------

    def failure(self, path: str, kind: type[BaseException] = InjectedCrash) -> Failure:
        """Read the oldest failure of ``path``; its error must be of ``kind``."""
        for failure in self.record.failures:
            if failure.path == path:
                assert isinstance(failure.error, kind), f"{failure} is not a {kind.__name__}"
                self.record.failures.remove(failure)
                return failure
        raise AssertionError(f"{path} has not failed; unread: {[str(f) for f in self.record.failures]}")

    def dead_letter(self, path: str, reason: str) -> DeadLetter:
        """Read the oldest dead letter of ``path`` with ``reason``."""
        for letter in self.record.letters:
            if letter.path == path and letter.reason == reason:
                self.record.letters.remove(letter)
                return letter
        raise AssertionError(f"no {reason} dead letter at {path}; unread: {list(self.record.letters)}")

    def unstoppable(self, path: str) -> str:
        """Read the report that something of ``path`` would not end; return what."""
        for entry in self.record.stuck:
            if entry[0] == path:
                self.record.stuck.remove(entry)
                return entry[1]
        raise AssertionError(f"nothing of {path} was reported unstoppable; unread: {self.record.stuck}")

    def figures(self, ref: ActorRef[Any]) -> Any:
        """Return the figures of one actor."""
        return next(f for f in self.system.figures() if f.path == ref.path)
