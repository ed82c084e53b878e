from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import pytest
from samovar.runtime.kernel import (
    ActorCrashed,
    ActorGone,
    Backoff,
    InjectedCrash,
    KernelError,
    RestartLimit,
    RestartStorm,
    SupervisorSpec,
)

from tests.kernel.stage import STEADY, Get, Log, Note, Ping, Run, Worker, boom, root, worker
from tests.kit import KitSystem, virtual


def three(log: Log, **spec: Any) -> list[Any]:
    return [worker(name, log, **spec) for name in ("a", "b", "c")]


async def crash(kit: KitSystem, *paths: str) -> None:
    for path in paths:
        assert kit.system.crash(path)
    await kit.settle()


# -- strategies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "stopped", "restarted"),
    [
        ("one_for_one", [], ["b"]),
        ("rest_for_one", ["c"], ["b", "c"]),
        ("one_for_all", ["c", "a"], ["a", "b", "c"]),
    ],
)
def test_the_strategy_decides_who_restarts_and_in_which_order(
    strategy: Any, stopped: list[str], restarted: list[str]
) -> None:
    @virtual
    async def check() -> None:
        log = Log()
        async with KitSystem(root(*three(log), strategy=strategy)) as kit:
            log.entries.clear()
            await crash(kit, "b")
            kit.failure("b")
            assert log.of("stopped") == stopped
            await kit.advance(0.9)
            assert log.of("start") == []
            await kit.advance(0.2)
            assert log.of("start") == restarted
            assert [path for path, _ in kit.record.restarts] == restarted
            assert kit.system.running

    check()


@virtual
async def test_a_group_starts_in_order_each_waiting_for_the_one_before() -> None:
    log = Log()

    async def slow(actor: Worker) -> None:
        await asyncio.sleep(0.5)

    children = [worker(name, log, on_started=slow) for name in ("a", "b", "c")]
    async with KitSystem(root(*children, strategy="one_for_all")) as kit:
        log.entries.clear()
        await crash(kit, "c")
        kit.failure("c")
        await kit.advance(10.0)
        assert [entry[:2] for entry in log.entries if entry[0] != "stopped"] == [
            (what, path) for path in ("a", "b", "c") for what in ("start", "started")
        ]


@virtual
async def test_two_crashes_at_once_restart_the_group_once() -> None:
    log = Log()
    async with KitSystem(root(*three(log), strategy="rest_for_one")) as kit:
        log.entries.clear()
        await crash(kit, "a", "c")
        await kit.advance(10.0)
        kit.failure("a")
        kit.failure("c")
        assert log.of("start") == ["a", "b", "c"]
        assert [figures.restarts for figures in kit.system.figures()] == [1, 1, 1]


@virtual
async def test_a_group_that_crashes_all_at_once_counts_one_restart() -> None:
    log = Log()
    async with KitSystem(root(*three(log), strategy="one_for_all", limit=RestartLimit(1, 30.0))) as kit:
        log.entries.clear()
        await crash(kit, "a", "b", "c")
        await kit.advance(10.0)
        for path in "abc":
            kit.failure(path)
        assert log.of("start") == ["a", "b", "c"]
        assert kit.system.running


@virtual
async def test_a_child_still_ending_when_its_sibling_takes_it_along_restarts_once() -> None:
    log = Log()

    async def close_slowly() -> None:
        await asyncio.sleep(3.0)

    async def started(actor: Worker) -> None:
        actor.ctx.on_end(close_slowly)

    a, b = worker("a", log), worker("b", log, on_started=started)
    async with KitSystem(root(a, b, strategy="one_for_all")) as kit:
        log.entries.clear()
        await crash(kit, "b")  # its end takes three seconds, longer than the backoff
        await crash(kit, "a")
        await kit.advance(20.0)
        kit.failure("a")
        kit.failure("b")
        assert log.of("start") == ["a", "b"]
        assert kit.figures(b.ref).restarts == 1


@virtual
async def test_a_crash_during_the_backoff_of_a_sibling_keeps_the_order() -> None:
    log = Log()
    async with KitSystem(root(*three(log), strategy="rest_for_one")) as kit:
        log.entries.clear()
        await crash(kit, "c")
        await kit.advance(0.5)
        await crash(kit, "a")
        await kit.advance(10.0)
        kit.failure("a")
        kit.failure("c")
        assert log.of("start") == ["a", "b", "c"]


@virtual
async def test_a_crash_while_a_sibling_starts_slowly_restarts_what_depends_on_it() -> None:
    log = Log()

    async def slow(actor: Worker) -> None:
        await asyncio.sleep(1.0)

    a, b, c = worker("a", log), worker("b", log, on_started=slow), worker("c", log)
    async with KitSystem(root(a, b, c, strategy="rest_for_one")) as kit:
        await crash(kit, "a")
        await kit.advance(1.5)  # a runs again, b is starting
        log.entries.clear()
        await crash(kit, "a")
        await kit.advance(10.0)
        assert log.of("start") == ["a", "b", "c"]
        kit.failure("a")
        kit.failure("a")
        assert kit.system.running


# -- restart types ----------------------------------------------------------------------------------------


async def _stop(actor: Worker) -> None:
    actor.ctx.stop()


@pytest.mark.parametrize(
    ("restart", "after_crash", "after_end"),
    [("permanent", "running", "running"), ("transient", "running", "gone"), ("temporary", "gone", "gone")],
)
def test_the_restart_type_decides_who_comes_back(restart: Any, after_crash: str, after_end: str) -> None:
    @virtual
    async def check() -> None:
        a, b = worker("a", restart=restart), worker("b", restart=restart)
        async with KitSystem(root(a, b)) as kit:
            b.ref.tell(Run(_stop))
            await crash(kit, "a")
            kit.failure("a")
            await kit.advance(3.0)
            if restart == "permanent":
                kit.failure("b", KernelError)
            assert kit.figures(a.ref).state == after_crash
            assert kit.figures(b.ref).state == after_end

    check()


@virtual
async def test_a_temporary_child_taken_along_by_its_group_stays_away() -> None:
    log = Log()
    a, b, c = worker("a", log), worker("b", log, restart="temporary"), worker("c", log)
    async with KitSystem(root(a, b, c, strategy="one_for_all")) as kit:
        log.entries.clear()
        await crash(kit, "a")
        kit.failure("a")
        await kit.advance(3.0)
        assert log.of("start") == ["a", "c"]
        assert kit.figures(b.ref).state == "gone"
        with pytest.raises(ActorGone):
            await b.ref.ask(Ping(1), 1.0)


@virtual
async def test_a_temporary_child_that_crashes_in_a_group_that_restarts_is_left_alone() -> None:
    log = Log()
    a, b = worker("a", log), worker("b", log, restart="temporary")
    async with KitSystem(root(a, b, strategy="one_for_all")) as kit:
        log.entries.clear()
        await crash(kit, "a", "b")
        kit.failure("a")
        kit.failure("b")
        await kit.advance(3.0)
        assert log.of("start") == ["a"]
        assert kit.figures(b.ref).state == "gone"


@virtual
async def test_state_is_fresh_from_the_factory_and_the_failing_message_is_not_redelivered() -> None:
    made: list[int] = []
    log = Log()

    def factory() -> Worker:
        made.append(len(made))
        return Worker(log, {})

    from samovar.runtime.kernel import ChildSpec  # noqa: PLC0415 - only this test builds a spec by hand

    a = ChildSpec("a", factory, capacity=10)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(Run(boom))
        a.ref.tell(Note(1))
        await kit.advance(3.0)
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")
        assert made == [0, 1]
        assert log.details("note") == [1]


# -- backoff and the limit ----------------------------------------------------------------------------------


@virtual
async def test_the_backoff_grows_by_its_factor_up_to_its_maximum() -> None:
    backoff = Backoff(initial_s=1.0, factor=2.0, max_s=5.0, jitter=0.0)
    async with KitSystem(root(worker("a"), backoff=backoff, limit=RestartLimit(10, 1000.0))) as kit:
        for _ in range(5):
            await crash(kit, "a")
            kit.failure("a")
            await kit.advance(10.0)
        assert [delay_s for _, delay_s in kit.record.delays] == [1.0, 2.0, 4.0, 5.0, 5.0]


@virtual
async def test_the_jitter_comes_from_the_injected_chance() -> None:
    backoff = Backoff(initial_s=1.0, factor=1.0, max_s=5.0, jitter=0.5)
    chance = random.Random(7)
    expected = [1.0 + 0.5 * (2.0 * chance.random() - 1.0) for _ in range(3)]
    async with KitSystem(root(worker("a"), backoff=backoff), seed=7) as kit:
        for _ in range(3):
            await crash(kit, "a")
            kit.failure("a")
            await kit.advance(2.0)
        assert [delay_s for _, delay_s in kit.record.delays] == expected


@virtual
async def test_the_restart_limit_slides() -> None:
    async with KitSystem(root(worker("a"), limit=RestartLimit(2, 10.0))) as kit:
        for _ in range(6):  # never three within ten seconds
            await crash(kit, "a")
            kit.failure("a")
            await kit.advance(5.1)
        assert kit.system.running


@virtual
async def test_one_restart_too_many_ends_the_tree() -> None:
    log = Log()
    async with KitSystem(root(*three(log), limit=RestartLimit(2, 10.0))) as kit:
        waiting = asyncio.ensure_future(kit.system.wait())
        for _ in range(2):
            await crash(kit, "b")
            kit.failure("b")
            await kit.advance(2.0)
        assert not waiting.done()
        log.entries.clear()
        await crash(kit, "b")
        kit.failure("b")
        failure = await waiting
        assert failure.path == "root"
        assert isinstance(failure.error, RestartStorm)
        assert isinstance(failure.error.__cause__, InjectedCrash)
        assert "more than 2 restarts in 10.0 s" in str(failure.error)
        assert log.of("stopped") == ["c", "a"], "the others stop in reverse order"
        assert {figures.state for figures in kit.system.figures()} == {"gone"}
        assert kit.record.given_up == ["root"]
        assert await kit.system.stop() == "stopped"
        assert not kit.system.running


@virtual
async def test_failed_restarts_count_and_back_off() -> None:
    broken = False

    async def started(actor: Worker) -> None:
        if broken:
            raise OSError("disk on fire")

    a = worker("a", on_started=started)
    async with KitSystem(root(a, limit=RestartLimit(3, 100.0))) as kit:
        broken = True
        await crash(kit, "a")
        kit.failure("a")
        await kit.advance(2.5)
        kit.failure("a", OSError)
        kit.failure("a", OSError)
        broken = False
        await kit.advance(1.0)
        assert kit.figures(a.ref).state == "running"
        assert kit.figures(a.ref).restarts == 3
        broken = True
        await crash(kit, "a")
        kit.failure("a")
        failure = await kit.system.wait()
        assert isinstance(failure.error, RestartStorm)


@virtual
async def test_a_failed_restart_takes_the_rest_of_its_group_back_down() -> None:
    log = Log()
    broken = False

    async def started(actor: Worker) -> None:
        if broken:
            raise OSError("disk on fire")

    a, b, c = worker("a", log), worker("b", log, on_started=started), worker("c", log)
    async with KitSystem(root(a, b, c, strategy="one_for_all")) as kit:
        broken = True
        await crash(kit, "a")
        kit.failure("a")
        log.entries.clear()
        await kit.advance(1.5)
        kit.failure("b", OSError)
        assert log.of("started", "stopped") == ["a", "a"], "a came up and went down again; c never started"
        broken = False
        log.entries.clear()
        await kit.advance(1.5)
        assert log.of("started") == ["a", "b", "c"]


# -- escalation ---------------------------------------------------------------------------------------------


@virtual
async def test_a_storm_below_restarts_the_whole_subtree() -> None:
    log = Log()
    inner = SupervisorSpec("inner", three(log), limit=RestartLimit(1, 30.0), backoff=STEADY)
    beside = worker("beside", log)
    async with KitSystem(root(inner, beside)) as kit:
        await crash(kit, "inner/b")
        kit.failure("inner/b")
        await kit.advance(2.0)
        log.entries.clear()
        await crash(kit, "inner/b")
        kit.failure("inner/b")
        kit.failure("inner", RestartStorm)
        assert log.of("stopped") == ["inner/c", "inner/a"]
        log.entries.clear()
        await kit.advance(2.0)
        assert log.of("start") == ["inner/a", "inner/b", "inner/c"]
        assert kit.system.running
        # The window of the restarted supervisor is empty again: it takes one more without a storm.
        await crash(kit, "inner/b")
        kit.failure("inner/b")
        await kit.advance(2.0)
        assert kit.system.running
        assert beside.ref.path not in log.of("start", "stopped")


@virtual
async def test_storms_escalate_to_the_root() -> None:
    limit = RestartLimit(1, 1000.0)
    a = worker("a")
    inner = SupervisorSpec("inner", [a], limit=limit, backoff=STEADY)
    outer = SupervisorSpec("outer", [inner], limit=limit, backoff=STEADY)
    async with KitSystem(root(outer, limit=limit)) as kit:
        waiting = asyncio.ensure_future(kit.system.wait())
        crashes = 0
        while not waiting.done():
            if kit.system.crash("outer/inner/a"):
                crashes += 1
            await kit.advance(3.0)
        assert crashes == 8, "two at each of three levels"
        assert isinstance((await waiting).error, RestartStorm)
        assert kit.record.given_up[-1] == "root"
        kit.record.failures.clear()


@virtual
async def test_a_storm_keeps_queues_for_the_restarted_subtree() -> None:
    a = worker("a")
    inner = SupervisorSpec("inner", [a], limit=RestartLimit(0, 1.0), backoff=STEADY)
    async with KitSystem(root(inner)) as kit:
        await crash(kit, "inner/a")
        kit.failure("inner/a")
        kit.failure("inner", RestartStorm)
        assert kit.figures(a.ref).state == "restarting"
        assert await a.ref.ask(Ping(3), 10.0) == 3


@virtual
async def test_rest_for_one_takes_whole_subtrees_along() -> None:
    log = Log()
    inner = SupervisorSpec("inner", three(log), backoff=STEADY)
    first = worker("first", log)
    async with KitSystem(root(first, inner, strategy="rest_for_one")) as kit:
        log.entries.clear()
        await crash(kit, "first")
        kit.failure("first")
        await kit.advance(2.0)
        paths = ["inner/a", "inner/b", "inner/c"]
        assert log.of("stopped") == paths[::-1]
        assert log.of("start") == ["first", *paths]
        assert kit.system.running


@virtual
async def test_a_supervisor_crashed_on_purpose_restarts_with_everything_below() -> None:
    log = Log()
    inner = SupervisorSpec("inner", three(log), backoff=STEADY)
    async with KitSystem(root(inner)) as kit:
        log.entries.clear()
        assert kit.system.crash("inner")
        await kit.settle()
        kit.failure("inner")
        await kit.advance(2.0)
        assert log.of("start") == ["inner/a", "inner/b", "inner/c"]
        assert kit.system.running


@virtual
async def test_a_crash_while_the_supervisor_gives_up_is_not_lost() -> None:
    async def stop_badly(actor: Worker) -> None:
        if actor.ctx.incarnation == 1:
            await asyncio.sleep(1.0)
            kit.system.crash("inner/a")
            await asyncio.sleep(1.0)

    a, b = worker("a"), worker("b", on_stopped=stop_badly)
    inner = SupervisorSpec("inner", [a, b], backoff=STEADY)
    async with KitSystem(root(inner)) as kit:
        kit.system.crash("inner")
        await kit.advance(10.0)
        kit.failure("inner/a")
        kit.failure("inner")
        assert kit.system.running
        assert kit.figures(a.ref).incarnation == 2
        assert kit.figures(b.ref).incarnation == 2


@virtual
async def test_two_supervisors_that_give_up_together_restart_once() -> None:
    log = Log()
    limit = RestartLimit(0, 1.0)
    left = SupervisorSpec("left", [worker("a", log)], limit=limit, backoff=STEADY)
    right = SupervisorSpec("right", [worker("b", log)], limit=limit, backoff=STEADY)
    async with KitSystem(root(left, right, strategy="one_for_all")) as kit:
        log.entries.clear()
        await crash(kit, "left/a", "right/b")
        await kit.advance(10.0)
        for path in ("left/a", "right/b"):
            kit.failure(path)
        kit.failure("left", RestartStorm)
        kit.record.failures.clear()  # whether right was still to give up is a matter of timing
        assert log.of("start") == ["left/a", "right/b"]
        assert kit.system.running


# -- crash(path) --------------------------------------------------------------------------------------------


@virtual
async def test_crash_says_whether_there_is_something_to_crash() -> None:
    a, b = worker("a"), worker("b", restart="temporary")
    async with KitSystem(root(a, b)) as kit:
        assert kit.system.crash("nobody") is False
        assert kit.system.crash("") is False, "the root is not crashed on purpose"
        assert kit.system.crash("b")
        await kit.settle()
        kit.failure("b")
        assert kit.system.crash("b") is False, "it is gone"
        assert kit.system.crash("a")
        await kit.settle()
        kit.failure("a")
        assert kit.system.crash("a") is False, "it waits for its restart"
        await kit.advance(2.0)
        assert kit.figures(a.ref).incarnation == 2
        assert kit.system.crash("a", OSError("another"))
        await kit.settle()
        kit.failure("a", OSError)


@virtual
async def test_a_crash_with_a_base_exception_is_a_crash_of_the_actor_only() -> None:
    a = worker("a")
    async with KitSystem(root(a)) as kit:
        kit.system.crash("a", SystemExit(3))
        await kit.settle()
        assert isinstance(kit.failure("a", KernelError).error.__cause__, SystemExit)


@virtual
async def test_an_actor_that_stops_itself_under_load_leaves_the_queue_to_the_next() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Run(_stop))
        a.ref.tell(Note(1))
        await kit.settle()
        kit.release(a.ref)
        await kit.advance(3.0)
        kit.failure("a", KernelError)
        assert [entry[:2] for entry in log.entries] == [
            ("start", "a"),
            ("started", "a"),
            ("stopped", "a"),
            ("start", "a"),
            ("started", "a"),
            ("note", "a"),
        ]


@virtual
async def test_an_ask_during_the_backoff_waits_for_the_next_incarnation() -> None:
    a = worker("a")
    async with KitSystem(root(a)) as kit:
        with pytest.raises(ActorCrashed):
            await a.ref.ask(Get(boom), 1.0)
        assert await a.ref.ask(Ping(5), 5.0) == 5
        assert kit.system.now_s() == 1.0
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")


@pytest.mark.parametrize("injected", [False, True])
def test_a_failure_is_remembered_without_the_incarnation_that_failed(injected: bool) -> None:
    """Found by the soak: a crashed cache was held, with all that it had in RAM, until its next crash."""
    lived: list[weakref.ref[Worker]] = []

    async def fail(self: Worker) -> None:
        try:
            vars(self)["nothing"]
        except KeyError as cause:
            raise ValueError("boom") from cause

    async def note(self: Worker) -> None:
        lived.append(weakref.ref(self))

    @virtual
    async def check() -> None:
        a = worker("a", on_started=note)
        async with KitSystem(root(a)) as kit:
            if injected:
                await crash(kit, "a")
            else:
                a.ref.tell(Run(fail))
            await kit.advance(2.0)
            failure = kit.failure("a", Exception)
            (figures,) = [each for each in kit.system.figures() if each.path == "a"]
            assert figures.last_failure is failure
            gc.collect()
            assert [ref() is None for ref in lived] == [True, False]
            if not injected:
                kit.dead_letter("a", "crashed")

    check()
