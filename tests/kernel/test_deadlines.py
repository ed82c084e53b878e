"""What the timers of deadlines may keep: they outlive the asks that they were made for by minutes."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref

from samovar.runtime.kernel.deadlines import Deadlines

_request: contextvars.ContextVar[object] = contextvars.ContextVar("request")


class Request:
    """Something that a task's context holds."""


def test_a_timer_keeps_nothing_of_the_context_that_asked() -> None:
    async def asks(deadlines: Deadlines, request: Request) -> None:
        _request.set(request)
        deadlines.bucket(asyncio.get_running_loop().time() + 600.0, 600.0)

    async def main() -> None:
        deadlines = Deadlines(asyncio.get_running_loop())
        request = Request()
        seen = weakref.ref(request)
        await asyncio.create_task(asks(deadlines, request))
        del request
        await asyncio.sleep(0)  # the step that the task woke still holds the task
        gc.collect()
        assert seen() is None

    asyncio.run(main())


def test_deadlines_minutes_away_share_a_timer_a_second_and_near_ones_stay_exact() -> None:
    async def main() -> None:
        deadlines = Deadlines(asyncio.get_running_loop())
        now_s = asyncio.get_running_loop().time()

        def timers(remaining_s: float) -> int:
            return len(
                {id(deadlines.bucket(now_s + remaining_s + n / 100.0, remaining_s)) for n in range(500)}
            )

        assert timers(600.0) in {5, 6}
        assert timers(60.0) in {10, 11}
        assert timers(20.0) in {50, 51}
        assert timers(1.0) == 500

    asyncio.run(main())
