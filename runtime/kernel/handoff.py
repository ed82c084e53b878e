"""The hand-off: an idle actor's message loop goes on, on the asker's stack (docs/adr/0004-hand-off.md).

An ask costs two turns of the event loop, one that wakes the actor and one that wakes the asker. Where the
actor is parked, ``HandOff.run`` continues its message loop at once instead, as the actor's own task for all
that anything inside can tell. A loop that parks again has left nothing to do, and nobody was woken. One that
waits for something else, or has ended, is left to its task, which goes on from exactly there.
"""

from __future__ import annotations

import asyncio
import sys
import types
from asyncio import current_task
from asyncio.tasks import _enter_task, _leave_task  # pyright: ignore[reportPrivateUsage] - documented as public
from typing import TYPE_CHECKING, Any

from .turn import TURN_LENGTH

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextvars import Context

    from .mailbox import Mailbox
    from .turn import Turn

MAX_DEPTH = 8
"""Hand-offs within hand-offs: the interpreter's stack must not bound how far asks can nest."""


@types.coroutine
def park(waiter: asyncio.Future[None]) -> Generator[Any, None, None]:
    """Wait for ``waiter`` or for a hand-off: a future that is awaited itself cannot be passed by."""
    yield waiter


class HandOff:
    """The message loop of one incarnation: awaited by the actor's task, run by askers while it is parked."""

    __slots__ = ("_left", "_loop", "_mailbox", "_messages", "_task", "_turn", "_variables")

    def __init__(
        self, messages: Coroutine[Any, None, None], mailbox: Mailbox, turn: Turn, variables: Context
    ) -> None:
        task = current_task()
        assert task is not None
        self._task = task
        self._variables = variables  # those of the task
        self._messages = messages
        self._mailbox = mailbox
        self._turn = turn
        self._loop = task.get_loop()
        # What a hand-off left to the task: what the loop waits for now, or the exception that ended it.
        self._left: tuple[Any, BaseException | None] | None = None

    def run(self, now_s: float) -> bool:
        """Let the parked actor look at its mailbox, at ``now_s``: here if that may be, else in its task.

        True when the calling task was cancelled by what ran: it has to suspend before it goes on, where a
        task that waits would have been interrupted.
        """
        mailbox, turn, loop, task = self._mailbox, self._turn, self._loop, self._task
        waiter, asker = mailbox.waiter, current_task(loop)
        if (
            asker is None
            or asker.cancelling()
            or sys.exception() is not None  # would become the context of whatever the actor raises
            or waiter is None
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
        except BaseException as error:  # noqa: BLE001 - the task raises it
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
        # Parked anew only if the task was cancelled meanwhile, which is about to reach it: no hand-off then.
        self._mailbox.waiter = None
        if self._left is None:
            self._left = waits_for, None
        if asyncio.isfuture(waits_for):
            waits_for._asyncio_future_blocking = False  # noqa: SLF001 - others may await it until the task does
        if not waiter.done():
            waiter.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        """Drive the loop in the actor's task, and go on from where a hand-off left it."""
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
                    waits_for._asyncio_future_blocking = True  # noqa: SLF001 - as if awaited here
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the loop gets it
                interruption = error

    def _take_over(
        self, waits_for: Any, end: BaseException | None, interruption: BaseException | None
    ) -> Any:
        self._left = None
        if interruption is not None and isinstance(end, StopIteration):
            raise interruption
        if end is not None:
            raise end
        if interruption is None or (
            # What a task that waits does with its cancellation.
            isinstance(interruption, asyncio.CancelledError)
            and asyncio.isfuture(waits_for)
            and waits_for.cancel(*interruption.args)
        ):
            return waits_for
        return self._messages.throw(interruption)
