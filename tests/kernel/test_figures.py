from __future__ import annotations

import asyncio

import pytest
from samovar.runtime.kernel import AskTimeout, ChildSpec, SupervisorSpec

from tests.kernel.stage import STEADY, Get, Log, Note, Ping, Run, Worker, boom, root, worker
from tests.kit import KitSystem, virtual


@virtual
async def test_depth_age_and_open_asks_of_a_held_actor() -> None:
    a = worker("a", capacity=10)
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.advance(1.0)
        a.ref.tell(Note(1))
        asker = asyncio.ensure_future(a.ref.ask(Ping(2), 50.0))
        await kit.advance(2.0)
        figures = kit.figures(a.ref)
        assert (figures.depth, figures.capacity, figures.open_asks) == (2, 10, 1)
        assert figures.oldest_age_s == 2.0
        kit.release(a.ref)
        assert await asker == 2
        figures = kit.figures(a.ref)
        assert (figures.depth, figures.open_asks, figures.oldest_age_s) == (0, 0, 0.0)


@virtual
async def test_counters_of_what_was_handled_skipped_and_lost() -> None:
    a = worker("a")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        with pytest.raises(AskTimeout):
            await a.ref.ask(Ping(1), 1.0)
        kit.release(a.ref)
        a.ref.tell(Run(boom))
        await kit.advance(2.0)
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")
        a.ref.tell(Note(2))
        await kit.settle()
        figures = kit.figures(a.ref)
        assert (figures.handled, figures.skipped, figures.restarts, figures.incarnation) == (2, 1, 1, 2)
        assert figures.dead_letters == {"crashed": 1}
        assert figures.last_failure is not None
        assert 0 < figures.handle_mean_s <= figures.handle_max_s


@virtual
async def test_states_of_an_actor_over_its_life() -> None:
    states: list[str] = []
    a = ChildSpec[object]("a", lambda: Worker(Log(), {"started": watch, "stopped": watch}), capacity=9)

    async def watch(actor: Worker) -> None:
        states.append(kit.figures(a.ref).state)

    kit = KitSystem(root(a))
    states.append(kit.figures(a.ref).state)
    async with kit:
        states.append(kit.figures(a.ref).state)
        kit.system.crash("a")
        await kit.settle()
        kit.failure("a")
        states.append(kit.figures(a.ref).state)
        await kit.advance(2.0)
        await kit.system.stop()
        states.append(kit.figures(a.ref).state)
    assert states == ["stopped", "starting", "running", "restarting", "starting", "stopping", "gone"]


@virtual
async def test_supervisors_have_figures_too() -> None:
    inner = SupervisorSpec("inner", [worker("a"), worker("b")], backoff=STEADY)
    async with KitSystem(root(inner)) as kit:
        kit.system.crash("inner")
        await kit.advance(2.0)
        kit.failure("inner")
        paths = [figures.path for figures in kit.system.figures()]
        assert paths == ["inner", "inner/a", "inner/b"]
        figures = kit.system.figures()[0]
        assert (figures.kind, figures.state, figures.incarnation, figures.restarts) == (
            "supervisor",
            "running",
            2,
            1,
        )
        assert figures.last_failure is not None


@virtual
async def test_dead_letters_are_kept_up_to_a_limit() -> None:
    a = worker("a", capacity=1)
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        for value in range(1000):
            a.ref.tell(Note(value))
        assert len(kit.system.dead_letters) == 256
        assert kit.figures(a.ref).dead_letters == {"overflow": 999}
        kit.record.letters.clear()


@virtual
async def test_a_reply_computed_from_state_is_made_by_one_incarnation() -> None:
    a = worker("a")

    async def incarnation(actor: Worker) -> int:
        return actor.ctx.incarnation

    async with KitSystem(root(a)) as kit:
        assert await a.ref.ask(Get(incarnation), 1.0) == 1
        kit.system.crash("a")
        await kit.advance(2.0)
        kit.failure("a")
        assert await a.ref.ask(Get(incarnation), 1.0) == 2
