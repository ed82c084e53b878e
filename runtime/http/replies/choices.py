"""The generations of one call: submitted together, read as they come, never left running."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, TypeAlias

from ....actors.requests import Refused
from ...engine.port import Cancelled, Failed
from ..errors import failure, refusal
from .reader import ReplyReader
from .usage import usage_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from ....actors.requests import Admitted
    from ...metrics import Metrics
    from ..call import Call
    from ..exchange import Exchange
    from ..serving import Serving
    from .pieces import ChoiceEnd, Progress
    from .usage import Usage

_Queue: TypeAlias = "asyncio.Queue[Progress | BaseException]"


class Generation:
    """Runs a call. Used as ``async with Generation(…) as generation: async for progress in generation: …``.

    Choices are admitted in their order and progress side by side, each in order. The first failure of any
    ends the iteration with an HttpError; on every way out what still runs is cancelled. A consumer that waits
    keeps at most each choice's own stream in memory. Loop thread only.
    """

    def __init__(self, serving: Serving, metrics: Metrics, exchange: Exchange, call: Call) -> None:
        self._serving = serving
        self._metrics = metrics
        self._exchange = exchange
        self._call = call
        self._admitted: dict[int, Admitted] = {}
        self._ends: dict[int, ChoiceEnd] = {}
        self._tasks: list[asyncio.Task[None]] = []
        exchange.call = call

    async def __aenter__(self) -> Self:
        """Wait until the first choice is admitted. Raises HttpError where it is refused."""
        try:
            await self._admit(0)
        except BaseException:
            self._cancel()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what still runs."""
        self._cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def __aiter__(self) -> AsyncIterator[Progress]:
        """Yield what comes until every choice has ended."""
        count = len(self._call.requests)
        if count == 1:
            async for progress in self._read(0):
                yield progress
            return
        queue: _Queue = asyncio.Queue(maxsize=count)
        self._tasks = [asyncio.ensure_future(self._feed(index, queue)) for index in range(count)]
        while len(self._ends) < count or not queue.empty():
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item

    def usage(self) -> Usage:
        """Return what the call took; only once all choices have ended."""
        order = sorted(self._ends)
        first: dict[object, int] = {}
        for index in order:
            first.setdefault(self._call.requests[index].prompt_key, index)
        return usage_of(
            [self._admitted[index] for index in order],
            [self._ends[index] for index in order],
            [*first.values()],
        )

    async def _feed(self, index: int, queue: _Queue) -> None:
        try:
            if index:
                await self._admit(index)
            async for progress in self._read(index):
                await queue.put(progress)
        except Exception as error:  # noqa: BLE001 - raised again by whoever iterates
            await queue.put(error)

    async def _admit(self, index: int) -> None:
        admission = await self._serving.submit(self._call.requests[index])
        if isinstance(admission, Refused):
            raise refusal(admission)
        self._admitted[index] = admission
        if index == 0:
            self._exchange.admitted = admission

    async def _read(self, index: int) -> AsyncIterator[Progress]:
        admitted = self._admitted[index]
        stream, pace = admitted.stream, self._metrics.pace(admitted.stream)
        reader = ReplyReader(
            index, self._call, self._serving.model().reply, in_reasoning=admitted.in_reasoning
        )
        while True:
            events = await stream.take()
            pace.tick()
            if isinstance(events[-1], (Cancelled, Failed)):
                raise failure(events[-1], self._exchange.id)
            progress = reader.read(events)
            if progress.end is not None:
                self._ends[index] = progress.end
                if index == 0:
                    self._exchange.finished = progress.end.finished
            yield progress
            if progress.end is not None:
                return

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        for admitted in self._admitted.values():
            admitted.stream.cancel()
