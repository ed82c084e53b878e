"""What an actor may do, and how everything it took ends with its incarnation."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .call import current_cell
from .errors import ActorGone, Overloaded
from .threads import PinnedThread, ThreadPort

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from .cell import Cell
    from .message import Ask
    from .promise import Promise
    from .ref import ActorRef

M = TypeVar("M")
R = TypeVar("R")
C = TypeVar("C")
E = TypeVar("E")


class Context(Generic[M]):
    """What the kernel offers to one incarnation of an actor. Everything taken here ends with it.

    Loop thread only, and only from the actor's own handlers and tasks. Once the incarnation has ended,
    taking anything more raises ActorGone.
    """

    def __init__(self, cell: Cell, incarnation: int) -> None:
        self._cell = cell
        self.incarnation = incarnation
        self._deferred: dict[Promise[Any], None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: dict[Timer, None] = {}
        self._threads: list[PinnedThread[Any, Any]] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._watched: dict[Cell, None] = {}
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
        promise = self._cell.promise_of(message)
        promise.fail(self._cell.rejected(error, promise.operation))

    def defer(self, message: Ask[R]) -> Deferred[R]:
        """Keep the ask in hand to answer it later.

        It is failed with ActorCrashed or ActorGone if this incarnation ends first.
        """
        promise: Promise[R] = self._cell.promise_of(message)
        if not promise.closed:
            promise.deferred = True
            self._deferred[promise] = None
        return Deferred(promise, self._cell)

    # -- other actors -------------------------------------------------------------------------------

    def watch(self, ref: ActorRef[Any]) -> None:
        """Ask for one ``Terminated`` when the target's incarnation ends, at once if it is gone.

        While the target is between incarnations the watch waits for the end of the next one. Watching
        twice is one watch.
        """
        self._check_live("watch")
        target = self._cell.system.cell_of(ref)
        target.add_watcher(self._cell)
        self._watched[target] = None

    def unwatch(self, ref: ActorRef[Any]) -> None:
        """Withdraw a watch; no ``Terminated`` is sent for it any more. One sent before still arrives."""
        target = self._cell.system.cell_of(ref)
        target.remove_watcher(self._cell)
        self._watched.pop(target, None)

    # -- time, tasks, threads -------------------------------------------------------------------------

    def after(self, delay_s: float, message: M) -> Timer:
        """Deliver ``message`` to this actor in ``delay_s`` seconds unless cancelled or ended before.

        Raises Overloaded when ``max_tasks`` timers are set already.
        """
        operation = type(message).__name__
        self._check_live(operation)
        if len(self._timers) >= self._cell.spec.max_tasks:
            raise Overloaded(self.path, operation, f"{len(self._timers)} timers are set")
        timer = Timer(self, message, delay_s)
        self._timers[timer] = None
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
        if self.ended or len(self._tasks) >= self._cell.spec.max_tasks:
            work.close()
            self._check_live("spawn")
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
        stop and waited for within ``shutdown_s``; past that it is left behind and reported unstoppable. The
        next incarnation gets the same operating-system thread, unless that one was left behind.
        """
        self._check_live("run_thread")

        def deliver(events: list[E]) -> None:
            self._post(lambda: message(events))

        def exited(error: BaseException | None) -> None:
            if error is not None and self.ended:
                self._cell.report(error)
            elif error is not None:
                self._cell.inject(error)

        places = self._cell.system.thread_places
        thread = PinnedThread[C, E](f"{self.path}/{name}", body, deliver, exited, places=places)
        self._threads.append(thread)
        thread.start()
        return thread

    def on_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Run ``close`` when this incarnation ends, however it ends.

        Closers run one after the other, last registered first, beside the end of tasks and threads. One
        that raises is reported and does not keep the others from running.
        """
        self._check_live("on_end")
        self._closers.append(close)

    def stop(self) -> None:
        """End this actor in an orderly way, after the message in hand.

        One that will not come back handles what is queued first and takes nothing new; for one that its
        supervisor restarts the queue waits.
        """
        if not self.ended:
            self._cell.stop_from_inside()

    def _check_live(self, operation: str) -> None:
        if self.ended:
            raise ActorGone(self.path, operation, f"incarnation {self.incarnation} has ended")

    def _post(self, make: Callable[[], M]) -> None:
        """Deliver a message to this incarnation, never to a later one. ``make`` is the actor's code."""
        if self.ended:
            return
        try:
            self._cell.post(make())
        except Exception as error:  # noqa: BLE001 - part of the cell guard: it stands for the actor's own code
            self._cell.inject(error)

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
            self._post(lambda: done(task.result()))
        elif failed is not None and isinstance(error, Exception):
            self._post(lambda: failed(error))
        else:
            self._cell.inject(error)

    # -- kernel-internal --------------------------------------------------------------------------------

    @property
    def tasks(self) -> int:
        """How many spawned tasks run."""
        return len(self._tasks)

    def forget(self, promise: Promise[Any]) -> None:
        """Drop a deferred promise that was settled (called by the promise)."""
        self._deferred.pop(promise, None)

    def expire(self, timer: Timer) -> None:
        """Deliver a timer's message (called by the timer)."""
        self._timers.pop(timer, None)
        if not self.ended:
            self._cell.post(timer.message)

    def drop_timer(self, timer: Timer) -> None:
        """Forget a cancelled timer (called by the timer)."""
        self._timers.pop(timer, None)

    def cut(self) -> list[Promise[Any]]:
        """Detach from everything, at once; return the deferred promises, which the cell fails."""
        self.ended = True
        for timer in list(self._timers):
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        for thread in self._threads:
            thread.stop()
        for target in self._watched:
            target.remove_watcher(self._cell)
        self._watched.clear()
        return list(self._deferred)

    async def release(self, budget_s: float) -> None:
        """Wait for tasks, closers and threads to end; report what does not within ``budget_s``."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + budget_s
        if self._closers:
            self._tasks.add(loop.create_task(self._close_all(), name=f"{self.path}/close"))
        if self._tasks:
            ended, late = await asyncio.wait(self._tasks, timeout=budget_s)
            for task in late:
                task.cancel()
                self._cell.left_behind(f"task {task.get_name()}")
            for task in ended:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._cell.report(error)
            self._tasks = late
        for thread in self._threads:
            if not await thread.join(max(0.0, until_s - loop.time())):
                self._cell.left_behind(f"thread {thread.name}")

    async def _close_all(self) -> None:
        for close in reversed(self._closers):
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - part of the cell guard: one closer must not stop the next
                self._cell.report(error)


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
