"""The generations of one call: submitted together, read as they come, never left running."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from .choice import Choice
from .usage import usage_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from ....actors.requests import Admitted
    from ...metrics import Metrics
    from ..call import Call
    from ..exchange import Exchange
    from ..serving import Serving
    from .pieces import Progress
    from .usage import Usage


class Generation:
    """Runs a call. Used as ``async with Generation(…) as generation: async for progress in generation: …``.

    All choices are submitted at once, in their order, so that those of one prompt can share its prefill (the
    scheduler lets them wait for the first one's state). They progress side by side, each in order. The first
    failure of any ends the iteration with an HttpError, refusals before the first progress included; on every
    way out what still runs is cancelled and every task has ended. A consumer that waits keeps in memory one
    progress of each choice and what its stream collects, which ``max_tokens`` bounds. Loop thread only.
    """

    def __init__(self, serving: Serving, metrics: Metrics, exchange: Exchange, call: Call) -> None:
        self._exchange = exchange
        self._call = call
        self._choices = [
            Choice(index, call, serving, metrics, exchange.id) for index in range(len(call.requests))
        ]
        self._admissions: list[asyncio.Task[Admitted]] = []
        self._reading: dict[asyncio.Task[Progress], Choice] = {}
        self._ready: deque[Progress] = deque()
        exchange.call = call

    async def __aenter__(self) -> Self:
        """Wait until the first choice is admitted. Raises HttpError where one is refused meanwhile."""
        first, *others = self._choices
        try:
            if others:
                self._admissions = [asyncio.ensure_future(choice.admit()) for choice in self._choices]
                await _first_of(self._admissions)
            else:
                await first.admit()
        except BaseException:
            await self._close()
            raise
        self._exchange.admitted = first.admitted
        if others:
            pairs = zip(self._choices, self._admissions, strict=True)
            self._reading = {asyncio.ensure_future(_after(task, choice)): choice for choice, task in pairs}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what still runs."""
        await self._close()

    def __aiter__(self) -> Self:
        """Return what comes until every choice has ended; one iteration alone."""
        return self

    async def __anext__(self) -> Progress:
        """Return what came next, of any choice."""
        first, *others = self._choices
        if all(choice.end is not None for choice in self._choices) and not self._ready:
            raise StopAsyncIteration
        progress = await (self._any() if others else first.next())
        if progress.index == 0 and progress.end is not None:
            self._exchange.finished = progress.end.finished
        return progress

    def usage(self) -> Usage:
        """Return what the call took; only once all choices have ended."""
        admitted = [choice.admitted for choice in self._choices if choice.admitted is not None]
        ends = [choice.end for choice in self._choices if choice.end is not None]
        return usage_of(admitted, ends, self._call.prompt_starts)

    async def _any(self) -> Progress:
        """Return the next progress of any choice, and let that choice go on."""
        while not self._ready:
            done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: task.exception() is None):
                self._ready.append(task.result())
                del self._reading[task]
        progress = self._ready.popleft()
        if progress.end is None:
            choice = self._choices[progress.index]
            self._reading[asyncio.ensure_future(choice.next())] = choice
        return progress

    async def _close(self) -> None:
        self._drop(self._choices)
        tasks: list[asyncio.Task[Any]] = [*self._admissions, *self._reading]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._drop(self._choices)  # one may have been admitted in the very moment

    def _drop(self, choices: Iterable[Choice]) -> None:
        for choice in choices:
            choice.cancel()


async def _after(admission: asyncio.Task[Admitted], choice: Choice) -> Progress:
    await admission
    return await choice.next()


async def _first_of(admissions: list[asyncio.Task[Admitted]]) -> None:
    """Wait for the first of some admissions. Raises what any of them raised by then."""
    waiting = set(admissions)
    while admissions[0] in waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
