"""The kit's own checks: each of them really fails a test."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from samovar.runtime.kernel import PinnedThread, ThreadPort

from tests.kernel.stage import Get, Log, Note, Ping, Run, Worker, boom, root, worker
from tests.kit import KitSystem, LeftBehind, Probe, VirtualLoop, virtual
from tests.kit.loop import Deadlock


def left_behind(what: str, body: Any, *children: Any) -> None:
    @virtual
    async def check() -> None:
        with pytest.raises(LeftBehind, match=what):
            async with KitSystem(root(*children)) as kit:
                await body(kit)

    check()


def test_an_open_ask_fails_the_test() -> None:
    probe = Probe()
    askers: list[Any] = []

    async def body(kit: KitSystem) -> None:
        askers.append(asyncio.ensure_future(probe.ref.ask(Ping(1), 50.0)))
        askers[0].add_done_callback(lambda done: done.exception())

    left_behind("open asks: {'probe': 1}", body, probe.spec)


def test_an_unread_failure_fails_the_test() -> None:
    async def body(kit: KitSystem) -> None:
        kit.system.crash("a")

    left_behind("unread failures.*crashed on purpose", body, worker("a"))


def test_an_undeclared_dead_letter_fails_the_test() -> None:
    a = worker("a", capacity=1)

    async def body(kit: KitSystem) -> None:
        a.ref.tell(Note(1))
        a.ref.tell(Note(2))

    left_behind("undeclared dead letters.*Note", body, a)


def test_something_undeclared_unstoppable_fails_the_test() -> None:
    async def started(actor: Worker) -> None:
        actor.ctx.on_end(lambda: asyncio.sleep(100.0))

    async def body(kit: KitSystem) -> None:
        pass

    left_behind("undeclared unstoppable: .*task a/close", body, worker("a", on_started=started))


def test_a_live_thread_fails_the_test() -> None:
    go = threading.Event()
    threads: list[threading.Thread] = []

    async def body(kit: KitSystem) -> None:
        threads.append(threading.Thread(target=go.wait, args=(10.0,), name="forgotten"))
        threads[0].start()

    try:
        left_behind(r"live threads: \['forgotten'\]", body)
    finally:
        go.set()
        threads[0].join()


def test_a_task_left_running_fails_the_test() -> None:
    tasks: list[Any] = []

    @virtual
    async def check() -> None:
        tasks.append(asyncio.ensure_future(asyncio.sleep(10.0)))

    with pytest.raises(AssertionError, match="tasks left running"):
        check()


def test_an_exception_nobody_read_fails_the_test() -> None:
    @virtual
    async def check() -> None:
        task = asyncio.ensure_future(boom(None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        del task

    with pytest.raises(AssertionError, match="errors nobody handled"):
        check()


def test_a_callback_that_fails_fails_the_test() -> None:
    @virtual
    async def check() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)

    with pytest.raises(AssertionError, match="errors nobody handled"):
        check()


def test_the_tests_own_failure_is_what_is_seen() -> None:
    @virtual
    async def check() -> None:
        a = worker("a")
        async with KitSystem(root(a)) as kit:
            kit.hold(a.ref)
            a.ref.tell(Run(boom))
            await kit.settle()
            raise KeyError("the test's own")

    with pytest.raises(KeyError, match="the test's own"):
        check()


def test_reading_what_did_not_happen_fails_the_test() -> None:
    @virtual
    async def check() -> None:
        probe = Probe()
        async with KitSystem(root(probe.spec)) as kit:
            with pytest.raises(AssertionError, match="probe has not failed"):
                kit.failure("probe")
            with pytest.raises(AssertionError, match="no overflow dead letter"):
                kit.dead_letter("probe", "overflow")
            with pytest.raises(AssertionError, match="nothing of probe"):
                kit.unstoppable("probe")
            with pytest.raises(AssertionError, match="saw nothing, expected Note"):
                probe.take(Note)
            probe.ref.tell(Note(1))
            await kit.settle()
            with pytest.raises(AssertionError, match="saw"):
                probe.take_nothing()
            with pytest.raises(AssertionError, match="expected Ping"):
                probe.take(Ping)

    check()


# -- steering -------------------------------------------------------------------------------------------


@virtual
async def test_step_lets_exactly_one_message_through() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        for value in range(3):
            a.ref.tell(Note(value))
        await kit.settle()
        assert log.details("note") == []
        await kit.step(a.ref)
        assert log.details("note") == [0]
        await kit.step(a.ref)
        assert log.details("note") == [0, 1]
    assert log.details("note") == [0, 1, 2], "at the end the rest runs"


@virtual
async def test_crash_on_counts_messages_of_its_type() -> None:
    log = Log()
    a = worker("a", log)
    async with KitSystem(root(a)) as kit:
        kit.crash_on(a.ref, Note, nth=2, error=OSError("second"))
        a.ref.tell(Note(1))
        assert await a.ref.ask(Ping(1), 1.0) == 1
        a.ref.tell(Note(2))
        await kit.advance(2.0)
        kit.failure("a", OSError)
        assert kit.dead_letter("a", "crashed").message == Note(2)
        a.ref.tell(Note(3))
        await kit.settle()
        assert log.details("note") == [1, 3]


@virtual
async def test_a_probe_answers_what_it_was_told_to() -> None:
    probe = Probe()
    probe.answers[Ping] = 12
    async with KitSystem(root(probe.spec)):
        assert await probe.ref.ask(Ping(1), 1.0) == 12
        assert probe.take(Ping) == Ping(1)


@virtual
async def test_handled_tells_what_ran_in_which_order_over_the_tree() -> None:
    a, b = worker("a"), worker("b")

    async def ask_a(actor: Worker) -> int:
        return await a.ref.ask(Ping(1), 1.0)

    async with KitSystem(root(a, b)) as kit:
        await b.ref.ask(Get(ask_a), 1.0)
        assert kit.handled == [("b", "Get"), ("a", "Ping")]


# -- the virtual loop -------------------------------------------------------------------------------------


@virtual
async def test_time_jumps_from_timer_to_timer_in_order() -> None:
    loop = asyncio.get_running_loop()
    seen: list[tuple[str, float]] = []
    for name, delay_s in (("late", 1e6), ("early", 0.001), ("middle", 3600.0)):
        loop.call_later(delay_s, lambda name=name: seen.append((name, loop.time())))
    await asyncio.sleep(2e6)
    assert seen == [("early", 0.001), ("middle", 3600.0), ("late", 1e6)]


@virtual
async def test_settle_runs_everything_that_can_happen_without_the_clock() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    seen: list[int] = []

    async def hop(count: int) -> None:
        for step in range(count):
            await asyncio.sleep(0)
            seen.append(step)
        await asyncio.sleep(1.0)
        seen.append(-1)

    task = asyncio.ensure_future(hop(50))
    await loop.settle()
    assert seen == list(range(50))
    assert loop.time() == 0.0
    await task


def test_a_wait_for_what_cannot_come_is_a_deadlock() -> None:
    @virtual
    async def check() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        check()


@virtual
async def test_reports_of_threads_come_before_the_clock_moves() -> None:
    loop = asyncio.get_running_loop()
    got: list[tuple[float, list[int]]] = []

    def body(port: ThreadPort[int, int]) -> None:
        while not port.stopping:
            port.emit(port.wait())

    thread = PinnedThread[int, int](
        "lane", body, lambda events: got.append((loop.time(), events)), lambda _: None
    )
    thread.start()
    thread.send(1)
    await asyncio.sleep(100.0)
    assert got == [(0.0, [1])]
    thread.stop()
    assert await thread.join(5.0)


@virtual
async def test_a_loop_that_never_rests_still_gets_on_in_time() -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.call_later(5.0, done.set)

    def spin() -> None:
        if not done.is_set():
            loop.call_soon(spin)

    spin()
    await done.wait()
    assert loop.time() == 5.0
