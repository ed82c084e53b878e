from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from samovar.runtime.kernel import (
    Actor,
    ActorCrashed,
    ActorGone,
    Ask,
    AskTimeout,
    ChildSpec,
    InjectedCrash,
    Overloaded,
    Rejected,
    SupervisorSpec,
    Unanswered,
)

from tests.kernel.stage import Get, Handle, Note, Ping, Run, Worker, boom, root, worker
from tests.kit import KitSystem, Probe, virtual


@dataclass(frozen=True, slots=True)
class Square(Ask[int]):
    value: int


class Squarer(Actor[Square]):
    async def receive(self, message: Square) -> None:
        self.ctx.reply(message, message.value * message.value)


# -- outcomes ---------------------------------------------------------------------------------------


@virtual
async def test_no_reply_before_the_deadline_is_a_timeout() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        with pytest.raises(AskTimeout, match="Ping to probe") as caught:
            await probe.ref.ask(Ping(1), 0.5)
        assert 0.5 <= kit.system.now_s() < 0.52
        assert (caught.value.code, caught.value.retryable) == ("ask_timeout", True)
        assert (caught.value.path, caught.value.operation) == ("probe", "Ping")


@virtual
async def test_a_far_deadline_expires_within_one_per_cent() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        with pytest.raises(AskTimeout):
            await probe.ref.ask(Ping(1), 60.01)
        assert 60.01 <= kit.system.now_s() <= 60.01 * 1.01


@virtual
async def test_asks_of_one_tick_expire_in_the_order_in_which_they_were_asked() -> None:
    probe = Probe()
    expired: list[int] = []

    async def ask(number: int) -> None:
        with pytest.raises(AskTimeout):
            await probe.ref.ask(Ping(number), 1.0)
        expired.append(number)

    async with KitSystem(SupervisorSpec("root", [probe.spec])):
        await asyncio.gather(*(ask(number) for number in range(50)))
    assert expired == list(range(50))


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_a_deadline_in_the_past_times_out_without_being_sent(timeout_s: float) -> None:
    @virtual
    async def check() -> None:
        probe = Probe()
        async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
            with pytest.raises(AskTimeout, match="before the ask was sent"):
                await probe.ref.ask(Ping(1), timeout_s)
            await kit.settle()
            probe.take_nothing()

    check()


@virtual
async def test_a_refusal_is_rejected_with_its_cause() -> None:
    async def refuse(actor: Worker, message: Handle) -> None:
        actor.ctx.reject(message, ValueError("not today"))

    a = worker("a")
    async with KitSystem(root(a)) as kit:
        with pytest.raises(Rejected, match="Handle to a: not today") as caught:
            await a.ref.ask(Handle(refuse), 1.0)
        assert isinstance(caught.value.__cause__, ValueError)
        assert kit.figures(a.ref).restarts == 0


@virtual
async def test_the_ask_in_hand_at_a_crash_fails_and_the_actor_returns() -> None:
    a = worker("a")
    async with KitSystem(root(a)) as kit:
        with pytest.raises(ActorCrashed, match="ValueError: boom") as caught:
            await a.ref.ask(Get(boom), 1.0)
        assert isinstance(caught.value.__cause__, ValueError)
        await kit.settle()
        failure = kit.failure("a", ValueError)
        assert failure.message_type == "Get"
        assert isinstance(kit.dead_letter("a", "crashed").message, Get)
        assert await a.ref.ask(Ping(2), 5.0) == 2
        assert kit.figures(a.ref).restarts == 1


@virtual
async def test_an_ask_to_a_stopped_actor_finds_it_gone() -> None:
    a = worker("a", restart="temporary")
    async with KitSystem(root(a)) as kit:
        kit.system.crash("a")
        await kit.settle()
        kit.failure("a")
        with pytest.raises(ActorGone):
            await a.ref.ask(Ping(1), 1.0)


@virtual
async def test_a_ref_without_a_tree_behaves_like_one_of_an_actor_that_is_gone() -> None:
    a = worker("a")
    assert a.ref.tell(Note(1)) is False
    with pytest.raises(ActorGone, match="not part of a running tree"):
        await a.ref.ask(Ping(1), 1.0)
    with pytest.raises(ActorGone):
        await a.ref.deliver(Note(1), 1.0)


@virtual
async def test_a_full_mailbox_is_overloaded_and_enqueues_nothing() -> None:
    a = worker("a", capacity=1)
    async with KitSystem(root(a)) as kit:
        kit.hold(a.ref)
        first = asyncio.ensure_future(a.ref.ask(Ping(1), 1.0))  # in hand, held
        await kit.settle()
        second = asyncio.ensure_future(a.ref.ask(Ping(2), 1.0))  # queued
        await kit.settle()
        with pytest.raises(Overloaded, match="1 messages wait"):
            await a.ref.ask(Ping(3), 1.0)
        kit.release(a.ref)
        assert (await first, await second) == (1, 2)


@virtual
async def test_a_reply_is_returned() -> None:
    squarer = ChildSpec("squarer", Squarer, capacity=10)
    async with KitSystem(SupervisorSpec("root", [squarer])):
        assert await squarer.ref.ask(Square(7), 1.0) == 49


# -- envelopes of closed promises ---------------------------------------------------------------------


@virtual
async def test_an_ask_that_timed_out_in_the_queue_is_never_handled() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        kit.hold(probe.ref)
        probe.ref.tell(Note(0))  # in hand
        await kit.settle()
        with pytest.raises(AskTimeout):
            await probe.ref.ask(Ping(1), 0.5)
        kit.release(probe.ref)
        await kit.settle()
        probe.take(Note)
        probe.take_nothing()
        assert kit.figures(probe.ref).skipped == 1
        assert ("probe", "Ping") not in kit.handled


@virtual
async def test_the_ask_of_a_cancelled_asker_is_never_handled() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        kit.hold(probe.ref)
        probe.ref.tell(Note(0))
        await kit.settle()
        asker = asyncio.ensure_future(probe.ref.ask(Ping(1), 5.0))
        await kit.settle()
        assert kit.figures(probe.ref).open_asks == 1
        asker.cancel()
        await kit.settle()
        assert kit.figures(probe.ref).open_asks == 0
        kit.release(probe.ref)
        await kit.settle()
        probe.take(Note)
        probe.take_nothing()


@virtual
async def test_a_reply_in_the_same_round_as_the_askers_cancellation_is_dropped() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        asker = asyncio.ensure_future(probe.ref.ask(Ping(1), 5.0))
        await kit.settle()
        deferred = probe.open.popleft()
        asker.cancel()  # its future is cancelled now; the asker itself runs later
        assert deferred.closed
        assert deferred.reply(1) is False
        assert deferred.reject(ValueError()) is False
        await kit.settle()
        assert asker.cancelled()
        assert kit.figures(probe.ref).open_asks == 0


@virtual
async def test_an_asker_cancelled_in_the_round_of_the_failure_leaves_nothing_unread() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        asker = asyncio.ensure_future(probe.ref.ask(Ping(1), 5.0))
        await kit.settle()
        assert probe.open.popleft().reject(ValueError("no"))
        asker.cancel()
        await kit.settle()
        assert asker.cancelled()


@virtual
async def test_a_reply_after_the_deadline_says_so() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])):
        with pytest.raises(AskTimeout):
            await probe.ref.ask(Ping(1), 0.5)
        assert probe.open.popleft().reply(1) is False


# -- deadlines through nested asks --------------------------------------------------------------------


@virtual
async def test_nested_asks_end_with_the_first_deadline() -> None:
    probe = Probe("c")
    b, a = worker("b"), worker("a")
    at_s: dict[str, float] = {}

    async def ask_c(actor: Worker) -> Any:
        try:
            return await probe.ref.ask(Ping(1), 100.0)
        finally:
            at_s["c"] = actor.ctx.now_s()

    async def ask_b(actor: Worker) -> Any:
        return await b.ref.ask(Get(ask_c), 50.0)

    async with KitSystem(root(probe.spec, b, a)) as kit:
        with pytest.raises(AskTimeout):
            await a.ref.ask(Get(ask_b), 2.0)
        await kit.settle()
        assert 2.0 <= at_s["c"] < 2.02
        for path in ("a", "b"):
            kit.failure(path, AskTimeout)
            kit.dead_letter(path, "crashed")


@virtual
async def test_a_nested_ask_keeps_its_own_shorter_deadline() -> None:
    probe = Probe("c")
    a = worker("a")

    async def ask_c(actor: Worker) -> float:
        with pytest.raises(AskTimeout):
            await probe.ref.ask(Ping(1), 1.0)
        return actor.ctx.now_s()

    async with KitSystem(root(probe.spec, a)):
        assert 1.0 <= await a.ref.ask(Get(ask_c), 10.0) < 1.02


@virtual
async def test_a_tell_after_an_ask_inherits_no_deadline() -> None:
    probe = Probe("c")
    a = worker("a")
    waited: list[float] = []

    async def ask_c(actor: Worker) -> None:
        with pytest.raises(AskTimeout):
            await probe.ref.ask(Ping(1), 7.0)
        waited.append(actor.ctx.now_s())

    async with KitSystem(root(probe.spec, a)) as kit:
        assert await a.ref.ask(Ping(1), 0.5) == 1
        a.ref.tell(Run(ask_c))
        await kit.advance(8.0)
        assert 7.0 <= waited[0] < 7.02


# -- answers ----------------------------------------------------------------------------------------


@virtual
async def test_an_ask_left_without_an_answer_is_a_crash() -> None:
    async def ignore(actor: Worker, message: Handle) -> None:
        pass

    a = worker("a")
    async with KitSystem(root(a)) as kit:
        with pytest.raises(ActorCrashed, match="without an answer"):
            await a.ref.ask(Handle(ignore), 1.0)
        await kit.settle()
        assert kit.failure("a", Unanswered).message_type == "Handle"
        kit.dead_letter("a", "crashed")


@virtual
async def test_an_ask_whose_asker_left_meanwhile_needs_no_answer() -> None:
    async def slow(actor: Worker, message: Handle) -> None:
        await asyncio.sleep(2.0)

    a = worker("a")
    async with KitSystem(root(a)) as kit:
        with pytest.raises(AskTimeout):
            await a.ref.ask(Handle(slow), 1.0)
        await kit.advance(2.0)
        assert kit.figures(a.ref).handled == 1


@virtual
async def test_only_the_ask_in_hand_can_be_answered() -> None:
    async def answer_another(actor: Worker) -> str:
        with pytest.raises(RuntimeError, match="not the ask in hand"):
            actor.ctx.reply(Ping(1), 1)
        return "refused"

    a = worker("a")
    async with KitSystem(root(a)):
        assert await a.ref.ask(Get(answer_another), 1.0) == "refused"


@virtual
async def test_the_first_of_two_answers_wins() -> None:
    second: list[bool] = []

    async def twice(actor: Worker, message: Handle) -> None:
        assert actor.ctx.reply(message, 1)
        second.append(actor.ctx.reply(message, 2))

    a = worker("a")
    async with KitSystem(root(a)):
        assert await a.ref.ask(Handle(twice), 1.0) == 1
        assert second == [False]


@virtual
async def test_the_message_in_hand_at_a_crash_is_a_dead_letter_even_if_it_was_answered() -> None:
    async def answer_and_fail(actor: Worker, message: Handle) -> None:
        actor.ctx.reply(message, 1)
        raise ValueError("afterwards")

    a = worker("a")
    async with KitSystem(root(a)) as kit:
        assert await a.ref.ask(Handle(answer_and_fail), 1.0) == 1
        await kit.settle()
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")


@virtual
async def test_a_deferred_ask_is_answered_later() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        asker = asyncio.ensure_future(probe.ref.ask(Ping(1), 5.0))
        await kit.advance(3.0)
        deferred = probe.open.popleft()
        assert not deferred.closed
        assert deferred.reply(42)
        assert deferred.reply(43) is False
        assert await asker == 42


@virtual
async def test_a_deferred_ask_fails_when_the_incarnation_crashes() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        asker = asyncio.ensure_future(probe.ref.ask(Ping(1), 50.0))
        await kit.settle()
        kit.system.crash("probe")
        with pytest.raises(ActorCrashed, match="InjectedCrash") as caught:
            await asker
        assert isinstance(caught.value.__cause__, InjectedCrash)
        await kit.settle()
        kit.failure("probe")
        assert probe.open.popleft().closed


@virtual
async def test_a_deferred_ask_fails_when_the_actor_stops() -> None:
    probe = Probe()
    async with KitSystem(SupervisorSpec("root", [probe.spec])) as kit:
        asker = asyncio.ensure_future(probe.ref.ask(Ping(1), 50.0))
        await kit.settle()
        await kit.system.stop()
        with pytest.raises(ActorGone, match="stopped before it answered"):
            await asker


@virtual
async def test_defer_and_crash_in_one_handler_still_ends_the_ask() -> None:
    async def defer_and_fail(actor: Worker, message: Handle) -> None:
        actor.ctx.defer(message)
        raise ValueError("boom")

    a = worker("a")
    async with KitSystem(root(a)) as kit:
        with pytest.raises(ActorCrashed):
            await a.ref.ask(Handle(defer_and_fail), 1.0)
        await kit.settle()
        kit.failure("a", ValueError)
        kit.dead_letter("a", "crashed")
