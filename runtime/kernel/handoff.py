"""The hand-off: an idle actor's message loop runs on the stack of whoever asks (docs/adr/0004-hand-off.md).

An ask costs two turns of the event loop, one that wakes the actor and one that wakes the asker. When the
actor is parked, ``HandOff.run`` continues its message loop at once instead, as the actor's own task as far
as anything inside can tell. A loop that parks again has answered or deferred, and nobody was woken. One
that waits for something else, or has ended, is left to its task, which carries on from exactly there.
"""

from __future__ import annotations

import asyncio
import math
import sys
import types
from asyncio import current_task
from asyncio.tasks import _enter_task, _leave_task  # noqa: PLC2701 - documented in "Extending asyncio"
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextvars import Context

    from .mailbox import Mailbox

TURN_S = 0.005
"""Seconds that messages may be handled one after the other before other tasks of the loop get their turn."""
TURN_LENGTH = 1_000
"""Hand-offs in a turn: what ends it where time stands still. Their cost alone is less than ``TURN_S``."""
MAX_DEPTH = 8
"""Hand-offs within hand-offs; without a limit the interpreter's stack would bound how far asks can nest."""


class Turn:
    """What hand-offs may still take of this iteration of the loop. One a system; loop thread only."""

    __slots__ = ("_loop", "depth", "end_s", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.depth = 0
        self.over()

    def over(self) -> None:
        """Let the next hand-off begin a new turn (called by the loop in its next iteration)."""
        self.left = TURN_LENGTH
        self.end_s = -math.inf

    def begin(self, now_s: float) -> float:
        """Begin a turn; return its end."""
        self._loop.call_soon(self.over)
        self.end_s = now_s + TURN_S
        return self.end_s


@types.coroutine
def park(waiter: asyncio.Future[None]) -> Generator[Any, None, None]:
    """Wait until ``waiter`` is done or a hand-off continues the caller: unlike a future, it can be sent to."""
    yield waiter


class HandOff:
    """The message loop of one incarnation: awaited by its task, run by askers while it is parked."""

    __slots__ = ("_left", "_loop", "_mailbox", "_messages", "_task", "_turn", "_variables")

    def __init__(
        self, messages: Coroutine[Any, None, None], mailbox: Mailbox, turn: Turn, variables: Context
    ) -> None:
        self._messages = messages
        self._mailbox = mailbox
        self._turn = turn
        self._variables = variables  # those of the task
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = current_task()
        # What a hand-off left to the task: what the loop waits for now, or the exception that ended it.
        self._left: tuple[Any, BaseException | None] | None = None

    def run(self, now_s: float) -> bool:
        """Let the actor look at its mailbox, at ``now_s``: here if that may be, else in its task.

        True when the calling task was cancelled by what ran: it has to suspend before it goes on, because
        a task that waits would have been interrupted.
        """
        mailbox, turn, loop, task = self._mailbox, self._turn, self._loop, self._task
        waiter, asker = mailbox.waiter, current_task(loop)
        if (
            asker is None
            or asker.cancelling()
            or sys.exception() is not None  # would become the context of whatever the actor raises
            or waiter.done()
            or turn.depth == MAX_DEPTH
            or turn.left == 0
            or now_s >= (turn.end_s if turn.left < TURN_LENGTH else turn.begin(now_s))
        ):
            mailbox.wake()
            return False
        mailbox.waiter = waits_for = None
        turn.left -= 1
        turn.depth += 1
        _leave_task(loop, asker)
        _enter_task(loop, task)
        try:
            waits_for = self._variables.run(self._messages.send, None)
        except BaseException as error:  # noqa: BLE001 - its task raises it
            self._left = None, error
        finally:
            _leave_task(loop, task)
            _enter_task(loop, asker)
            turn.depth -= 1
        if waits_for is not waiter:
            self._leave(waits_for, waiter)
        return asker.cancelling() > 0

    def _leave(self, waits_for: Any, waiter: asyncio.Future[None]) -> None:
        """Leave the rest to the task."""
        self._mailbox.waiter = None  # parked anew only if its task was cancelled, which that is about to learn
        if self._left is None:
            self._left = waits_for, None
        if asyncio.isfuture(waits_for):
            waits_for._asyncio_future_blocking = False  # until its task really waits, others may
        if not waiter.done():
            waiter.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        """Drive the loop in the actor's task, through whatever askers did to it meanwhile."""
        interruption: BaseException | None = None
        while True:
            try:
                if self._left is not None:
                    waits_for = self._take_over(*self._left, interruption)
                elif interruption is None:
                    waits_for = self._messages.send(None)
                else:
                    waits_for = self._messages.throw(interruption)
            except StopIteration:
                return
            interruption = None
            try:
                if waits_for is not None:
                    waits_for._asyncio_future_blocking = True
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the loop gets it
                interruption = error

    def _take_over(self, waits_for: Any, error: BaseException | None, interruption: BaseException | None) -> Any:
        self._left = None
        if error is not None:
            raise error
        if interruption is None or (
            # What a task that waits does with its cancellation.
            isinstance(interruption, asyncio.CancelledError)
            and asyncio.isfuture(waits_for)
            and waits_for.cancel(*interruption.args)
        ):
            return waits_for
        return self._messages.throw(interruption)
