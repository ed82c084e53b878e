"""The stream of one request: what a lane says about it, on its way to the client that waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runtime.engine.port import Cancelled, Delta, Failed, Finished, Prefilled
from .waiting import StreamEvent, WaitingEvents

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RequestStream", "StreamEvent", "StreamTimes"]


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Loop times (seconds) at which a request reached its stations; None where it never did."""

    submitted_s: float
    started_s: float | None
    first_token_s: float | None
    ended_s: float | None


class RequestStream:
    """Carries events from one producer to one consumer and ends in exactly one terminal event.

    Guarantees: events arrive in order; after the first terminal event everything pushed is ignored, so
    a request can never end twice; ``push`` never blocks. What waits is bounded by the request itself
    (``max_tokens`` deltas plus one event per prefill chunk), and small (``waiting.py``). Loop thread only.

    It outlives the lanes that serve it. So it keeps what a next lane needs: ``emitted``, the tokens of all
    deltas so far. Progress of a prompt that is prefilled again passes silently. ``prefill_left`` is how many
    tokens the present lane has still to prefill. ``attempt`` counts the lanes that were given up: what an
    earlier one still says is for nobody. ``claimed``: the client has the stream in hand; ``cancelled``: it
    wants no more of it. ``watcher`` is called after every event that was taken.
    """

    __slots__ = (
        "_loop",
        "_on_cancel",
        "_prefilled",
        "_waiter",
        "_waiting",
        "attempt",
        "cancelled",
        "claimed",
        "emitted",
        "ended_s",
        "first_token_s",
        "id",
        "prefill_left",
        "started_s",
        "submitted_s",
        "terminal",
        "watcher",
    )

    def __init__(self, request_id: str, on_cancel: Callable[[str], None]) -> None:
        self.id = request_id
        self._loop = asyncio.get_running_loop()
        self._on_cancel = on_cancel
        self._waiting = WaitingEvents(request_id)
        self._waiter: asyncio.Future[None] | None = None
        self.terminal: Finished | Cancelled | Failed | None = None
        self.emitted: list[int] = []
        self.prefill_left = self.attempt = 0
        self._prefilled = 0
        self.claimed = self.cancelled = False
        self.watcher: Callable[[], None] | None = None
        self.submitted_s = self._loop.time()
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.ended_s: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the terminal event was pushed (the consumer may not have read it yet)."""
        return self.terminal is not None

    @property
    def emitted_tokens(self) -> int:
        """How many tokens its deltas had."""
        return len(self.emitted)

    @property
    def times(self) -> StreamTimes:
        """When the request reached its stations."""
        return StreamTimes(self.submitted_s, self.started_s, self.first_token_s, self.ended_s)

    def push(self, event: StreamEvent) -> None:
        """Append an event; ignored once the stream has ended."""
        if self.terminal is not None:
            return
        match event:
            case Delta():
                if self.first_token_s is None:
                    self.first_token_s = self._loop.time()
                self.emitted.extend(event.tokens)
            case Finished() | Cancelled() | Failed():
                self.terminal = event
                self.ended_s = self._loop.time()
            case Prefilled():
                self.prefill_left = event.total - event.done
                if self.emitted or event.done <= self._prefilled:
                    self._seen()
                    return  # a replay: it was told of before
                self._prefilled = event.done
        self._waiting.push(event)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._seen()

    async def take(self) -> list[StreamEvent]:
        """Return the events that are waiting, at least one. A second consumer is an error.

        All of them, or the first few hundred where there are more. After the list that ends in the
        terminal event, do not call again: it raises RuntimeError.
        """
        if not self._waiting:
            if self.terminal is not None:
                raise RuntimeError(f"stream {self.id} has ended")
            if self._waiter is not None:
                raise RuntimeError(f"stream {self.id} already has a consumer")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._waiting.take()

    def cancel(self) -> None:
        """Ask for the request to be dropped. The terminal event follows; harmless after the end."""
        if self.terminal is None:
            self.cancelled = True  # the message may be lost with its receiver
            self._on_cancel(self.id)

    def _seen(self) -> None:
        if self.watcher is not None:
            self.watcher()
