from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from samovar.runtime.kernel import (
    ActorGone,
    BlockingPool,
    InjectedCrash,
    KernelError,
    Overloaded,
    PinnedThread,
    ThreadPort,
)

from tests.kernel.stage import Log, Note, Worker, root, worker
from tests.kit import KitSystem, VirtualLoop, virtual


def echo(port: ThreadPort[int, int]) -> None:
    """Hands every command back, in one batch for each wake-up, until it is told to stop."""
    while not port.stopping:
        port.emit(port.wait())


class Lane:
    """An actor with one echoing thread."""

    def __init__(self, body: Any = echo, **spec: Any) -> None:
        self.log = Log()
        self.threads: list[PinnedThread[Any, Any]] = []

        async def started(actor: Worker) -> None:
            self.threads.append(actor.ctx.run_thread("lane", body, Note))

        self.spec = worker("a", self.log, on_started=started, **spec)

    def events(self) -> list[Any]:
        return [event for batch in self.log.details("note") for event in batch]


async def until(condition: Any) -> None:
    """Wait for what a real thread does; the test's own time limit ends a wait in vain."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    while not condition():
        await loop.settle()


# -- run_thread -------------------------------------------------------------------------------------------


@virtual
async def test_an_exception_in_the_thread_crashes_the_actor() -> None:
    def body(port: ThreadPort[int, int]) -> None:
        commands = port.wait()
        port.emit(commands)
        if commands:
            raise OSError("device lost")

    lane = Lane(body)
    async with KitSystem(root(lane.spec)) as kit:
        lane.threads[0].send(1)
        await until(lambda: kit.record.failures)
        kit.failure("a", OSError)
        assert lane.events() == [1], "what was emitted before is delivered before"
        await kit.advance(2.0)
        assert len(lane.threads) == 2
        assert kit.figures(lane.spec.ref).restarts == 1


@virtual
async def test_a_thread_that_exits_the_process_crashes_the_actor_only() -> None:
    def body(port: ThreadPort[int, int]) -> None:
        if port.wait() == [1]:
            raise SystemExit(3)

    lane = Lane(body)
    async with KitSystem(root(lane.spec)) as kit:
        lane.threads[0].send(1)
        await until(lambda: kit.record.failures)
        assert isinstance(kit.failure("a", KernelError).error.__cause__, SystemExit)


@virtual
async def test_events_come_in_order_and_in_batches() -> None:
    lane = Lane()
    async with KitSystem(root(lane.spec)):
        for value in range(2000):
            lane.threads[0].send(value)
        await until(lambda: len(lane.events()) == 2000)
        assert lane.events() == list(range(2000))
        assert len(lane.log.details("note")) < 2000, "no call per event"


@virtual
async def test_events_of_an_ended_incarnation_never_reach_the_next_one() -> None:
    go, emitted = threading.Event(), threading.Event()

    def body(port: ThreadPort[int, int]) -> None:
        if port.wait() == [1]:
            assert go.wait(10.0)
            port.emit([99])
            emitted.set()

    lane = Lane(body)
    async with KitSystem(root(lane.spec)) as kit:
        lane.threads[0].send(1)
        kit.system.crash("a")
        await kit.settle()
        go.set()
        await until(emitted.is_set)
        await kit.advance(3.0)
        kit.failure("a")
        assert len(lane.threads) == 2
        assert lane.events() == []


@virtual
async def test_an_error_of_a_thread_of_an_ended_incarnation_is_reported() -> None:
    def body(port: ThreadPort[int, int]) -> None:
        port.wait()
        if port.stopping:
            raise OSError("while stopping")

    lane = Lane(body)
    async with KitSystem(root(lane.spec)) as kit:
        await kit.system.stop()
        kit.failure("a", OSError)


@virtual
async def test_a_mapping_of_events_that_fails_crashes_the_actor() -> None:
    def broken(_: list[int]) -> Note:
        raise ValueError("bad mapping")

    threads: list[Any] = []

    async def started(actor: Worker) -> None:
        threads.append(actor.ctx.run_thread("lane", echo, broken))

    async with KitSystem(root(worker("a", on_started=started))) as kit:
        threads[0].send(1)
        await until(lambda: kit.record.failures)
        kit.failure("a", ValueError)


@virtual
async def test_a_stop_lets_the_thread_see_earlier_commands() -> None:
    seen: list[int] = []

    def body(port: ThreadPort[int, int]) -> None:
        while not port.stopping:
            seen.extend(port.wait())
        seen.extend(port.take())

    lane = Lane(body)
    async with KitSystem(root(lane.spec)) as kit:
        for value in range(100):
            lane.threads[0].send(value)
        assert await kit.system.stop() == "stopped"
        assert seen == list(range(100))
        assert await lane.threads[0].join(0.0)


@virtual
async def test_incarnations_that_follow_one_another_have_the_same_thread() -> None:
    idents: list[int] = []

    def body(port: ThreadPort[int, int]) -> None:
        idents.append(threading.get_native_id())
        while not port.stopping:
            if port.wait() == [1]:
                raise OSError("device lost")

    lane = Lane(body)
    async with KitSystem(root(lane.spec)) as kit:
        for crashes in range(1, 4):
            if crashes == 2:
                kit.system.crash("a")
            else:
                lane.threads[-1].send(1)
            await until(lambda: kit.record.failures)
            kit.failure("a", InjectedCrash if crashes == 2 else OSError)
            await kit.advance(5.0)
            await until(lambda expected=crashes + 1: len(idents) == expected)
    assert len(set(idents)) == 1


@virtual
async def test_a_thread_that_hangs_keeps_its_place_and_the_successor_has_a_new_one() -> None:
    go, hanging = threading.Event(), threading.Event()
    idents: list[int] = []

    def body(port: ThreadPort[int, int]) -> None:
        idents.append(threading.get_native_id())
        if port.wait() == [1]:
            hanging.set()
            assert go.wait(10.0)

    lane = Lane(body, shutdown_s=0.5)
    async with KitSystem(root(lane.spec)) as kit:
        lane.threads[0].send(1)
        await until(hanging.is_set)
        kit.system.crash("a")
        await kit.advance(5.0)
        await until(lambda: len(idents) == 2)
        kit.failure("a")
        kit.unstoppable("a")
        lane.threads[1].send(2)
        assert await lane.threads[1].join(5.0), "it does not wait for the one that hangs"
        go.set()
        assert await lane.threads[0].join(5.0)
    assert idents[0] != idents[1]


# -- PinnedThread -------------------------------------------------------------------------------------------


@virtual
async def test_a_lagging_loop_slows_the_thread_down() -> None:
    progress: list[int] = []
    got: list[int] = []

    def body(port: ThreadPort[int, int]) -> None:
        for value in range(10):
            port.emit([value])
            progress.append(value)

    thread = PinnedThread[int, int]("lane", body, got.extend, lambda _: None, event_limit=3)
    thread.start()
    threading.Event().wait(0.2)  # the loop lags: nothing is delivered meanwhile
    assert progress == [0, 1, 2], "the fourth event waits for the loop"
    assert await thread.join(5.0)
    assert got == list(range(10))


@virtual
async def test_a_stop_frees_a_thread_that_waits_for_the_loop() -> None:
    got: list[int] = []
    through = threading.Event()

    def body(port: ThreadPort[int, int]) -> None:
        for value in range(10):
            port.emit([value])
        through.set()

    thread = PinnedThread[int, int]("lane", body, got.extend, lambda _: None, event_limit=1)
    thread.start()
    thread.stop()
    thread.stop()
    assert through.wait(5.0)
    assert await thread.join(5.0)
    assert got == list(range(10))


@virtual
async def test_join_says_when_the_thread_did_not_end() -> None:
    thread = PinnedThread[int, int]("lane", echo, lambda _: None, lambda _: None)
    thread.start()
    assert not await thread.join(0.1)
    thread.stop()
    assert await thread.join(5.0)
    assert await thread.join(0.0)


# -- BlockingPool -------------------------------------------------------------------------------------------


def fail() -> None:
    raise OSError("disk on fire")


@virtual
async def test_a_job_that_fails_raises_in_its_caller() -> None:
    pool = BlockingPool("pool", threads=1, limit=2)
    with pytest.raises(OSError, match="disk on fire"):
        await pool.run(fail)
    assert await pool.run(int, "7") == 7
    assert pool.jobs == 0
    pool.close()


@pytest.mark.parametrize("error", [StopIteration(), asyncio.CancelledError()])
def test_a_job_cannot_pass_for_a_cancellation_of_its_caller(error: BaseException) -> None:
    def raise_it() -> None:
        raise error

    @virtual
    async def check() -> None:
        pool = BlockingPool("pool", threads=1, limit=1)
        with pytest.raises(KernelError, match=type(error).__name__):
            await pool.run(raise_it)
        pool.close()

    check()


@virtual
async def test_a_full_pool_is_overloaded() -> None:
    go = threading.Event()
    pool = BlockingPool("pool", threads=1, limit=2)
    jobs = [asyncio.ensure_future(pool.run(go.wait, 10.0)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 jobs in hand"):
        await pool.run(int)
    go.set()
    assert await asyncio.gather(*jobs) == [True, True]
    assert pool.jobs == 0
    pool.close()


@virtual
async def test_a_cancelled_caller_leaves_its_running_job_counted() -> None:
    go, begun = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        assert go.wait(10.0)

    pool = BlockingPool("pool", threads=1, limit=1)
    caller = asyncio.ensure_future(pool.run(job))
    await until(begun.is_set)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    with pytest.raises(Overloaded):
        await pool.run(int)
    go.set()
    await until(lambda: pool.jobs == 0)
    assert await pool.run(int) == 0
    pool.close()


@virtual
async def test_a_job_cancelled_before_it_began_never_runs() -> None:
    go = threading.Event()
    ran: list[int] = []
    pool = BlockingPool("pool", threads=1, limit=2)
    first = asyncio.ensure_future(pool.run(go.wait, 10.0))
    second = asyncio.ensure_future(pool.run(ran.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    go.set()
    assert await first
    assert await pool.run(int) == 0
    assert ran == []
    pool.close()


@virtual
async def test_a_closed_pool_fails_its_callers_and_cancels_none() -> None:
    go = threading.Event()
    pool = BlockingPool("pool", threads=1, limit=2)
    running = asyncio.ensure_future(pool.run(go.wait, 10.0))
    waiting = asyncio.ensure_future(pool.run(int))
    await asyncio.sleep(0)
    pool.close()
    with pytest.raises(ActorGone, match="closed before it began"):
        await waiting
    go.set()
    assert await running
    with pytest.raises(ActorGone, match="the pool is closed"):
        await pool.run(int)
    assert pool.jobs == 0
