from __future__ import annotations

import asyncio

import pytest
from samovar.runtime.kernel import ActorCrashed, ActorGone, Overloaded

from tests.kernel.stage import Log, Note, Ping, Run, Worker, boom, root, worker
from tests.kit import KitSystem, virtual


async def ask_all(ref, values, timeout_s=10.0):
    tasks = []
    for value in values:
        tasks.append(asyncio.ensure_future(ref.ask(Ping(value), timeout_s)))
        await asyncio.sleep(0)
    return tasks


@virtual
async def test_reject_buries_a_tell_and_says_so() -> None:
    a = worker("a", capacity=1)
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(1))
        await kit.settle()
        assert a.ref.tell(Note(2))
        assert a.ref.tell(Note(3)) is False
        assert kit.dead_letter("a", "overflow").message == Note(3)
        assert kit.figures(a.ref).dead_letters == {"overflow": 1}


@virtual
async def test_reject_lets_no_delivery_wait() -> None:
    a = worker("a", capacity=1)
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(1))
        await kit.settle()
        await a.ref.deliver(Note(2), 5.0)
        with pytest.raises(Overloaded):
            await a.ref.deliver(Note(3), 5.0)
        assert kit.system.now_s() == 0.0


@virtual
async def test_drop_oldest_buries_the_oldest_tell() -> None:
    log = Log()
    a = worker("a", log, capacity=2, overflow="drop_oldest")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        assert all(a.ref.tell(Note(value)) for value in (1, 2, 3, 4))
        assert kit.dead_letter("a", "overflow").message == Note(1)
        assert kit.dead_letter("a", "overflow").message == Note(2)
        kit.release(a.ref)
        await kit.settle()
        assert log.details("note") == [0, 3, 4]


@virtual
async def test_drop_oldest_fails_the_oldest_ask_with_overloaded() -> None:
    a = worker("a", capacity=1, overflow="drop_oldest")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        old, new = await ask_all(a.ref, (1, 2))
        await kit.settle()
        with pytest.raises(Overloaded, match="dropped for a newer"):
            await old
        kit.dead_letter("a", "overflow")
        kit.release(a.ref)
        assert await new == 2


@virtual
async def test_wait_serves_askers_in_order_and_lets_no_newcomer_past() -> None:
    log = Log()
    a = worker("a", log, capacity=1, overflow="wait")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        waiting = await ask_all(a.ref, (1, 2, 3))  # 1 is queued, 2 and 3 wait for room
        for value in (4, 5):
            await kit.step(a.ref)
            waiting += await ask_all(a.ref, (value,))
        kit.release(a.ref)
        assert await asyncio.gather(*waiting) == [1, 2, 3, 4, 5]
        assert [name for path, name in kit.handled if path == "a"].count("Ping") == 5


@virtual
async def test_wait_reserves_the_place_that_falls_free() -> None:
    a = worker("a", capacity=1, overflow="wait")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        _queued, waiting = await ask_all(a.ref, (1, 2))
        mailbox = kit.system.cell_of(a.ref).mailbox
        mailbox.user.popleft()[1].reply(1)  # as the reader does, and then at once:
        mailbox.admit_sender()
        assert a.ref.tell(Note(9)) is False, "the place belongs to the sender that waits"
        kit.dead_letter("a", "overflow")
        kit.release(a.ref)
        assert await waiting == 2
        assert a.ref.tell(Note(10))


@virtual
async def test_a_deadline_while_waiting_for_room_is_overloaded() -> None:
    a = worker("a", capacity=1, overflow="wait")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        a.ref.tell(Note(1))
        with pytest.raises(Overloaded):
            await a.ref.ask(Ping(1), 2.0)
        assert 2.0 <= kit.system.now_s() < 2.02
        with pytest.raises(Overloaded):
            await a.ref.deliver(Note(2), 1.0)
        assert kit.figures(a.ref).open_asks == 0
        assert kit.figures(a.ref).depth == 1
        kit.release(a.ref)
        assert await a.ref.ask(Ping(3), 1.0) == 3


@virtual
async def test_a_sender_cancelled_while_waiting_gives_its_place_to_the_next() -> None:
    a = worker("a", capacity=1, overflow="wait")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        first, second, third = await ask_all(a.ref, (1, 2, 3))
        second.cancel()
        await kit.settle()
        kit.release(a.ref)
        assert await first == 1
        assert await third == 3
        assert second.cancelled()
        assert kit.figures(a.ref).depth == 0


@virtual
async def test_a_sender_cancelled_after_it_was_chosen_gives_its_place_to_the_next() -> None:
    a = worker("a", capacity=1, overflow="wait")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        queued, chosen, following = await ask_all(a.ref, (1, 2, 3))
        mailbox = kit.system.cell_of(a.ref).mailbox
        mailbox.user.popleft()[1].reply(1)
        mailbox.admit_sender()
        chosen.cancel()
        await kit.settle()
        kit.release(a.ref)
        assert await asyncio.gather(queued, following) == [1, 3]
        assert mailbox.room == 1


@virtual
async def test_senders_that_wait_for_room_find_a_stopped_actor_gone() -> None:
    a = worker("a", capacity=1, overflow="wait", shutdown_s=5.0)
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        await kit.settle()
        queued, waiting = await ask_all(a.ref, (1, 2))
        delivery = asyncio.ensure_future(a.ref.deliver(Note(3), 10.0))
        await kit.settle()
        stop = asyncio.ensure_future(kit.system.stop())
        await kit.settle()
        for late in (waiting, delivery):
            with pytest.raises(ActorGone):
                await late
        kit.release(a.ref)
        assert await queued == 1
        assert await stop == "stopped"


@virtual
async def test_deliver_waits_for_room() -> None:
    log = Log()
    a = worker("a", log, capacity=1, overflow="wait")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Note(0))
        a_delivery = asyncio.ensure_future(a.ref.deliver(Note(1), 5.0))
        await kit.settle()
        second = asyncio.ensure_future(a.ref.deliver(Note(2), 5.0))
        await kit.settle()
        assert a_delivery.done()
        assert not second.done()
        kit.release(a.ref)
        await second
        await kit.settle()
        assert log.details("note") == [0, 1, 2]


# -- what a crash leaves in the queue ---------------------------------------------------------------------


@virtual
async def test_on_restart_keep_hands_the_queue_to_the_next_incarnation() -> None:
    log = Log()
    a = worker("a", log, on_restart="keep")
    async with KitSystem(root(a)) as kit:
        a.ref.tell(Run(boom))
        a.ref.tell(Note(1))
        asker = asyncio.ensure_future(a.ref.ask(Ping(2), 5.0))
        await kit.settle()
        kit.failure("a", ValueError)
        assert kit.dead_letter("a", "crashed").message == Run(boom)
        assert kit.figures(a.ref).state == "restarting"
        assert a.ref.tell(Note(3)), "an actor that comes back accepts messages meanwhile"
        assert await asker == 2
        await kit.settle()
        assert log.details("note") == [1, 3]
        assert log.details("start") == [1, 2]


@virtual
async def test_on_restart_drop_fails_asks_and_buries_tells() -> None:
    log = Log()
    a = worker("a", log, on_restart="drop")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Run(boom))
        a.ref.tell(Note(1))
        asker = asyncio.ensure_future(a.ref.ask(Ping(2), 5.0))
        await kit.settle()
        kit.release(a.ref)
        with pytest.raises(ActorCrashed, match="boom"):
            await asker
        await kit.settle()
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")
        assert kit.dead_letter("a", "dropped").message == Note(1)
        assert kit.dead_letter("a", "dropped").message == Ping(2)
        a.ref.tell(Note(3))
        await kit.advance(2.0)
        assert log.details("note") == [3]
        assert kit.figures(a.ref).dead_letters == {"crashed": 1, "dropped": 2}


@virtual
async def test_the_queue_of_an_actor_that_is_gone_is_buried() -> None:
    a = worker("a", restart="temporary")
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        a.ref.tell(Run(boom))
        a.ref.tell(Note(1))
        asker = asyncio.ensure_future(a.ref.ask(Ping(2), 5.0))
        await kit.settle()
        kit.release(a.ref)
        with pytest.raises(ActorGone):
            await asker
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")
        assert kit.dead_letter("a", "gone").message == Note(1)
        assert kit.dead_letter("a", "gone").message == Ping(2)
        assert a.ref.tell(Note(3)) is False
        assert kit.dead_letter("a", "gone").message == Note(3)


# -- lanes ------------------------------------------------------------------------------------------------


@virtual
async def test_what_the_kernel_posts_is_read_before_what_users_sent() -> None:
    log = Log()
    a = worker("a", log)

    async def set_timer(actor: Worker) -> None:
        actor.ctx.after(1.0, Note(99))

    async with KitSystem(root(a)) as kit:
        a.ref.tell(Run(set_timer))
        await kit.settle()
        kit.hold(a.ref)
        for value in range(3):
            a.ref.tell(Note(value))
        await kit.advance(2.0)  # 0 is in hand, 1 and 2 wait, and now the timer's message
        kit.release(a.ref)
        await kit.settle()
        assert log.details("note") == [0, 99, 1, 2]


@virtual
async def test_a_busy_actor_lets_others_run() -> None:
    a, b = worker("a", capacity=100_000), worker("b")
    async with KitSystem(root(a, b)) as kit:
        for value in range(50_000):
            a.ref.tell(Note(value))
        assert await b.ref.ask(Ping(1), 1.0) == 1
        assert kit.figures(a.ref).depth > 0, "b was served while a still had work"
