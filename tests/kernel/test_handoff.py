"""What a hand-off must never change, on the virtual, the stock and the uvloop event loop."""

from __future__ import annotations

import asyncio
import functools
import itertools
import statistics
import time
from contextlib import asynccontextmanager
from contextvars import ContextVar
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import uvloop
from samovar.runtime.kernel import (
    ActorCrashed,
    ActorGone,
    ActorSystem,
    AskCycle,
    AskTimeout,
    ForeignCancellation,
    Unanswered,
    cell,
    turn,
)
from samovar.runtime.kernel.handoff import MAX_DEPTH
from samovar.runtime.kernel.turn import TURN_LENGTH, TURN_S

from tests.kernel.stage import Get, Handle, Log, Note, Ping, Run, Worker, boom, root, worker
from tests.kit import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from samovar.runtime.kernel import ActorFigures, ActorRef, ChildSpec

LOOPS = {"virtual": VirtualLoop, "asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
TIMEOUT_S = 10.0
setting: ContextVar[str] = ContextVar("setting", default="none")


def on_loops(
    *names: str, turn_s: float = 60.0
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Decorate an async test: it runs on each of these loops, and must leave no task and no error behind.

    Turns are so long that a pause of the machine cannot end one.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @pytest.mark.parametrize("loop", names)
        @functools.wraps(test)
        def run(loop: str, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> None:
            monkeypatch.setattr(turn, "TURN_S", turn_s)
            monkeypatch.setattr(cell, "TURN_S", turn_s)
            errors: list[Any] = []

            async def checked() -> None:
                asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
                await test(**arguments)
                assert asyncio.all_tasks() == {asyncio.current_task()}

            with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                runner.run(checked())
            assert not errors

        own = list(signature(run, follow_wrapped=False).parameters.values())[:2]
        run.__signature__ = Signature([*own, *signature(test).parameters.values()])  # type: ignore[attr-defined]
        return run

    return decorate


on_every_loop = on_loops(*LOOPS)


@asynccontextmanager
async def running(*children: ChildSpec[Any], **options: Any) -> AsyncIterator[ActorSystem]:
    system = ActorSystem(root(*children), **options)
    await system.start()
    await asyncio.sleep(0)  # they park
    try:
        yield system
    finally:
        await system.stop()


def at_once(ask: Coroutine[Any, Any, Any]) -> Any:
    """Return the answer of an ask that must not suspend."""
    try:
        ask.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the ask suspended")


def figures(system: ActorSystem, ref: ActorRef[Any]) -> ActorFigures:
    return next(each for each in system.figures() if each.path == ref.path)


def task_of(system: ActorSystem, ref: ActorRef[Any]) -> asyncio.Task[Any]:
    task = system.cell_of(ref)._task
    assert task is not None
    return task


# -- an idle actor answers at once, as itself -----------------------------------------------------------


@on_every_loop
async def test_an_idle_actor_answers_without_a_turn_of_the_loop() -> None:
    a = worker("a")
    async with running(a) as system:
        assert [at_once(a.ref.ask(Ping(value), TIMEOUT_S)) for value in range(3)] == [0, 1, 2]
        seen = figures(system, a.ref)
        assert (seen.handled, seen.open_asks, seen.depth, seen.skipped) == (3, 0, 0, 0)
        assert 0.0 < seen.handle_mean_s <= seen.handle_max_s


@on_every_loop
async def test_a_busy_actor_is_waited_for() -> None:
    a = worker("a")
    async with running(a):
        a.ref.tell(Note(1))
        with pytest.raises(AssertionError, match="suspended"):
            at_once(a.ref.ask(Ping(1), TIMEOUT_S))


@on_every_loop
async def test_the_handler_runs_as_the_actors_task_with_its_variables() -> None:
    a = worker("a")

    async def look(actor: Worker) -> tuple[Any, str]:
        before = setting.get()
        setting.set("the actor's")
        return asyncio.current_task(), before

    async with running(a) as system:
        asker, task = asyncio.current_task(), task_of(system, a.ref)
        setting.set("the asker's")
        assert at_once(a.ref.ask(Get(look), TIMEOUT_S)) == (task, "none")
        assert (asyncio.current_task(), setting.get()) == (asker, "the asker's")
        assert at_once(a.ref.ask(Get(look), TIMEOUT_S)) == (task, "the actor's")


@on_every_loop
async def test_what_the_handler_sends_itself_is_handled_after_it() -> None:
    log = Log()
    a = worker("a", log)

    async def tell_itself(actor: Worker, message: Handle) -> None:
        actor.ctx.self.tell(Note(1))
        actor.ctx.after(0.0, Note(2))
        actor.ctx.reply(message, "told")
        log.add("note", "a", 0)

    async with running(a):
        assert at_once(a.ref.ask(Handle(tell_itself), TIMEOUT_S)) == "told"
        await asyncio.sleep(0.05)
    assert log.details("note") == [0, 1, 2]


@on_every_loop
async def test_a_handler_may_stop_its_actor() -> None:
    log = Log()
    a = worker("a", log, restart="temporary")

    async def stop(actor: Worker) -> str:
        actor.ctx.stop()
        return "bye"

    async with running(a) as system:
        assert at_once(a.ref.ask(Get(stop), TIMEOUT_S)) == "bye"
        await asyncio.wait({task_of(system, a.ref)})
        with pytest.raises(ActorGone):
            await a.ref.ask(Ping(1), TIMEOUT_S)
    assert log.of("stopped") == ["a"]


@on_every_loop
async def test_a_deferred_ask_is_waited_for() -> None:
    a = worker("a")
    kept: list[Any] = []

    async def defer(actor: Worker, message: Handle) -> None:
        kept.append(actor.ctx.defer(message))

    async with running(a) as system:
        asker = asyncio.ensure_future(a.ref.ask(Handle(defer), TIMEOUT_S))
        await asyncio.sleep(0)
        assert (len(kept), kept[0].closed, figures(system, a.ref).open_asks) == (1, False, 1)
        assert at_once(a.ref.ask(Ping(2), TIMEOUT_S)) == 2
        assert kept[0].reply("later")
        assert await asker == "later"
        with pytest.raises(AskTimeout):
            await a.ref.ask(Handle(defer), 0.01)


@on_every_loop
async def test_askers_of_other_task_groups_and_of_no_task_are_answered() -> None:
    a = worker("a")
    answers: list[Any] = []

    async def ask(value: int) -> None:
        answers.append(await a.ref.ask(Ping(value), TIMEOUT_S))

    async with running(a):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, 1)
            group.start_soon(ask, 2)
        by_hand = a.ref.ask(Ping(3), TIMEOUT_S)
        asyncio.get_running_loop().call_soon(by_hand.send, None)
        await asyncio.sleep(0.01)
        with pytest.raises(StopIteration) as done:
            by_hand.send(None)
    assert [*answers, done.value.value] == [1, 2, 3]


# -- a handler that suspends goes on in its task --------------------------------------------------------


@on_every_loop
async def test_a_handler_that_suspends_is_finished_by_its_task_before_the_next_message() -> None:
    log = Log()
    a = worker("a", log)

    async def slow(actor: Worker) -> Any:
        began = asyncio.current_task()
        for _ in range(3):
            await asyncio.sleep(0)
            await asyncio.sleep(0.005)
            assert asyncio.current_task() is began
        log.add("note", "a", 0)
        return began

    async with running(a) as system:
        first = asyncio.ensure_future(a.ref.ask(Get(slow), TIMEOUT_S))
        await asyncio.sleep(0)
        a.ref.tell(Note(1))
        assert await a.ref.ask(Ping(2), TIMEOUT_S) == 2
        assert await first is task_of(system, a.ref)
        assert figures(system, a.ref).handled == 3
        assert at_once(a.ref.ask(Ping(3), TIMEOUT_S)) == 3
    assert log.details("note") == [0, 1]


async def scope_ends_it(future: asyncio.Future[None]) -> str:
    with anyio.move_on_after(0.01) as scope:
        await future
    return "timeout" if scope.cancelled_caught else "none"


async def timeout_ends_it(future: asyncio.Future[None]) -> str:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await future
    return "timeout"


async def past_timeout_ends_it(future: asyncio.Future[None]) -> str:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await future
    return "timeout"


async def sibling_ends_it(future: asyncio.Future[None]) -> str:
    async def fail() -> None:
        raise ValueError("sibling")

    with pytest.raises(ExceptionGroup):  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await future
    return "timeout"


async def own_scope_ends_it(future: asyncio.Future[None]) -> str:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await future
    return "timeout" if scope.cancelled_caught else "none"


@on_every_loop
async def test_scopes_and_timeouts_bind_to_the_actors_task() -> None:
    a = worker("a")
    async with running(a) as system:
        for ended in (
            *(scope_ends_it, timeout_ends_it, past_timeout_ends_it, sibling_ends_it, own_scope_ends_it),
        ):
            future = asyncio.get_running_loop().create_future()
            answer = await a.ref.ask(Get(lambda _, ended=ended, future=future: ended(future)), TIMEOUT_S)  # type: ignore[misc]
            assert (answer, future.cancelled()) == ("timeout", True), ended
            assert task_of(system, a.ref).cancelling() == 0
            await asyncio.sleep(0.02)
            assert at_once(a.ref.ask(Ping(1), TIMEOUT_S)) == 1


@on_every_loop
async def test_what_the_handler_waits_for_may_be_awaited_by_others_meanwhile() -> None:
    a = worker("a")
    shared: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(actor: Worker) -> str:
        return await shared

    async def other() -> str:
        return await shared

    async with running(a):
        asker = asyncio.ensure_future(a.ref.ask(Get(wait), TIMEOUT_S))
        rival = asyncio.ensure_future(other())  # runs after the hand-off, before the actor's task
        await asyncio.sleep(0.01)
        shared.set_result("both")
        assert await asyncio.gather(asker, rival) == ["both", "both"]


@on_every_loop
async def test_what_it_waits_for_may_be_there_before_its_task_waits() -> None:
    a = worker("a")
    loop = asyncio.get_running_loop()
    good, bad = loop.create_future(), loop.create_future()

    async def wait(actor: Worker) -> str:
        loop.call_soon(good.set_result, "good")
        loop.call_soon(bad.set_exception, ValueError("bad"))
        answer = await good
        with pytest.raises(ValueError, match="bad"):
            await bad
        return str(answer)

    async with running(a):
        assert await a.ref.ask(Get(wait), TIMEOUT_S) == "good"


@on_every_loop
async def test_a_stop_lets_a_suspended_handler_finish() -> None:
    log = Log()
    a = worker("a", log)

    async def slow(actor: Worker) -> str:
        await asyncio.sleep(0.01)
        return "done"

    async with running(a) as system:
        asker = asyncio.ensure_future(a.ref.ask(Get(slow), TIMEOUT_S))
        await asyncio.sleep(0)
        assert await system.stop() == "stopped"
        assert await asker == "done"
    assert log.of("stopped") == ["a"]


# -- kills and cancellations before the task has taken over ---------------------------------------------


async def on_future() -> None:
    await asyncio.get_running_loop().create_future()


async def on_turn() -> None:
    await asyncio.sleep(0)


async def on_task() -> None:
    await asyncio.create_task(asyncio.sleep(TIMEOUT_S))


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("suspends", [on_future, on_turn, on_task])
@on_every_loop
async def test_a_cancellation_before_the_task_took_over_is_thrown_into_the_handler(
    suspends: Callable[[], Coroutine[Any, Any, None]], kill: bool
) -> None:
    a = worker("a", restart="temporary")
    seen: list[Any] = []

    async def wait(actor: Worker) -> None:
        try:
            await suspends()
        finally:
            seen.append(asyncio.current_task())

    async with running(a) as system:
        cell, task = system.cell_of(a.ref), task_of(system, a.ref)
        ask = a.ref.ask(Get(wait), TIMEOUT_S)
        ask.send(None)  # the handler has suspended, its task has not run
        if kill:
            cell._scope.cancel()
        else:
            task.cancel("from outside")
        await asyncio.wait({task})
        assert seen == [task]
        await asyncio.sleep(0.01)
        with pytest.raises(ActorGone if kill else ActorCrashed) as caught:
            ask.send(None)
        assert cell._ended_by == ("killed" if kill else "crashed")
        if not kill:
            assert isinstance(caught.value.__cause__, ForeignCancellation)
            assert caught.value.__cause__.__cause__.args == ("from outside",)


@on_every_loop
async def test_a_cancellation_after_the_last_message_is_not_lost() -> None:
    a = worker("a", restart="temporary")

    async def stop(actor: Worker) -> None:
        actor.ctx.stop()

    async with running(a) as system:
        assert at_once(a.ref.ask(Get(stop), TIMEOUT_S)) is None
        task_of(system, a.ref).cancel()
        await asyncio.wait({task_of(system, a.ref)})
        failure = figures(system, a.ref).last_failure
        assert failure is not None
        assert isinstance(failure.error, ForeignCancellation)


@on_every_loop
async def test_a_handler_that_cancels_its_own_task_is_interrupted_at_its_next_wait() -> None:
    a, b = worker("a", restart="temporary"), worker("b", restart="temporary")
    seen: list[str] = []

    async def cancel(actor: Worker) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        seen.append("goes on")
        return "answered"

    async def cancel_and_wait(actor: Worker) -> None:
        await cancel(actor)
        await asyncio.sleep(TIMEOUT_S)
        seen.append("never")

    async with running(a, b) as system:
        assert at_once(a.ref.ask(Get(cancel), TIMEOUT_S)) == "answered"
        late = a.ref.ask(Ping(1), TIMEOUT_S)
        late.send(None)  # finds it about to end
        with pytest.raises(ActorCrashed, match="ForeignCancellation"):
            await b.ref.ask(Get(cancel_and_wait), TIMEOUT_S)
        assert seen == ["goes on", "goes on"]
        await asyncio.wait({task_of(system, a.ref), task_of(system, b.ref)})
        await asyncio.sleep(0.01)
        with pytest.raises(ActorGone):
            late.send(None)
        for ref in (a.ref, b.ref):
            failure = figures(system, ref).last_failure
            assert failure is not None
            assert isinstance(failure.error, ForeignCancellation)


@on_every_loop
async def test_an_asker_cancelled_by_what_it_asked_learns_so_at_the_ask() -> None:
    a, b = worker("a"), worker("b")

    async def cancelled_within(cancel: Callable[[], Any]) -> str:
        async def do(actor: Worker) -> str:
            cancel()
            return "answered"

        return str(await b.ref.ask(Get(do), TIMEOUT_S))

    async def scoped(actor: Worker | None) -> str:
        with anyio.CancelScope() as scope:
            await cancelled_within(scope.cancel)
        caught = scope.cancelled_caught
        await asyncio.sleep(0.01)  # no cancellation is left over
        return f"{caught}"

    async def native(actor: Worker | None) -> str:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(asyncio.CancelledError):
            await cancelled_within(task.cancel)
        task.uncancel()
        await asyncio.sleep(0.01)
        return "True"

    async with running(a, b) as system:
        for ask in (scoped, native):
            assert await asyncio.ensure_future(ask(None)) == "True"
            assert await a.ref.ask(Get(ask), TIMEOUT_S) == "True"  # the asker is a hand-off itself
        assert figures(system, b.ref).open_asks == 0


@on_every_loop
async def test_an_actor_whose_cancellation_is_on_its_way_is_not_handed_anything() -> None:
    a = worker("a", restart="temporary")
    async with running(a) as system:
        task_of(system, a.ref).cancel()
        with pytest.raises(ActorGone):
            await a.ref.ask(Ping(1), TIMEOUT_S)
        assert figures(system, a.ref).handled == 0


@on_every_loop
async def test_the_ask_of_an_asker_that_is_cancelled_already_is_never_handled() -> None:
    log = Log()
    a = worker("a", log)

    async def note(actor: Worker) -> None:
        log.add("note", "a")

    async def asker() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await a.ref.ask(Get(note), TIMEOUT_S)

    async with running(a) as system:
        task = asyncio.ensure_future(asker())
        await asyncio.wait({task})
        assert task.cancelled()
        assert figures(system, a.ref).skipped == 1
    assert log.details("note") == []


# -- crashes belong to the actor ------------------------------------------------------------------------


async def unanswered(actor: Worker, message: Handle) -> None:
    pass


@on_every_loop
async def test_a_crash_is_the_actors_and_its_asker_gets_actor_crashed() -> None:
    a = worker("a", restart="temporary")
    b = worker("b", restart="temporary")
    async with running(a, b) as system:
        with pytest.raises(ActorCrashed, match="ValueError: boom") as caught:
            await a.ref.ask(Get(boom), TIMEOUT_S)
        failure = figures(system, a.ref).last_failure
        assert failure is not None
        assert (failure.error, failure.message_type) == (caught.value.__cause__, "Get")
        with pytest.raises(ActorCrashed, match="without an answer") as caught:
            await b.ref.ask(Handle(unanswered), TIMEOUT_S)
        assert isinstance(caught.value.__cause__, Unanswered)
        assert [letter.reason for letter in system.dead_letters] == ["crashed", "crashed"]
        assert asyncio.current_task() not in (task_of(system, a.ref), task_of(system, b.ref))


@on_every_loop
async def test_what_the_asker_is_handling_does_not_become_the_context_of_a_crash() -> None:
    a = worker("a", restart="temporary")
    async with running(a):
        try:
            {}["the asker's own"]
        except KeyError:
            with pytest.raises(ActorCrashed) as caught:
                await a.ref.ask(Get(boom), TIMEOUT_S)
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__context__ is None


@on_every_loop
async def test_a_crash_of_what_the_handler_told_itself_leaves_the_answer() -> None:
    a = worker("a", restart="temporary")

    async def tell_boom(actor: Worker) -> str:
        actor.ctx.self.tell(Run(boom))
        return "answered"

    async with running(a) as system:
        assert at_once(a.ref.ask(Get(tell_boom), TIMEOUT_S)) == "answered"
        late = asyncio.ensure_future(a.ref.ask(Ping(1), TIMEOUT_S))
        with pytest.raises(ActorGone):
            await late
        failure = figures(system, a.ref).last_failure
        assert failure is not None
        assert failure.message_type == "Run"


# -- hand-offs within hand-offs -------------------------------------------------------------------------


def chain(refs: list[Any]) -> Get:
    """Ask the first, whose handler asks the second, and so on; the last asks the cell that waits for it."""

    async def body(actor: Worker) -> str:
        if not refs:
            return "end"
        try:
            return str(await refs[0].ask(chain(refs[1:]), TIMEOUT_S))
        except AskCycle as error:
            return f"cycle at {error.path}"

    return Get(body)


@on_every_loop
async def test_cycles_are_seen_through_nested_hand_offs_and_leave_no_trace() -> None:
    a, b, c = worker("a"), worker("b"), worker("c")
    async with running(a, b, c) as system:
        assert at_once(a.ref.ask(chain([b.ref, c.ref]), TIMEOUT_S)) == "end"
        for refs in ([a.ref], [b.ref, a.ref], [b.ref, c.ref, a.ref]):
            assert at_once(a.ref.ask(chain(refs), TIMEOUT_S)) == "cycle at a"
        assert at_once(c.ref.ask(chain([b.ref, a.ref]), TIMEOUT_S)) == "end"
        assert not any(system.cell_of(each.ref).waiting for each in (a, b, c))


@on_every_loop
async def test_without_the_detector_a_handler_that_asks_itself_waits_for_its_deadline() -> None:
    a = worker("a")

    async def ask_itself(actor: Worker) -> str:
        with pytest.raises(AskTimeout):
            await a.ref.ask(Ping(1), 0.01)
        return "timeout"

    async with running(a, detect_cycles=False):
        assert await a.ref.ask(Get(ask_itself), TIMEOUT_S) == "timeout"


@on_every_loop
async def test_a_nested_ask_inherits_the_deadline_of_the_ask_in_hand() -> None:
    a, b = worker("a"), worker("b")

    async def never(actor: Worker, message: Handle) -> None:
        actor.ctx.defer(message)

    async def ask_b(actor: Worker) -> None:
        await b.ref.ask(Handle(never), TIMEOUT_S)

    async with running(a, b) as system:
        with pytest.raises(AskTimeout):
            await a.ref.ask(Get(ask_b), 0.02)
        await asyncio.wait({task_of(system, a.ref)}, timeout=1.0)
        failure = figures(system, a.ref).last_failure
        assert failure is not None
        assert isinstance(failure.error, AskTimeout)


@on_every_loop
async def test_longer_chains_than_the_stack_should_hold_go_on_by_the_loop() -> None:
    workers = [worker(f"w{number}") for number in range(5 * MAX_DEPTH)]
    refs = [each.ref for each in workers]
    async with running(*workers):
        assert await refs[0].ask(chain(refs[1:]), TIMEOUT_S) == "end"
        assert at_once(refs[0].ask(chain(refs[1:MAX_DEPTH]), TIMEOUT_S)) == "end"
        with pytest.raises(AssertionError, match="suspended"):
            at_once(refs[0].ask(chain(refs[1 : MAX_DEPTH + 1]), TIMEOUT_S))


# -- the loop gets its turn -----------------------------------------------------------------------------


def spin(for_s: float) -> None:
    until_s = time.perf_counter() + for_s
    while time.perf_counter() < until_s:
        pass


@on_every_loop
async def test_an_asker_in_a_loop_lets_other_tasks_run() -> None:
    a = worker("a")
    asked, over = 0, False

    async def end() -> None:
        nonlocal over
        over = True

    async with running(a):
        other = asyncio.ensure_future(end())
        while not over:
            await a.ref.ask(Ping(1), TIMEOUT_S)
            asked += 1
        await other
    assert 1 < asked <= TURN_LENGTH + 1


@on_loops("asyncio", "uvloop", turn_s=TURN_S)
async def test_a_handler_that_takes_longer_than_a_turn_still_answers_at_once() -> None:
    a = worker("a")

    async def take_long(actor: Worker) -> str:
        spin(2 * TURN_S)
        return "done"

    async with running(a):
        assert at_once(a.ref.ask(Get(take_long), TIMEOUT_S)) == "done"
        with pytest.raises(AssertionError, match="suspended"):
            at_once(a.ref.ask(Ping(1), TIMEOUT_S))
        await asyncio.sleep(0.01)
        assert await a.ref.ask(Ping(2), TIMEOUT_S) == 2


@on_loops("asyncio", "uvloop", turn_s=TURN_S)
async def test_slow_handlers_use_up_a_turn_sooner() -> None:
    a = worker("a")
    asked, over = 0, False

    async def take_a_millisecond(actor: Worker) -> None:
        spin(0.001)

    async def end() -> None:
        nonlocal over
        over = True

    async with running(a):
        other = asyncio.ensure_future(end())
        while not over:
            await a.ref.ask(Get(take_a_millisecond), TIMEOUT_S)
            asked += 1
        await other
    assert asked <= TURN_S / 0.001 + 1


@on_loops("asyncio", "uvloop", turn_s=TURN_S)
async def test_timers_fire_in_time_during_many_asks() -> None:
    """In time by this thread's own time: what other processes take on a busy machine is none of its fault."""
    a = worker("a")
    loop = asyncio.get_running_loop()
    ticked_s = [time.thread_time()]

    def tick() -> None:
        nonlocal timer
        ticked_s.append(time.thread_time())
        timer = loop.call_later(0.01, tick)

    timer = loop.call_later(0.01, tick)
    async with running(a):
        while len(ticked_s) <= 20:
            await a.ref.ask(Ping(1), TIMEOUT_S)
    timer.cancel()
    between_s = [later - earlier for earlier, later in itertools.pairwise(ticked_s)]
    assert statistics.median(between_s) < 0.02
