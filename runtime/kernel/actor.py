"""What an actor is, and what it may do."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .call import current_cell
from .errors import Overloaded, UnstoppableChild
from .message import Ask, Terminated
from .promise import Promise
from .threads import PinnedThread, ThreadPort

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from .cell import Cell
    from .ref import ActorRef

M = TypeVar("M")
R = TypeVar("R")
C = TypeVar("C")
E = TypeVar("E")


class Actor(Generic[M]):
    """Base of actors: state behind a mailbox, one message at a time, on the loop thread.

    A new object is made for every incarnation. ``receive`` awaits only short things: asks downwards with
    a deadline, a port call. Longer work goes through ``ctx.spawn`` or ``ctx.run_thread`` and comes back as
    a message. An exception out of any hook is a crash: this object is discarded, the message in hand goes
    to dead letters, and the supervisor decides.
    """

    ctx: Context[M]

    async def started(self) -> None:
        """Acquire what the actor needs; its supervisor starts nothing further until this returns."""

    async def receive(self, message: M) -> None:
        """Handle one message. An ``Ask`` must be replied to, rejected or deferred before this returns."""
        raise NotImplementedError

    async def stopped(self) -> None:
        """Say goodbye in an orderly stop, after the last message. Not called after a crash or a kill."""


class Context(Generic[M]):
    """What the kernel offers to one incarnation of an actor. Everything taken here ends with it.

    Loop thread only, and only from the actor's own handlers and tasks.
    """

    def __init__(self, cell: Cell, incarnation: int) -> None:
        self._cell = cell
        self.incarnation = incarnation
        self._deferred: set[Promise[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: set[Timer] = set()
        self._threads: list[PinnedThread[Any, Any]] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._watches: list[Cell] = []
        self.ended = False

    @property
    def self(self) -> ActorRef[M]:
        """The actor's own address."""
        return self._cell.ref

    @property
    def path(self) -> str:
        """The actor's place in the tree."""
        return self._cell.path

    def now_s(self) -> float:
        """Loop time in seconds."""
        return self._cell.system.now_s()

    # -- answers ------------------------------------------------------------------------------------

    def reply(self, message: Ask[R], value: R) -> bool:
        """Answer the ask in hand. False when its asker has gone meanwhile."""
        return self._cell.promise_of(message).reply(value)

    def reject(self, message: Ask[Any], error: Exception) -> None:
        """Refuse the ask in hand; the asker gets Rejected with ``error`` as its cause."""
        self._cell.promise_of(message).fail(self._cell.rejected(error))

    def defer(self, message: Ask[R]) -> Deferred[R]:
        """Keep the ask in hand to answer it later.

        It is failed with ActorCrashed or ActorGone if this incarnation ends first.
        """
        promise: Promise[R] = self._cell.promise_of(message)
        if not promise.closed:
            promise.deferred = True
            self._deferred.add(promise)
        return Deferred(promise, self._cell)

    def forget(self, promise: Promise[Any]) -> None:
        """Drop a deferred promise that was settled (called by the promise)."""
        self._deferred.discard(promise)

    # -- other actors -------------------------------------------------------------------------------

    def watch(self, ref: ActorRef[Any]) -> None:
        """Ask for one ``Terminated`` when the target's incarnation ends, at once if it is gone.

        While the target is between incarnations the watch waits for the end of the next one. Watching
        twice is one watch.
        """
        self._cell.system.cell_of(ref).add_watcher(self._cell)

    def unwatch(self, ref: ActorRef[Any]) -> None:
        """Withdraw a watch; no ``Terminated`` arrives for it any more unless it already did."""
        self._cell.system.cell_of(ref).remove_watcher(self._cell)

    # -- time, tasks, threads -------------------------------------------------------------------------

    def after(self, delay_s: float, message: M) -> Timer:
        """Deliver ``message`` to this actor in ``delay_s`` seconds unless cancelled or ended before."""
        if len(self._timers) >= self._cell.spec.max_tasks:
            raise Overloaded(self.path, type(message).__name__, f"{len(self._timers)} timers are set")
        timer = Timer(self, message, delay_s)
        self._timers.add(timer)
        return timer

    def spawn(
        self,
        work: Coroutine[Any, Any, R],
        done: Callable[[R], M],
        failed: Callable[[Exception], M] | None = None,
    ) -> asyncio.Task[R]:
        """Run ``work`` beside the mailbox; its result comes back as the message ``done(result)``.

        An exception comes back as ``failed(error)``, or crashes the actor where ``failed`` is None. The
        task is cancelled when the incarnation ends; cancelling it yourself brings no message. Raises
        Overloaded when ``max_tasks`` run already.
        """
        if len(self._tasks) >= self._cell.spec.max_tasks:
            work.close()
            raise Overloaded(self.path, "spawn", f"{len(self._tasks)} tasks are running")
        # The task does not hold up the mailbox, so asks out of it have no part in ask cycles and no
        # inherited deadline.
        context = contextvars.copy_context()
        context.run(current_cell.set, None)
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, name=f"{self.path}/task", context=context)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._task_ended(ended, done, failed))
        return task

    def run_thread(
        self,
        name: str,
        body: Callable[[ThreadPort[C, E]], None],
        message: Callable[[list[E]], M],
    ) -> PinnedThread[C, E]:
        """Start a pinned thread; each batch of its events comes back as ``message(events)``.

        An exception out of ``body`` crashes the actor. When the incarnation ends, the thread is told to
        stop and waited for within ``shutdown_s``; past that it is left behind and reported unstoppable.
        """

        def deliver(events: list[E]) -> None:
            if not self.ended:
                self._cell.post(message(events))

        def exited(error: BaseException | None) -> None:
            if error is not None and self.ended:
                self._cell.report(error)
            elif error is not None:
                self._cell.inject(error)

        thread = PinnedThread[C, E](f"{self.path}/{name}", body, deliver, exited)
        self._threads.append(thread)
        thread.start()
        return thread

    def on_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Run ``close`` when this incarnation ends, however it ends; last registered, first run."""
        self._closers.append(close)

    def stop(self) -> None:
        """End this actor in an orderly way once its mailbox is drained."""
        self._cell.stop_from_inside()

    # -- the end of an incarnation (called by the cell) --------------------------------------------------

    def watches(self, cell: Cell) -> None:
        """Remember a watch placed, to withdraw it at the end."""
        self._watches.append(cell)

    @property
    def tasks(self) -> int:
        """How many spawned tasks run."""
        return len(self._tasks)

    def cut(self) -> list[Promise[Any]]:
        """Detach from everything, at once; return the deferred promises, which the cell fails."""
        self.ended = True
        for timer in list(self._timers):
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        for thread in self._threads:
            thread.stop()
        for cell in self._watches:
            cell.remove_watcher(self._cell)
        return list(self._deferred)

    async def release(self, budget_s: float) -> None:
        """Wait for tasks, closers and threads to end; report what does not within ``budget_s``."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + budget_s
        for close in reversed(self._closers):
            self._tasks.add(loop.create_task(_closing(close), name=f"{self.path}/close"))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=max(0.0, until_s - loop.time()))
            for task in late:
                task.cancel()
                self._cell.left_behind(f"task {task.get_name()}")
            for task in self._tasks - late:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._cell.report(error)
        for thread in self._threads:
            if not await thread.join(max(0.0, until_s - loop.time())):
                self._cell.left_behind(f"thread {thread.name}")

    def _task_ended(
        self,
        task: asyncio.Task[R],
        done: Callable[[R], M],
        failed: Callable[[Exception], M] | None,
    ) -> None:
        if self.ended:
            return  # release() collects it
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._cell.post(done(task.result()))
        elif failed is not None and isinstance(error, Exception):
            self._cell.post(failed(error))
        else:
            self._cell.inject(error)

    def expire(self, timer: Timer) -> None:
        """Deliver a timer's message (called by the timer)."""
        self._timers.discard(timer)
        self._cell.post(timer.message)

    def drop_timer(self, timer: Timer) -> None:
        """Forget a cancelled timer (called by the timer)."""
        self._timers.discard(timer)


class Timer:
    """A message that will be delivered later. ``cancel`` is idempotent."""

    __slots__ = ("_context", "_handle", "message")

    def __init__(self, context: Context[Any], message: object, delay_s: float) -> None:
        self.message = message
        self._context = context
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Withdraw the message unless it was delivered."""
        self._handle.cancel()
        self._context.drop_timer(self)

    def _fire(self) -> None:
        self._context.expire(self)


class Deferred(Generic[R]):
    """An ask that is answered later. The first answer wins; later ones do nothing."""

    __slots__ = ("_cell", "_promise")

    def __init__(self, promise: Promise[R], cell: Cell) -> None:
        self._promise = promise
        self._cell = cell

    @property
    def closed(self) -> bool:
        """Whether nobody waits any more."""
        return self._promise.closed

    def reply(self, value: R) -> bool:
        """Answer. False when the asker has gone."""
        return self._promise.reply(value)

    def reject(self, error: Exception) -> bool:
        """Refuse; the asker gets Rejected with ``error`` as its cause. False when the asker has gone."""
        return self._promise.fail(self._cell.rejected(error, self._promise.operation))


async def _closing(close: Callable[[], Awaitable[None]]) -> None:
    await close()


__all__ = ["Actor", "Context", "Deferred", "Terminated", "Timer", "UnstoppableChild"]
