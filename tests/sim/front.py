"""Stands where HTTP stands in the tree: the calls that are open hang on it, and end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from samovar.runtime.http.actor import CloseIdle, EndRequests, GetAddress, HttpMessage
from samovar.runtime.kernel import Actor

if TYPE_CHECKING:
    import asyncio


class Calls:
    """The open calls of a process, in the order in which they came."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[object], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: asyncio.Task[object]) -> None:
        """Note a call until it ends."""
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def end(self) -> None:
        """End them all, as a server does whose handlers are cancelled."""
        for task in list(self._tasks):
            task.cancel()


class FrontActor(Actor[HttpMessage]):
    """The HTTP actor without sockets."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def started(self) -> None:
        self.ctx.on_end(self._end)

    async def receive(self, message: HttpMessage) -> None:
        match message:
            case EndRequests():
                self._calls.end()
                self.ctx.reply(message, None)
            case GetAddress():
                self.ctx.reply(message, "nowhere")
            case CloseIdle():
                pass
            case _:
                assert_never(message)

    async def _end(self) -> None:
        self._calls.end()
