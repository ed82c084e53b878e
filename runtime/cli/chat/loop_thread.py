"""An event loop on a thread of its own, so that the main thread can wait for a person and take signals."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import aclosing
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, cast

import uvloop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterator
    from types import TracebackType
    from typing import Any

T = TypeVar("T")
_END: Final = object()


class LoopThread:
    """``with LoopThread() as loop:`` runs coroutines from another thread and waits for them there.

    Waiting can be interrupted by an exception of a signal handler; what was waited for is then cancelled.
    """

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="chat", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        self._loop = self._started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the loop, cancelling what still runs on it, and join the thread."""
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def flow(self, pieces: AsyncGenerator[T]) -> Flow[T]:
        """Begin to run a generator; its pieces are there to be iterated over."""
        return Flow(pieces, self._loop)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        self._over = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._over.wait()


class Flow(Generic[T]):
    """The pieces of a generator that runs on another thread, in order, then its failure if it had one.

    ``stop`` may be called from a signal handler: iteration then ends with what has come so far. ``close``
    stops, and waits until the generator is closed.
    """

    def __init__(self, pieces: AsyncGenerator[T], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[object] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._outcome = asyncio.run_coroutine_threadsafe(self._run(pieces), loop)
        self._outcome.add_done_callback(lambda _: self._queue.put(_END))

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop before its end."""
        return self._stopping

    def __iter__(self) -> Iterator[T]:
        """Yield what comes. Once only."""
        while (item := self._queue.get()) is not _END:
            yield cast("T", item)
        self._outcome.result()

    def stop(self) -> None:
        """Ask for the end."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._cancel)

    def close(self) -> None:
        """Stop, and wait for the end. Its failure, if any, is no longer of interest."""
        if not self._outcome.done():
            self.stop()
        self._outcome.exception()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, pieces: AsyncGenerator[T]) -> None:
        self._task = asyncio.ensure_future(self._pump(pieces))
        if self._stopping:
            self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()

    async def _pump(self, pieces: AsyncGenerator[T]) -> None:
        async with aclosing(pieces):
            async for piece in pieces:
                self._queue.put(piece)
