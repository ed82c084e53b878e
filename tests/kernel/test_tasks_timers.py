from __future__ import annotations

import asyncio
from typing import Any

import pytest
from samovar.runtime.kernel import ActorCrashed, ActorGone, AskTimeout, Overloaded

from tests.kernel.stage import Get, Log, Note, Ping, Run, Worker, boom, root, worker
from tests.kit import KitSystem, Probe, virtual


async def fail() -> int:
    await asyncio.sleep(1.0)
    raise OSError("disk on fire")


async def later(value: int, seconds: float = 1.0) -> int:
    await asyncio.sleep(seconds)
    return value


def doing(body: Any) -> Run:
    async def run(actor: Worker) -> None:
        body(actor.ctx)

    return Run(run)


# -- spawn ----------------------------------------------------------------------------------------------


@virtual
async def test_a_task_that_fails_without_a_mapping_crashes_the_actor() -> None:
    a = worker("a")
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: ctx.spawn(fail(), Note)))
        await kit.advance(1.5)
        assert kit.failure("a", OSError).message_type is None
        assert kit.figures(a.ref).tasks == 0


@virtual
async def test_a_failure_with_a_mapping_comes_back_as_a_message() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: ctx.spawn(fail(), Note, lambda error: Note(type(error)))))
        await kit.advance(1.5)
        assert log.details("note") == [OSError]
        assert kit.figures(a.ref).restarts == 0


@virtual
async def test_a_result_comes_back_and_the_mailbox_goes_on_meanwhile() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: ctx.spawn(later(7), Note)))
        assert await a.ref.ask(Ping(1), 0.5) == 1
        assert kit.figures(a.ref).tasks == 1
        await kit.advance(1.5)
        assert log.details("note") == [7]


@virtual
async def test_a_mapping_that_fails_crashes_the_actor() -> None:
    def broken(_: int) -> Note:
        raise ValueError("bad mapping")

    a = worker("a")
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: ctx.spawn(later(7), broken)))
        await kit.advance(1.5)
        kit.failure("a", ValueError)


@virtual
async def test_too_many_tasks_are_overloaded_and_the_work_is_never_begun() -> None:
    log = Log()

    async def two(actor: Worker) -> str:
        actor.ctx.spawn(later(1), Note)
        with pytest.raises(Overloaded):
            actor.ctx.spawn(later(2), Note)
        return "refused"

    a = worker("a", log, max_tasks=1)
    async with KitSystem(root(a)) as kit:
        assert await a.ref.ask(Get(two), 0.5) == "refused"
        await kit.advance(2.0)
        assert log.details("note") == [1]


@virtual
async def test_tasks_are_cancelled_at_the_end_and_their_results_reach_no_later_incarnation() -> None:
    log = Log()
    ended: list[str] = []

    async def work() -> int:
        try:
            await asyncio.sleep(3.0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return 7

    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: ctx.spawn(work(), Note)))
        await kit.settle()
        kit.system.crash("a")
        await kit.advance(10.0)
        kit.failure("a")
        assert ended == ["cancelled"]
        assert log.details("note") == []


@virtual
async def test_a_result_in_the_round_of_the_crash_reaches_no_later_incarnation() -> None:
    log = Log()
    a = worker("a", log)

    async def spawn_and_fail(actor: Worker) -> None:
        actor.ctx.spawn(later(7), Note)
        await asyncio.sleep(1.0)  # ends together with the task
        raise ValueError("boom")

    async with KitSystem(root(a)) as kit:
        a.ref.tell(Run(spawn_and_fail))
        await kit.advance(10.0)
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")
        assert log.details("note") == []


@virtual
async def test_an_error_while_a_task_is_cancelled_is_reported() -> None:
    async def badly() -> int:
        try:
            await asyncio.sleep(30.0)
        finally:
            raise OSError("while cleaning up")

    a = worker("a")
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: ctx.spawn(badly(), Note)))
        await kit.settle()
        await kit.system.stop()
        kit.failure("a", OSError)


@virtual
async def test_a_task_cancelled_by_its_actor_brings_no_message() -> None:
    log = Log()
    tasks: list[Any] = []
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: tasks.append(ctx.spawn(later(7), Note))))
        await kit.settle()
        tasks[0].cancel()
        await kit.advance(3.0)
        assert log.details("note") == []
        assert kit.figures(a.ref).restarts == 0


@virtual
async def test_a_task_inherits_no_deadline_and_has_no_part_in_cycles() -> None:
    log = Log()
    a, probe = worker("a", log), Probe()

    async def work(actor: Worker) -> int:
        with pytest.raises(AskTimeout):
            await probe.ref.ask(Ping(0), 5.0)  # longer than the ask that spawned it
        return await a.ref.ask(Ping(3), 1.0)  # its own actor: no cycle, the mailbox is free

    async def spawn(actor: Worker) -> str:
        actor.ctx.spawn(work(actor), Note)
        return "spawned"

    async with KitSystem(root(probe.spec, a)) as kit:
        assert await a.ref.ask(Get(spawn), 1.0) == "spawned"
        await kit.advance(10.0)
        assert log.details("note") == [3]
        assert kit.figures(a.ref).restarts == 0


@virtual
async def test_nothing_can_be_taken_from_a_context_that_has_ended() -> None:
    contexts: list[Any] = []
    a = worker("a")
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(contexts.append))
        await kit.settle()
        kit.system.crash("a")
        await kit.advance(2.0)
        kit.failure("a")
        (old,) = contexts
        for take in (
            lambda: old.after(1.0, Note(1)),
            lambda: old.spawn(later(1), Note),
            lambda: old.watch(a.ref),
            lambda: old.run_thread("t", lambda port: None, Note),
            lambda: old.on_end(lambda: later(1)),
        ):
            with pytest.raises(ActorGone, match="incarnation 1 has ended"):
                take()
        old.stop()
        await kit.settle()
        assert kit.figures(a.ref).incarnation == 2
        assert kit.system.running


# -- timers ---------------------------------------------------------------------------------------------


@virtual
async def test_a_timer_dies_with_its_incarnation() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: ctx.after(3.0, Note(1))))
        await kit.settle()
        kit.system.crash("a")
        await kit.advance(10.0)
        kit.failure("a")
        assert log.details("note") == []


@virtual
async def test_a_cancelled_timer_delivers_nothing() -> None:
    log = Log()
    timers: list[Any] = []
    a = worker("a", log, max_tasks=1)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: timers.append(ctx.after(1.0, Note(1)))))
        await kit.settle()
        timers[0].cancel()
        timers[0].cancel()
        a.ref.tell(doing(lambda ctx: ctx.after(1.0, Note(2))))  # its place is free again
        await kit.advance(3.0)
        timers[0].cancel()
        assert log.details("note") == [2]


@virtual
async def test_too_many_timers_are_overloaded() -> None:
    async def two(actor: Worker) -> str:
        actor.ctx.after(1.0, Note(1))
        with pytest.raises(Overloaded):
            actor.ctx.after(1.0, Note(2))
        return "refused"

    a = worker("a", max_tasks=1)
    async with KitSystem(root(a)) as kit:
        assert await a.ref.ask(Get(two), 0.5) == "refused"
        await kit.advance(1.1)
        assert await a.ref.ask(Get(two), 0.5) == "refused", "a timer that fired has given its place back"
        await kit.advance(1.1)


@virtual
async def test_timers_fire_in_the_order_of_their_times() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(doing(lambda ctx: [ctx.after(s, Note(s)) for s in (3.0, 1.0, 2.0)]))
        await kit.advance(5.0)
        assert log.details("note") == [1.0, 2.0, 3.0]


# -- closers --------------------------------------------------------------------------------------------


@virtual
async def test_closers_run_last_first_one_after_the_other_whatever_ended_the_incarnation() -> None:
    ended: list[str] = []

    def closer(name: str) -> Any:
        async def close() -> None:
            ended.append(f"{name} begins")
            await asyncio.sleep(0.5)
            ended.append(f"{name} ends")

        return close

    async def started(actor: Worker) -> None:
        actor.ctx.on_end(closer("first"))
        actor.ctx.on_end(closer("second"))

    a = worker("a", on_started=started)
    expected = ["second begins", "second ends", "first begins", "first ends"]
    async with KitSystem(root(a)) as kit:
        with pytest.raises(ActorCrashed):
            await a.ref.ask(Get(boom), 1.0)
        await kit.advance(3.0)
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")
        assert ended == expected
        await kit.system.stop()
        assert ended == expected * 2


@virtual
async def test_a_closer_that_fails_is_reported_and_the_others_run() -> None:
    ended: list[str] = []

    async def good() -> None:
        ended.append("good")

    async def bad() -> None:
        raise OSError("cannot close")

    async def started(actor: Worker) -> None:
        actor.ctx.on_end(good)
        actor.ctx.on_end(bad)

    async with KitSystem(root(worker("a", on_started=started))) as kit:
        assert await kit.system.stop() == "stopped"
        kit.failure("a", OSError)
        assert ended == ["good"]


@virtual
async def test_a_closer_beyond_the_budget_is_cut_off_and_reported() -> None:
    async def started(actor: Worker) -> None:
        actor.ctx.on_end(lambda: later(1, 100.0))

    a = worker("a", on_started=started, shutdown_s=2.0)
    async with KitSystem(root(a)) as kit:
        assert await kit.system.stop() == "unstoppable"
        assert kit.unstoppable("a") == "task a/close"
        assert 2.0 <= kit.system.now_s() < 2.1
