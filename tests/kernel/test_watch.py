from __future__ import annotations

import asyncio

import pytest
from samovar.runtime.kernel import (
    ActorGone,
    ActorRef,
    ChildSpec,
    Failure,
    RestartLimit,
    RestartStorm,
    SupervisorSpec,
    Terminated,
)

from tests.kernel.stage import STEADY, Get, Log, Note, Run, Worker, boom, root, worker
from tests.kit import KitSystem, Probe, virtual


def watching(ref: ActorRef) -> Run:
    async def body(actor: Worker) -> None:
        actor.ctx.watch(ref)

    return Run(body)


def seen(log: Log) -> list[Terminated]:
    return [entry for entry in log.details("note") if isinstance(entry, Terminated)]


@virtual
async def test_a_crash_of_the_target_is_told_once_with_its_failure() -> None:
    target, watcher = worker("target"), Probe("watcher")
    async with KitSystem(root(target, watcher.spec)) as kit:
        watcher.ctx.watch(target.ref)
        target.ref.tell(Run(boom))
        await kit.settle()
        kit.failure("target", ValueError)
        kit.dead_letter("target", "crashed")
        notice = watcher.take(Terminated)
        assert (notice.ref, notice.incarnation, notice.reason) == (target.ref, 1, "crashed")
        assert isinstance(notice.failure, Failure)
        assert isinstance(notice.failure.error, ValueError)
        assert notice.restarting
        await kit.advance(5.0)
        target.ref.tell(Run(boom))  # the next incarnation is not watched
        await kit.settle()
        kit.failure("target", ValueError)
        kit.dead_letter("target", "crashed")
        watcher.take_nothing()


@virtual
async def test_watching_twice_is_one_watch() -> None:
    target, watcher = worker("target"), Probe("watcher")
    async with KitSystem(root(target, watcher.spec)) as kit:
        watcher.ctx.watch(target.ref)
        watcher.ctx.watch(target.ref)
        kit.system.crash("target")
        await kit.settle()
        kit.failure("target")
        watcher.take(Terminated)
        watcher.take_nothing()


@virtual
async def test_every_watcher_is_told() -> None:
    target = worker("target")
    first, second = Probe("first"), Probe("second")
    async with KitSystem(root(target, first.spec, second.spec)) as kit:
        first.ctx.watch(target.ref)
        second.ctx.watch(target.ref)
        kit.system.crash("target")
        await kit.settle()
        kit.failure("target")
        assert first.take(Terminated) == second.take(Terminated)


@virtual
async def test_a_target_that_is_gone_is_told_at_once_each_time() -> None:
    target, watcher = worker("target", restart="temporary"), Probe("watcher")
    async with KitSystem(root(target, watcher.spec)) as kit:
        kit.system.crash("target")
        await kit.settle()
        kit.failure("target")
        for _ in range(2):
            watcher.ctx.watch(target.ref)
            await kit.settle()
            notice = watcher.take(Terminated)
            assert (notice.reason, notice.restarting) == ("gone", False)
            watcher.take_nothing()


@virtual
async def test_a_temporary_target_is_told_as_not_coming_back() -> None:
    target, watcher = worker("target", restart="temporary"), Probe("watcher")
    async with KitSystem(root(target, watcher.spec)) as kit:
        watcher.ctx.watch(target.ref)
        kit.system.crash("target")
        await kit.settle()
        kit.failure("target")
        assert watcher.take(Terminated).restarting is False
        watcher.take_nothing()


@virtual
async def test_a_watch_between_incarnations_waits_for_the_end_of_the_next() -> None:
    target, watcher = worker("target"), Probe("watcher")
    async with KitSystem(root(target, watcher.spec)) as kit:
        kit.system.crash("target")
        await kit.settle()
        kit.failure("target")
        assert kit.figures(target.ref).state == "restarting"
        watcher.ctx.watch(target.ref)
        await kit.advance(2.0)
        watcher.take_nothing()
        kit.system.crash("target")
        await kit.settle()
        kit.failure("target")
        assert watcher.take(Terminated).incarnation == 2


@virtual
async def test_a_watch_between_incarnations_hears_when_there_is_no_next() -> None:
    target, watcher = worker("target"), Probe("watcher")
    inner = SupervisorSpec(
        "inner", [target], limit=RestartLimit(1, 30.0), backoff=STEADY, restart="temporary"
    )
    async with KitSystem(root(watcher.spec, inner)) as kit:
        kit.system.crash("inner/target")
        await kit.settle()
        watcher.ctx.watch(target.ref)
        kit.system.crash("inner")
        await kit.settle()
        kit.failure("inner/target")
        kit.failure("inner")
        notice = watcher.take(Terminated)
        assert (notice.reason, notice.restarting) == ("gone", False)
        watcher.take_nothing()


@virtual
async def test_an_orderly_end_is_told_as_stopped() -> None:
    target, watcher = worker("target", restart="transient"), Probe("watcher")

    async def stop(actor: Worker) -> None:
        actor.ctx.stop()

    async with KitSystem(root(target, watcher.spec)) as kit:
        watcher.ctx.watch(target.ref)
        target.ref.tell(Run(stop))
        await kit.settle()
        notice = watcher.take(Terminated)
        assert (notice.reason, notice.failure, notice.restarting) == ("stopped", None, False)


@virtual
async def test_a_transient_target_taken_along_by_its_group_is_told_as_coming_back() -> None:
    other, target, watcher = worker("other"), worker("target", restart="transient"), Probe("watcher")
    group = SupervisorSpec("group", [other, target], strategy="one_for_all", backoff=STEADY)
    async with KitSystem(root(group, watcher.spec)) as kit:
        watcher.ctx.watch(target.ref)
        kit.system.crash("group/other")
        await kit.settle()
        kit.failure("group/other")
        notice = watcher.take(Terminated)
        assert (notice.reason, notice.restarting) == ("stopped", True)


@virtual
async def test_unwatch_withdraws_the_watch() -> None:
    target, watcher = worker("target"), Probe("watcher")
    async with KitSystem(root(target, watcher.spec)) as kit:
        watcher.ctx.watch(target.ref)
        watcher.ctx.unwatch(target.ref)
        kit.system.crash("target")
        await kit.settle()
        kit.failure("target")
        watcher.take_nothing()


@virtual
async def test_a_restarted_watcher_no_longer_watches() -> None:
    log = Log()
    target, watcher = worker("target"), worker("watcher", log)
    async with KitSystem(root(target, watcher)) as kit:
        watcher.ref.tell(watching(target.ref))
        await kit.settle()
        kit.system.crash("watcher")
        await kit.advance(2.0)
        kit.system.crash("target")
        await kit.settle()
        kit.failure("watcher")
        kit.failure("target")
        assert seen(log) == []


@virtual
async def test_a_notice_to_a_watcher_that_crashed_meanwhile_never_reaches_its_next_incarnation() -> None:
    log = Log()
    target, watcher = worker("target"), worker("watcher", log)
    async with KitSystem(root(target, watcher)) as kit:
        watcher.ref.tell(watching(target.ref))
        await kit.settle()
        kit.hold(watcher.ref)
        watcher.ref.tell(Run(boom))  # in hand
        await kit.settle()
        kit.system.crash("target")
        await kit.settle()  # the notice waits behind it
        kit.release(watcher.ref)
        await kit.advance(5.0)
        kit.failure("target")
        kit.failure("watcher", ValueError)
        kit.dead_letter("watcher", "crashed")
        assert seen(log) == []


@virtual
async def test_a_watcher_that_is_gone_is_told_nothing() -> None:
    target, watcher = worker("target"), Probe("watcher")
    spec = ChildSpec("watcher", watcher.spec.factory, capacity=10, restart="temporary")
    async with KitSystem(root(target, spec)) as kit:
        watcher.ctx.watch(target.ref)
        kit.system.crash("watcher")
        await kit.settle()
        kit.failure("watcher")
        with pytest.raises(ActorGone):
            watcher.ctx.watch(target.ref)
        kit.system.crash("target")
        await kit.settle()
        kit.failure("target")
        assert kit.figures(spec.ref).depth == 0


@virtual
async def test_an_actor_may_watch_itself_without_harm() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        a.ref.tell(watching(a.ref))
        await kit.settle()
        kit.system.crash("a")
        await kit.advance(3.0)
        kit.failure("a")
        assert seen(log) == []


@virtual
async def test_watchers_learn_of_a_storm_that_ends_the_tree() -> None:
    log = Log()
    target, watcher = worker("target"), worker("watcher", log, shutdown_s=1.0)
    async with KitSystem(root(target, watcher, limit=RestartLimit(0, 1.0))) as kit:
        watcher.ref.tell(watching(target.ref))
        await kit.settle()
        kit.system.crash("target")
        assert isinstance((await kit.system.wait()).error, RestartStorm)
        kit.failure("target")
        assert len(seen(log)) == 1


@virtual
async def test_watching_a_foreign_ref_is_an_error() -> None:
    stranger = worker("a")

    async def watch(actor: Worker) -> str:
        with pytest.raises(RuntimeError, match="not an actor of this tree"):
            actor.ctx.watch(stranger.ref)
        return "refused"

    a = worker("a")
    async with KitSystem(root(a)):
        assert await a.ref.ask(Get(watch), 1.0) == "refused"


@virtual
async def test_watching_and_unwatching_again_and_again_keeps_nothing() -> None:
    target, watcher = worker("target"), Probe("watcher")
    async with KitSystem(root(target, watcher.spec)) as kit:
        for _ in range(100):
            watcher.ctx.watch(target.ref)
            watcher.ctx.unwatch(target.ref)
        assert len(watcher.ctx._watched) == 0
        target.ref.tell(Note(1))
        await kit.settle()
        await asyncio.sleep(0)
