from __future__ import annotations

import asyncio
from typing import Any

import pytest
from samovar.runtime.kernel import ActorGone, RestartLimit, RestartStorm, StartFailed, SupervisorSpec

from tests.kernel.stage import STEADY, Get, Log, Note, Ping, Run, Worker, boom, root, worker
from tests.kit import KitSystem, virtual


def sleeping(seconds: float) -> Any:
    async def hook(actor: Worker) -> None:
        await asyncio.sleep(seconds)

    return hook


def tree(log: Log, **hooks: Any) -> list[Any]:
    inner = SupervisorSpec("inner", [worker("b", log), worker("c", log, **hooks)], backoff=STEADY)
    return [worker("a", log), inner, worker("d", log)]


# -- start ----------------------------------------------------------------------------------------------


@virtual
async def test_a_child_that_does_not_start_stops_what_is_up_in_reverse_order() -> None:
    log = Log()
    children = tree(log, on_started=boom)
    kit = KitSystem(root(*children))
    with pytest.raises(StartFailed, match="inner/c did not start: ValueError: boom") as caught:
        await kit.system.start()
    assert isinstance(caught.value.__cause__, ValueError)
    assert log.of("started") == ["a", "inner/b"]
    assert log.of("stopped") == ["inner/b", "a"]
    assert {figures.state for figures in kit.system.figures()} == {"gone"}
    with pytest.raises(ActorGone):
        await children[0].ref.ask(Ping(1), 1.0)
    assert await kit.system.stop() == "stopped"


@virtual
async def test_a_factory_that_fails_fails_the_start() -> None:
    from samovar.runtime.kernel import ChildSpec  # noqa: PLC0415 - only here

    def factory() -> Worker:
        raise OSError("no such device")

    kit = KitSystem(root(ChildSpec("a", factory, capacity=1)))
    with pytest.raises(StartFailed, match="OSError: no such device"):
        await kit.system.start()


@virtual
async def test_a_start_beyond_its_budget_is_killed() -> None:
    log = Log()
    a = worker("a", log, on_started=sleeping(100.0), start_s=2.0)
    kit = KitSystem(root(worker("first", log), a))
    with pytest.raises(StartFailed, match=r"longer than 2\.0 s"):
        await kit.system.start()
    assert 2.0 <= kit.system.now_s() < 2.1
    assert log.of("stopped") == ["first"]


@virtual
async def test_a_restart_beyond_its_budget_counts_as_a_failed_restart() -> None:
    slow = False

    async def started(actor: Worker) -> None:
        if slow:
            await asyncio.sleep(100.0)

    a = worker("a", on_started=started, start_s=2.0)
    async with KitSystem(root(a)) as kit:
        slow = True
        kit.system.crash("a")
        await kit.advance(3.5)
        kit.failure("a")
        kit.failure("a", StartFailed)
        slow = False
        await kit.advance(2.0)
        assert kit.figures(a.ref).state == "running"


@virtual
async def test_children_start_in_order_and_stop_in_reverse() -> None:
    log = Log()
    async with KitSystem(root(*tree(log, on_started=sleeping(1.0)))) as kit:
        order = ["a", "inner/b", "inner/c", "d"]
        assert [entry[:2] for entry in log.entries] == [(w, p) for p in order for w in ("start", "started")]
        assert kit.system.running
        assert await kit.system.stop() == "stopped"
        assert log.of("stopped") == order[::-1]


@virtual
async def test_a_crash_of_a_running_child_while_others_still_start_is_handled_afterwards() -> None:
    log = Log()
    a, b = worker("a", log), worker("b", log, on_started=sleeping(2.0))
    kit = KitSystem(root(a, b))
    start = asyncio.ensure_future(kit.system.start())
    await kit.settle()
    kit.system.crash("a")
    await start
    await kit.advance(2.0)
    kit.failure("a")
    assert kit.figures(a.ref).incarnation == 2
    assert kit.system.running
    await kit.system.stop()


# -- stop -----------------------------------------------------------------------------------------------


@virtual
async def test_a_stop_drains_what_is_queued_and_refuses_what_is_new() -> None:
    log = Log()
    a = worker("a", log)

    async def slowly(actor: Worker) -> str:
        await asyncio.sleep(1.0)
        return "done"

    async with KitSystem(root(a)) as kit:
        first = asyncio.ensure_future(a.ref.ask(Get(slowly), 10.0))
        second = asyncio.ensure_future(a.ref.ask(Get(slowly), 10.0))
        await kit.settle()
        a.ref.tell(Note(1))
        stop = asyncio.ensure_future(kit.system.stop())
        await kit.settle()
        assert kit.figures(a.ref).state == "stopping"
        assert a.ref.tell(Note(2)) is False
        assert kit.dead_letter("a", "gone").message == Note(2)
        with pytest.raises(ActorGone):
            await a.ref.ask(Ping(1), 1.0)
        assert await asyncio.gather(first, second) == ["done", "done"]
        assert await stop == "stopped"
        assert log.details("note") == [1]
        assert log.entries[-1][0] == "stopped"


@virtual
async def test_an_actor_beyond_its_stop_budget_is_killed_and_its_asks_end() -> None:
    log = Log()
    a, b = worker("a", log, shutdown_s=2.0), worker("b", log)
    cleaned: list[float] = []

    async def hang(actor: Worker) -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            cleaned.append(actor.ctx.now_s())

    async with KitSystem(root(b, a)) as kit:
        in_hand = asyncio.ensure_future(a.ref.ask(Get(hang), 5000.0))
        queued = asyncio.ensure_future(a.ref.ask(Ping(1), 5000.0))
        await kit.settle()
        a.ref.tell(Note(1))
        assert await kit.system.stop() == "killed"
        assert cleaned == [2.0]
        assert log.of("stopped") == ["b"], "stopped() is for orderly ends"
        for ask in (in_hand, queued):
            with pytest.raises(ActorGone):
                await ask
        assert [kit.dead_letter("a", "gone").message for _ in range(3)][-1] == Note(1)


@virtual
async def test_a_slow_farewell_is_killed_too() -> None:
    a = worker("a", shutdown_s=1.0, on_stopped=sleeping(100.0))
    async with KitSystem(root(a)) as kit:
        assert await kit.system.stop() == "killed"
        assert 1.0 <= kit.system.now_s() < 1.1


@virtual
async def test_a_release_that_outlasts_the_drain_budget_is_no_kill() -> None:
    async def started(actor: Worker) -> None:
        actor.ctx.on_end(lambda: asyncio.sleep(1.5))

    a = worker("a", shutdown_s=2.0, on_started=started, on_stopped=sleeping(1.5))
    async with KitSystem(root(a)) as kit:
        assert await kit.system.stop() == "stopped"
        assert kit.system.now_s() == 3.0


@virtual
async def test_a_crash_while_stopping_is_reported_and_the_rest_stops() -> None:
    log = Log()
    a, b = worker("a", log, on_stopped=boom), worker("b", log)
    async with KitSystem(root(b, a)) as kit:
        assert await kit.system.stop() == "stopped"
        kit.failure("a", ValueError)
        assert log.of("stopped") == ["b"]
        assert kit.figures(a.ref).state == "gone"


@virtual
async def test_a_crash_while_draining_buries_the_rest_of_the_queue() -> None:
    a = worker("a")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Run(boom))
        a.ref.tell(Note(1))
        await kit.settle()
        stop = asyncio.ensure_future(kit.system.stop())
        await kit.settle()
        kit.release(a.ref)
        assert await stop == "stopped"
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")
        assert kit.dead_letter("a", "gone").message == Note(1)


@virtual
async def test_a_stop_during_the_backoff_starts_nothing_any_more() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        kit.system.crash("a")
        await kit.settle()
        kit.failure("a")
        asker = asyncio.ensure_future(a.ref.ask(Ping(1), 50.0))
        await kit.settle()
        assert await kit.system.stop() == "stopped"
        with pytest.raises(ActorGone):
            await asker
        kit.dead_letter("a", "gone")
        await kit.advance(10.0)
        assert log.details("start") == [1]


@virtual
async def test_a_stop_during_a_slow_first_start_starts_nothing_further() -> None:
    log = Log()
    a, b = worker("a", log, on_started=sleeping(1.0)), worker("b", log)
    inner = SupervisorSpec("inner", [a, b])
    kit = KitSystem(root(inner, worker("c", log)))
    start = asyncio.ensure_future(kit.system.start())
    await kit.settle()
    stop = asyncio.ensure_future(kit.system.stop())
    with pytest.raises(StartFailed, match="stopped while it started"):
        await start
    assert await stop == "stopped"
    await kit.settle()
    assert log.of("start") == ["inner/a"]
    assert log.of("stopped") == ["inner/a"]
    assert {figures.state for figures in kit.system.figures()} == {"gone"}


@virtual
async def test_a_stop_during_a_start_that_hangs_kills_it() -> None:
    a = worker("a", on_started=sleeping(1000.0), shutdown_s=1.0, start_s=500.0)
    kit = KitSystem(root(a))
    start = asyncio.ensure_future(kit.system.start())
    await kit.settle()
    assert await kit.system.stop() == "killed"
    with pytest.raises(StartFailed, match="killed while starting"):
        await start
    assert kit.system.now_s() < 3.0


@virtual
async def test_a_stop_during_a_slow_restart_ends_it() -> None:
    log = Log()

    async def started(actor: Worker) -> None:
        if actor.ctx.incarnation > 1:
            await asyncio.sleep(3.0)

    a = worker("a", log, on_started=started, shutdown_s=5.0)
    async with KitSystem(root(a)) as kit:
        kit.system.crash("a")
        await kit.advance(2.0)
        kit.failure("a")
        assert kit.figures(a.ref).state == "starting"
        assert await kit.system.stop() == "stopped"
        assert log.details("stopped") == [2]


@virtual
async def test_a_restart_that_fails_in_the_round_of_the_stop_is_still_known() -> None:
    async def started(actor: Worker) -> None:
        if actor.ctx.incarnation > 1:
            await asyncio.sleep(3.0)
            raise OSError("disk on fire")

    a = worker("a", on_started=started)
    async with KitSystem(root(a)) as kit:
        kit.system.crash("a")
        await kit.settle()
        kit.failure("a")
        kit.system.loop.call_at(4.0, lambda: None)
        await asyncio.sleep(4.0)  # the restart fails in this very round
        assert await kit.system.stop() == "stopped"
        kit.failure("a", OSError)


@virtual
async def test_stop_is_idempotent_and_shared_by_concurrent_callers() -> None:
    log = Log()
    a = worker("a", log, on_stopped=sleeping(1.0))
    async with KitSystem(root(a)) as kit:
        assert await asyncio.gather(kit.system.stop(), kit.system.stop()) == ["stopped", "stopped"]
        assert await kit.system.stop() == "stopped"
        assert log.of("stopped") == ["a"]


@virtual
async def test_a_stop_goes_on_when_its_caller_is_cancelled() -> None:
    log = Log()
    a, b = worker("a", log, on_stopped=sleeping(1.0)), worker("b", log)
    async with KitSystem(root(b, a)) as kit:
        caller = asyncio.ensure_future(kit.system.stop())
        await kit.settle()
        caller.cancel()
        await kit.advance(2.0)
        assert log.of("stopped") == ["a", "b"]


@virtual
async def test_a_stop_while_the_root_gives_up_finishes_the_job() -> None:
    log = Log()
    a, b = worker("a", log), worker("b", log, on_stopped=sleeping(2.0))
    async with KitSystem(root(a, b, limit=RestartLimit(0, 1.0))) as kit:
        kit.system.crash("a")
        await kit.settle()
        kit.failure("a")
        assert await kit.system.stop() == "stopped"
        assert {figures.state for figures in kit.system.figures()} == {"gone"}
        assert log.of("stopped") == ["b"]


@virtual
async def test_a_root_that_gave_up_can_still_be_stopped() -> None:
    a = worker("a")
    async with KitSystem(root(a, limit=RestartLimit(0, 1.0))) as kit:
        kit.system.crash("a")
        assert isinstance((await kit.system.wait()).error, RestartStorm)
        kit.failure("a")
        assert isinstance((await kit.system.wait()).error, RestartStorm), "wait() may be called again"
        with pytest.raises(ActorGone):
            await a.ref.ask(Ping(1), 1.0)
        assert await kit.system.stop() == "stopped"


@virtual
async def test_ctx_stop_ends_an_actor_once_it_has_drained() -> None:
    log = Log()
    a = worker("a", log, restart="transient")

    async def stop(actor: Worker) -> None:
        actor.ctx.stop()

    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Run(stop))
        a.ref.tell(Note(1))
        await kit.settle()
        kit.release(a.ref)
        await asyncio.sleep(0)
        await kit.settle()
        assert log.details("note") == [1]
        assert log.of("stopped") == ["a"]
        assert kit.figures(a.ref).state == "gone"
        with pytest.raises(ActorGone):
            await a.ref.ask(Ping(1), 1.0)


@virtual
async def test_an_actor_may_stop_itself_while_it_starts() -> None:
    log = Log()

    async def stop(actor: Worker) -> None:
        actor.ctx.stop()

    a = worker("a", log, restart="temporary", on_started=stop)
    async with KitSystem(root(a)) as kit:
        await kit.settle()
        assert log.of("started", "stopped") == ["a", "a"]
        assert kit.figures(a.ref).state == "gone"
