from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest
from samovar.runtime.kernel import (
    ActorGone,
    ActorRef,
    RestartLimit,
    RestartStorm,
    SupervisorSpec,
    Terminated,
    ThreadPort,
    UnstoppableChild,
)

from tests.kernel.stage import STEADY, Get, Handle, Log, Ping, Worker, root, worker
from tests.kit import KitSystem, Probe, virtual


class Stuck:
    """A blocking call that ends only when the test says so."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def block(self) -> None:
        assert self.let_go.wait(15.0)

    async def end(self, kit: KitSystem, ref: ActorRef[Any]) -> None:
        """Let go, and wait for the end of the incarnation that was stuck."""
        self.let_go.set()
        task = kit.system.cell_of(ref)._task
        assert task is not None
        await asyncio.wait({task})

    async def in_handler(self, actor: Worker) -> None:
        await anyio.to_thread.run_sync(self.block, abandon_on_cancel=False)

    def body(self, port: ThreadPort[Any, Any]) -> None:
        self.block()  # never looks at its port


@virtual
async def test_a_handler_stuck_in_a_thread_is_reported_and_the_rest_still_stops() -> None:
    stuck, log = Stuck(), Log()
    a, b, c = worker("a", log), worker("b", log, shutdown_s=1.0), worker("c", log)
    async with KitSystem(root(a, b, c), kill_grace_s=0.5) as kit:
        asker = asyncio.ensure_future(b.ref.ask(Get(stuck.in_handler), 1000.0))
        await kit.settle()
        assert await kit.system.stop() == "unstoppable"
        # drain budget + release budget + grace
        assert 2.5 <= kit.system.now_s() < 2.6
        assert log.of("stopped") == ["c", "a"]
        assert kit.unstoppable("b") == "task b"
        assert kit.figures(b.ref).state == "unstoppable"
        assert kit.figures(b.ref).unstoppable == 1
        with pytest.raises(ActorGone, match="killed before it answered"):
            await asker
        with pytest.raises(ActorGone):
            await b.ref.ask(Ping(1), 1.0)
        await stuck.end(kit, b.ref)
        await kit.settle()


@virtual
async def test_deferred_asks_and_watches_of_a_stuck_actor_end_too() -> None:
    stuck = Stuck()
    watcher = Probe("watcher")

    async def defer(actor: Worker, message: Handle) -> None:
        actor.ctx.defer(message)

    a = worker("a", shutdown_s=1.0)
    async with KitSystem(root(watcher.spec, a)) as kit:
        watcher.ctx.watch(a.ref)
        deferred = asyncio.ensure_future(a.ref.ask(Handle(defer), 1000.0))
        await kit.settle()
        in_hand = asyncio.ensure_future(a.ref.ask(Get(stuck.in_handler), 1000.0))
        await kit.settle()
        assert await kit.system.stop() == "unstoppable"
        for ask in (deferred, in_hand):
            with pytest.raises(ActorGone):
                await ask
        kit.unstoppable("a")
        notice = watcher.take(Terminated)
        assert (notice.reason, notice.restarting) == ("killed", False)
        await stuck.end(kit, a.ref)
        await kit.settle()
        watcher.take_nothing()


@virtual
async def test_a_pinned_thread_that_ignores_its_stop_is_reported() -> None:
    stuck, log = Stuck(), Log()

    async def started(actor: Worker) -> None:
        actor.ctx.run_thread("lane", stuck.body, lambda events: events)

    a, b = worker("a", log), worker("b", log, shutdown_s=1.0, on_started=started)
    async with KitSystem(root(a, b)) as kit:
        assert await kit.system.stop() == "unstoppable"
        assert kit.unstoppable("b") == "thread b/lane"
        assert log.of("stopped") == ["b", "a"], "the actor itself ended in order"
        assert kit.figures(b.ref).unstoppable == 1
        stuck.let_go.set()


@virtual
async def test_a_stuck_thread_of_a_crashed_actor_is_left_behind_and_the_actor_returns() -> None:
    stuck = Stuck()

    async def started(actor: Worker) -> None:
        if actor.ctx.incarnation == 1:
            actor.ctx.run_thread("lane", stuck.body, lambda events: events)

    a = worker("a", shutdown_s=1.0, on_started=started)
    async with KitSystem(root(a)) as kit:
        kit.system.crash("a")
        await kit.advance(5.0)
        kit.failure("a")
        assert kit.unstoppable("a") == "thread a/lane"
        assert await a.ref.ask(Ping(1), 1.0) == 1
        assert await kit.system.stop() == "unstoppable"
        stuck.let_go.set()


@virtual
async def test_a_task_that_will_not_end_is_reported() -> None:
    give_in = False

    async def stubborn() -> None:
        while not give_in:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000.0)

    async def started(actor: Worker) -> None:
        actor.ctx.spawn(stubborn(), lambda _: None)
        await asyncio.sleep(0)

    a = worker("a", shutdown_s=1.0, on_started=started)
    async with KitSystem(root(a)) as kit:
        assert await kit.system.stop() == "unstoppable"
        assert kit.unstoppable("a") == "task a/task"
        give_in = True
        await kit.advance(1000.0)


@virtual
async def test_a_stuck_child_that_its_group_must_restart_escalates_to_the_root() -> None:
    stuck, log = Stuck(), Log()
    a, b = worker("a", log), worker("b", log, shutdown_s=1.0)
    inner = SupervisorSpec("inner", [a, b], strategy="one_for_all", backoff=STEADY)
    async with KitSystem(root(inner, limit=RestartLimit(2, 100.0))) as kit:
        asker = asyncio.ensure_future(b.ref.ask(Get(stuck.in_handler), 1000.0))
        await kit.settle()
        kit.system.crash("inner/a")
        failure = await kit.system.wait()
        assert isinstance(failure.error, RestartStorm)
        kit.failure("inner/a")
        kit.failure("inner/b", UnstoppableChild)
        assert kit.unstoppable("inner/b") == "task inner/b"
        with pytest.raises(ActorGone):
            await asker
        assert kit.record.given_up == ["inner", "root"]
        kit.record.failures.clear()  # the other failed restarts on the way to the root
        assert await kit.system.stop() == "unstoppable"
        await stuck.end(kit, b.ref)
        await kit.settle()


@virtual
async def test_a_child_that_was_stuck_for_a_while_comes_back_when_it_has_ended() -> None:
    stuck = Stuck()
    a, b = worker("a"), worker("b", shutdown_s=1.0)
    inner = SupervisorSpec("inner", [a, b], strategy="one_for_all", backoff=STEADY)
    async with KitSystem(root(inner, limit=RestartLimit(5, 100.0))) as kit:
        asker = asyncio.ensure_future(b.ref.ask(Get(stuck.in_handler), 1000.0))
        await kit.settle()
        kit.system.crash("inner/a")
        await kit.advance(3.2)  # its budgets are spent
        kit.unstoppable("inner/b")
        with pytest.raises(ActorGone):
            await asker
        await stuck.end(kit, b.ref)
        await kit.settle()
        await kit.advance(5.0)
        kit.record.failures.clear()
        assert kit.system.running
        assert await b.ref.ask(Ping(1), 1.0) == 1


@virtual
async def test_a_start_stuck_in_a_thread_is_reported() -> None:
    stuck = Stuck()
    a = worker("a", start_s=1.0, shutdown_s=1.0, on_started=stuck.in_handler)
    kit = KitSystem(root(a))
    with pytest.raises(Exception, match="did not start"):
        await kit.system.start()
    assert kit.unstoppable("a") == "task a"
    assert await kit.system.stop() == "unstoppable"
    await stuck.end(kit, a.ref)
    await kit.settle()
