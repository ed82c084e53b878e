from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import anyio
import pytest
from samovar.runtime.kernel import ActorCrashed, ActorGone, ForeignCancellation, StartFailed, SupervisorSpec

from tests.kernel.stage import STEADY, Get, Log, Ping, Run, Worker, root, worker
from tests.kit import KitSystem, virtual


def own_task(tasks: dict[str, asyncio.Task[Any]]) -> Any:
    async def remember(actor: Worker) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks[actor.ctx.path] = task

    return remember


@virtual
async def test_a_task_cancelled_from_outside_is_a_crash_and_siblings_are_untouched() -> None:
    tasks: dict[str, asyncio.Task[Any]] = {}
    a, b = worker("a", on_started=own_task(tasks)), worker("b", on_started=own_task(tasks))
    async with KitSystem(root(a, b)) as kit:
        tasks["a"].cancel()
        await kit.settle()
        assert kit.failure("a", ForeignCancellation).message_type is None
        assert isinstance(kit.figures(a.ref).last_failure.error.__cause__, asyncio.CancelledError)
        await kit.advance(2.0)
        assert await a.ref.ask(Ping(1), 1.0) == 1
        assert kit.figures(a.ref).restarts == 1
        assert kit.figures(b.ref).restarts == 0
        assert kit.figures(b.ref).incarnation == 1


@virtual
async def test_a_handler_cancelled_from_outside_fails_its_ask() -> None:
    tasks: dict[str, asyncio.Task[Any]] = {}

    async def wait(actor: Worker) -> None:
        await asyncio.sleep(100.0)

    a = worker("a", on_started=own_task(tasks))
    async with KitSystem(root(a)) as kit:
        asker = asyncio.ensure_future(a.ref.ask(Get(wait), 50.0))
        await kit.settle()
        tasks["a"].cancel()
        with pytest.raises(ActorCrashed, match="ForeignCancellation"):
            await asker
        await kit.settle()
        kit.failure("a", ForeignCancellation)
        kit.dead_letter("a", "crashed")


@virtual
async def test_awaiting_a_cancelled_future_is_a_crash() -> None:
    async def wait(actor: Worker) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    a, b = worker("a"), worker("b")
    async with KitSystem(root(a, b)) as kit:
        a.ref.tell(Run(wait))
        await kit.settle()
        assert kit.failure("a", ForeignCancellation).message_type == "Run"
        kit.dead_letter("a", "crashed")
        assert await b.ref.ask(Ping(1), 1.0) == 1


@virtual
async def test_a_cancellation_in_started_fails_the_start() -> None:
    async def cancel_self(actor: Worker) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1.0)

    kit = KitSystem(root(worker("a", on_started=cancel_self)))
    with pytest.raises(StartFailed, match="ForeignCancellation"):
        await kit.system.start()


@virtual
async def test_a_task_cancelled_before_it_began_fails_the_start_at_once() -> None:
    a = worker("a")
    kit = KitSystem(root(a))
    start = asyncio.ensure_future(kit.system.start())
    await asyncio.sleep(0)
    cell = kit.system.cell_of(a.ref)
    assert cell._task is not None
    cell._task.cancel()
    with pytest.raises(StartFailed, match="cancelled before it began"):
        await start
    assert kit.system.now_s() == 0.0


@virtual
async def test_a_cancellation_while_an_incarnation_is_released_loses_nothing() -> None:
    tasks: dict[str, asyncio.Task[Any]] = {}

    async def close_slowly() -> None:
        await asyncio.sleep(2.0)

    async def started(actor: Worker) -> None:
        await own_task(tasks)(actor)
        actor.ctx.on_end(close_slowly)

    a = worker("a", on_started=started)
    async with KitSystem(root(a)) as kit:
        kit.system.crash("a")
        await kit.settle()
        tasks["a"].cancel()  # while the closer runs
        await kit.advance(5.0)
        kit.failure("a")
        assert await a.ref.ask(Ping(1), 1.0) == 1
        assert kit.figures(a.ref).restarts == 1


@virtual
async def test_a_foreign_cancellation_together_with_a_kill_still_ends_the_actor() -> None:
    tasks: dict[str, asyncio.Task[Any]] = {}

    async def wait(actor: Worker) -> None:
        await asyncio.sleep(100.0)

    a = worker("a", on_started=own_task(tasks), shutdown_s=1.0)
    async with KitSystem(root(a)) as kit:
        asker = asyncio.ensure_future(a.ref.ask(Get(wait), 50.0))
        await kit.settle()
        stop = asyncio.ensure_future(kit.system.stop())
        await kit.settle()
        kit.system.cell_of(a.ref)._scope.cancel()  # as the stop does when the budget is spent,
        tasks["a"].cancel()  # and in the same round somebody else
        assert await stop == "killed"
        with pytest.raises(ActorGone):
            await asker
        kit.dead_letter("a", "gone")


@virtual
async def test_the_handlers_own_scopes_are_its_own_business() -> None:
    async def limited(actor: Worker) -> str:
        with anyio.move_on_after(1.0) as scope:
            await asyncio.sleep(10.0)
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            with anyio.fail_after(1.0):
                await asyncio.sleep(10.0)
        async with anyio.create_task_group() as group:
            group.start_soon(asyncio.sleep, 10.0)
            group.cancel_scope.cancel()
        return "fine"

    a = worker("a")
    async with KitSystem(root(a)) as kit:
        assert await a.ref.ask(Get(limited), 50.0) == "fine"
        assert kit.figures(a.ref).restarts == 0


@virtual
async def test_a_handler_that_swallows_cancellation_is_ended_all_the_same() -> None:
    swallowed = 0

    async def stubborn(actor: Worker) -> None:
        nonlocal swallowed
        while swallowed < 1000:
            try:
                await asyncio.sleep(1000.0)
            except asyncio.CancelledError:
                swallowed += 1

    log = Log()
    a, b = worker("a", log, shutdown_s=1.0), worker("b", log)
    async with KitSystem(root(b, a)) as kit:
        a.ref.tell(Run(stubborn))
        await kit.settle()
        assert await kit.system.stop() == "killed"
        assert swallowed == 1000, "the scope insists"
        assert log.of("stopped") == ["b"]


@virtual
async def test_a_handler_that_never_ends_is_reported_and_the_rest_still_stops() -> None:
    give_in = False

    async def never(actor: Worker) -> None:
        while not give_in:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000.0)

    log = Log()
    a, b = worker("a", log, shutdown_s=1.0), worker("b", log)
    inner = SupervisorSpec("inner", [a], backoff=STEADY)
    async with KitSystem(root(b, inner)) as kit:
        a_asker = asyncio.ensure_future(a.ref.ask(Get(never), 1000.0))
        await kit.settle()
        stop = asyncio.ensure_future(kit.system.stop())
        assert await stop == "unstoppable"
        assert kit.unstoppable("inner/a") == "task inner/a"
        with pytest.raises(Exception, match="killed before it answered"):
            await a_asker
        assert log.of("stopped") == ["b"]
        assert await kit.system.stop() == "unstoppable"
        give_in = True
        await kit.settle()
