"""What becomes of running requests when a lane or the scheduler crashes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from samovar.actors.requests import Refused
from samovar.actors.scheduling.lanewatch import LANE_ASK_S
from samovar.actors.scheduling.verdicts import CONVICTED_S
from samovar.runtime.engine.errors import LaneStepFailed
from samovar.runtime.engine.port import Cancelled, Delta, Failed, Finished, Prefilled
from samovar.runtime.kernel import InjectedCrash

from tests.kit import virtual
from tests.kit.engine import FakeBackend, FakeEngine

from .tree import drain, serving, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samovar.actors.stream import RequestStream, StreamEvent
    from samovar.runtime.engine.port import Phase, RowEvent, RowRequest

    from .tree import Serving

POISON = "!"


class Poisoned(FakeEngine):
    """Crashes in ``phase`` whenever a row whose prompt begins with POISON takes part."""

    phase: Phase = "decode"
    crashes = 0

    def fault(self, phase: Phase, rows: Sequence[RowRequest]) -> Exception | None:
        if phase != self.phase or not any(row.tokens[0] == ord(POISON) for row in rows):
            return None
        self.crashes += 1
        return RuntimeError("device lost in /opt/secret/kernel.metal")


async def stand(streams: Sequence[RequestStream], engine: FakeEngine, tree: Serving) -> None:
    """Let all be inserted before the first step."""
    while len(engine.inserted) < len(streams):
        await tree.kit.settle()


async def on_lane(tree: Serving) -> list[str]:
    return [row.request.id for row in await tree.lanes[0].rows(1.0)]


def failures(tree: Serving, path: str, count: int, kind: type[BaseException] = LaneStepFailed) -> None:
    for _ in range(count):
        tree.kit.failure(path, kind)


def once(events: list[StreamEvent]) -> bool:
    return sum(isinstance(event, Finished | Cancelled | Failed) for event in events) == 1


@virtual
async def test_a_crash_amid_a_reply_only_pauses_it() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=2, queue=4, engine=engine) as tree:
        streams = [await tree.admitted("a", max_tokens=6), await tree.admitted("b", "cd", max_tokens=6)]
        queued = asyncio.ensure_future(tree.admitted("c"))
        await stand(streams, engine, tree)
        engine.allow(3)
        got = await streams[0].take()
        while not any(isinstance(event, Delta) for event in got):
            got += await streams[0].take()
        engine.crash = RuntimeError("device lost")
        engine.gated = False
        events = got + await drain(streams[0])
        assert text(events) == "".join(f"97.{n} " for n in range(6))
        assert [event for event in events if isinstance(event, Prefilled)] == [Prefilled("a", 2, 2)]
        assert once(events)
        last = events[-1]
        assert isinstance(last, Finished)
        assert (last.prompt_tokens, last.completion_tokens) == (2, 6)
        assert text(await drain(streams[1])) == "".join(f"99.{n} " for n in range(6))
        assert isinstance((await drain(await queued))[-1], Finished)
        await tree.kit.settle()
        failures(tree, "lanes/0", 1)
        figures = await tree.scheduler.figures(1.0)
        assert (figures.resumed, figures.failed, figures.finished, figures.running) == (2, 0, 3, 0)
        assert (engine.opened, engine.closed) == (2, 1)


@virtual
async def test_the_first_token_of_a_resumed_request_stays_the_first() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a", max_tokens=4)
        engine.allow(2)
        while stream.first_token_s is None:
            await stream.take()
        first_s = stream.first_token_s
        engine.crash = RuntimeError("device lost")
        engine.gated = False
        await drain(stream)
        assert stream.first_token_s == first_s
        assert stream.ended_s is not None
        assert stream.ended_s > first_s  # there was a pause
        failures(tree, "lanes/0", 1)


@virtual
async def test_a_crash_of_the_lane_actor_suspects_nobody_however_often_it_happens() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a")
        for opened in range(2, 6):
            await tree.kit.settle()
            tree.kit.system.crash("lanes/0")
            while engine.opened < opened:
                await tree.kit.advance(0.1)
        engine.gated = False
        assert isinstance((await drain(stream))[-1], Finished)
        failures(tree, "lanes/0", 4, InjectedCrash)


@virtual
async def test_a_row_still_in_the_mailbox_of_a_crashing_lane_goes_on_too() -> None:
    async with serving() as tree:
        tree.kit.hold(tree.lanes[0].ref)
        stream = await tree.admitted("a")
        tree.kit.system.crash("lanes/0")
        await tree.kit.step(tree.lanes[0].ref)
        tree.kit.release(tree.lanes[0].ref)
        assert isinstance((await drain(stream))[-1], Finished)
        tree.kit.failure("lanes/0", InjectedCrash)
        tree.kit.dead_letter("lanes/0", "dropped")
        assert tree.engine.inserted == ["a"]


@virtual
async def test_rows_of_a_crashed_lane_go_on_at_once_where_there_is_room() -> None:
    engine = FakeEngine(gated=True)
    async with serving(lanes=2, batch=2, engine=engine) as tree:
        first, second = await tree.admitted("a"), await tree.admitted("b")
        await tree.kit.settle()
        tree.kit.system.crash("lanes/0")
        await tree.kit.settle()
        assert len(await tree.lanes[1].rows(1.0)) == 2
        assert engine.opened == 2  # the crashed one is not up yet
        engine.gated = False
        for stream in (first, second):
            assert isinstance((await drain(stream))[-1], Finished)
        await tree.kit.advance(1.0)
        tree.kit.failure("lanes/0")


@virtual
async def test_a_client_that_leaves_during_the_pause_is_not_resumed() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a")
        await tree.kit.settle()
        tree.kit.system.crash("lanes/0")
        await tree.kit.settle()
        stream.cancel()
        assert (await drain(stream))[-1] == Cancelled("a")
        await tree.kit.advance(1.0)
        assert engine.inserted == ["a"]
        tree.kit.failure("lanes/0")
        figures = await tree.scheduler.figures(1.0)
        assert (figures.running, figures.cancelled, figures.resumed) == (0, 1, 0)


@virtual
async def test_a_poisonous_prompt_alone_fails_after_two_crashes() -> None:
    engine = Poisoned()
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a", "!x")
        events = await drain(stream)
        last = events[-1]
        assert isinstance(last, Failed)
        assert (last.code, last.shown, once(events)) == ("lane_crashed", True, True)
        assert "decode failed: device lost in …" in last.message
        assert "secret" not in last.message
        assert engine.crashes == 2
        assert isinstance((await drain(await tree.admitted("b")))[-1], Finished)
        await tree.kit.settle()
        failures(tree, "lanes/0", 2)


@virtual
async def test_a_poisonous_prompt_among_healthy_ones_fails_alone_after_two_crashes() -> None:
    for phase in ("prefill", "join", "decode", "extract"):
        engine = Poisoned(gated=True)
        engine.phase = phase
        async with serving(batch=6, engine=engine) as tree:
            prompts = ["ab", "cd", "ef", "!x", "gh", "ij"]
            streams = [await tree.admitted(f"r{n}", prompt) for n, prompt in enumerate(prompts)]
            await stand(streams, engine, tree)
            engine.gated = False
            for prompt, stream in zip(prompts, streams, strict=True):
                events = await drain(stream)
                assert once(events)
                if prompt[0] == POISON:
                    assert isinstance(events[-1], Failed)
                else:
                    assert text(events) == "".join(f"{ord(prompt[0])}.{n} " for n in range(3))
            assert engine.crashes == 2
            await tree.kit.settle()
            failures(tree, "lanes/0", 2)
            assert len(tree.ledger) == 0


@virtual
async def test_a_suspect_that_got_past_its_mark_does_not_hold_up_the_next() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=3, engine=engine) as tree:
        streams = [await tree.admitted(f"r{n}", max_tokens=1000) for n in range(3)]
        await stand(streams, engine, tree)
        engine.allow(3)
        while any(stream.emitted_tokens < 2 for stream in streams):
            await tree.kit.settle()
        engine.crash = RuntimeError("device lost")
        engine.allow(1)
        while engine.opened < 2:
            await tree.kit.advance(0.1)
        assert await on_lane(tree) == ["r0"]
        engine.allow(1)  # prefill: not past the mark yet
        await tree.kit.advance(0.1)
        assert await on_lane(tree) == ["r0"]
        engine.allow(1)
        await tree.kit.advance(0.1)
        assert await on_lane(tree) == ["r0", "r1"]
        engine.allow(2)
        await tree.kit.advance(0.1)
        assert await on_lane(tree) == ["r0", "r1", "r2"]
        failures(tree, "lanes/0", 1)
        for stream in streams:
            stream.cancel()
            await drain(stream)


@virtual
async def test_rows_that_were_not_at_work_in_the_crash_go_on_at_once() -> None:
    engine = Poisoned(gated=True)
    engine.phase = "prefill"
    async with serving(batch=4, engine=engine) as tree:
        streams = [await tree.admitted(f"r{n}", max_tokens=1000) for n in range(3)]
        await stand(streams, engine, tree)
        engine.allow(3)
        while any(stream.emitted_tokens < 2 for stream in streams):
            await tree.kit.settle()
        poison = await tree.admitted("poison", "!x")
        engine.gated = False
        assert isinstance((await drain(poison))[-1], Failed)
        assert engine.crashes == 2
        await tree.kit.advance(1.0)
        assert engine.inserted[3:] == ["poison", "r0", "r1", "r2", "poison", "r0", "r1", "r2"]
        failures(tree, "lanes/0", 2)
        for stream in streams:
            stream.cancel()
            await drain(stream)


@virtual
async def test_a_client_that_leaves_as_it_is_admitted_is_not_served_after_a_scheduler_crash() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine) as tree:
        leaver = asyncio.ensure_future(tree.submit("leaver", max_tokens=1000))
        await asyncio.sleep(0)
        while not leaver._fut_waiter.done():  # noqa: ASYNC110 - the round between answer and waking
            await asyncio.sleep(0)
        leaver.cancel()  # answered, but not awake yet
        tree.kit.system.crash("scheduler")  # and what it says in leaving is lost
        await tree.kit.advance(1.0)
        engine.gated = False
        await tree.kit.advance(1.0)
        assert leaver.cancelled()
        assert len(tree.ledger) == 0
        assert tree.ledger.counts.cancelled == 1
        failures(tree, "scheduler", 1, InjectedCrash)
        for letter in list(tree.kit.record.letters):
            tree.kit.dead_letter("scheduler", letter.reason)


@virtual
async def test_two_poisonous_prompts_are_both_found() -> None:
    engine = Poisoned(gated=True)
    async with serving(batch=4, engine=engine) as tree:
        prompts = ["!1", "ab", "!2", "cd"]
        streams = [await tree.admitted(f"r{n}", prompt) for n, prompt in enumerate(prompts)]
        await stand(streams, engine, tree)
        engine.gated = False
        ends = [(await drain(stream))[-1] for stream in streams]
        assert [isinstance(end, Failed) for end in ends] == [True, False, True, False]
        assert engine.crashes == 3  # one that both were in, and one each
        await tree.kit.settle()
        failures(tree, "lanes/0", 3)


@virtual
async def test_a_poisonous_prompt_sent_again_is_refused_and_crashes_nothing() -> None:
    engine = Poisoned()
    async with serving(engine=engine) as tree:
        await drain(await tree.admitted("a", "!x"))
        for n in range(5):
            answer = await tree.submit(f"again{n}", "!x")
            assert isinstance(answer, Refused)
            assert answer.code == "lane_crashed"
            assert "device lost" in answer.message
        assert engine.crashes == 2
        assert isinstance((await drain(await tree.admitted("b", "xx")))[-1], Finished)
        await tree.kit.advance(CONVICTED_S)
        assert isinstance((await drain(await tree.admitted("later", "!x")))[-1], Failed)
        assert engine.crashes == 4
        await tree.kit.advance(1.0)
        failures(tree, "lanes/0", 4)


@virtual
async def test_suspects_of_two_lanes_are_tried_each_on_its_own() -> None:
    engine = Poisoned(gated=True)
    async with serving(lanes=2, batch=3, engine=engine) as tree:
        prompts = ["ab", "cd", "!x", "ef", "gh", "ij"]
        streams = [await tree.admitted(f"r{n}", prompt) for n, prompt in enumerate(prompts)]
        await stand(streams, engine, tree)
        engine.gated = False
        ends = [(await drain(stream))[-1] for stream in streams]
        assert [isinstance(end, Failed) for end in ends] == [prompt[0] == POISON for prompt in prompts]
        assert engine.crashes == 2
        await tree.kit.settle()
        failures(tree, "lanes/0", 2)  # the other lane never noticed


@virtual
async def test_a_lane_that_crashes_while_the_scheduler_is_down_loses_no_request() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a")
        await tree.kit.settle()
        tree.kit.system.crash("scheduler")
        tree.kit.system.crash("lanes/0")
        await tree.kit.advance(1.0)
        engine.gated = False
        assert isinstance((await drain(stream))[-1], Finished)
        await tree.kit.settle()
        figures = await tree.scheduler.figures(1.0)
        assert (figures.admitted, figures.finished, figures.running) == (1, 1, 0)
        failures(tree, "scheduler", 1, InjectedCrash)
        failures(tree, "lanes/0", 1, InjectedCrash)


async def given_up(tree: Serving) -> None:
    """Have a new scheduler give up on lane 0, which does not answer in time but has not crashed."""
    tree.kit.hold(tree.lanes[0].ref)
    tree.kit.system.crash("scheduler")
    await tree.kit.advance(LANE_ASK_S + 2.0)


@virtual
async def test_a_row_that_waits_at_a_silent_lane_is_not_started_twice() -> None:
    async with serving() as tree:
        tree.kit.hold(tree.lanes[0].ref)
        stream = await tree.admitted("a")
        await given_up(tree)
        tree.kit.release(tree.lanes[0].ref)
        events = await drain(stream)
        assert text(events) == "97.0 97.1 97.2 "
        assert once(events)
        assert tree.engine.inserted == ["a"]
        failures(tree, "scheduler", 1, InjectedCrash)


@virtual
async def test_a_row_that_runs_on_a_silent_lane_is_run_anew_there_only_once_it_has_left() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a", max_tokens=6)
        await stand([stream], engine, tree)
        engine.allow(2)
        await tree.kit.settle()
        await given_up(tree)
        engine.allow(1)  # its token is for nobody: the next attempt computes it again
        await tree.kit.settle()
        tree.kit.release(tree.lanes[0].ref)
        engine.gated = False
        events = await drain(stream)
        assert text(events) == "".join(f"97.{n} " for n in range(6))
        assert once(events)
        assert engine.inserted == ["a", "a"]
        await tree.kit.settle()
        assert await on_lane(tree) == []
        failures(tree, "scheduler", 1, InjectedCrash)


@virtual
async def test_a_row_of_a_silent_lane_runs_elsewhere_and_nothing_of_it_comes_twice() -> None:
    engine = FakeEngine(gated=True)
    async with serving(lanes=2, engine=engine) as tree:
        stream = await tree.admitted("a", max_tokens=6)
        await stand([stream], engine, tree)
        engine.allow(2)
        await tree.kit.settle()
        await given_up(tree)
        engine.gated = False
        events = await drain(stream)
        tree.kit.release(tree.lanes[0].ref)
        await tree.kit.settle()
        assert text(events) == "".join(f"97.{n} " for n in range(6))
        assert once(events)
        assert engine.inserted == ["a", "a"]
        assert await on_lane(tree) == []
        figures = await tree.scheduler.figures(1.0)
        assert (figures.finished, figures.running) == (1, 0)
        failures(tree, "scheduler", 1, InjectedCrash)


class _Slow(FakeBackend):
    engine: FakeEngine
    kept: list[str]

    def cancel(self, row_id: str) -> None:
        if self.engine.gated:
            self.kept.append(row_id)
        else:
            super().cancel(row_id)

    def step(self) -> list[RowEvent]:
        while self.kept and not self.engine.gated:
            super().cancel(self.kept.pop())
        return super().step()


class SlowToLeave(FakeEngine):
    """Rows leave only while it is not gated."""

    def backend(self) -> FakeBackend:
        backend = _Slow(self)
        backend.engine, backend.kept = self, []
        return backend


@virtual
async def test_a_client_that_leaves_while_its_row_waits_for_an_earlier_attempt_is_not_served() -> None:
    engine = SlowToLeave(gated=True)
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a", max_tokens=10_000)
        await stand([stream], engine, tree)
        await given_up(tree)
        tree.kit.release(tree.lanes[0].ref)
        await tree.kit.settle()
        assert await on_lane(tree) == ["a"]
        assert engine.inserted == ["a"]
        stream.cancel()
        assert (await drain(stream))[-1] == Cancelled("a")
        engine.gated = False
        await tree.kit.settle()
        assert engine.inserted == ["a"]
        assert await on_lane(tree) == []
        failures(tree, "scheduler", 1, InjectedCrash)


@virtual
async def test_a_request_that_ends_while_the_scheduler_is_down_is_counted() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a")
        await tree.kit.settle()
        tree.kit.system.crash("scheduler")
        engine.gated = False
        await drain(stream)
        await tree.kit.advance(1.0)
        figures = await tree.scheduler.figures(1.0)
        assert (figures.finished, figures.running) == (1, 0)
        failures(tree, "scheduler", 1, InjectedCrash)


@virtual
async def test_a_cancellation_that_a_scheduler_crash_swallowed_is_made_good() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine) as tree:
        stream = await tree.admitted("a", max_tokens=10_000)
        await tree.kit.settle()
        tree.kit.hold(tree.scheduler.ref)
        stream.cancel()
        tree.kit.system.crash("scheduler")
        tree.kit.release(tree.scheduler.ref)
        await tree.kit.advance(1.0)
        engine.gated = False
        assert (await drain(stream))[-1] == Cancelled("a")
        await tree.kit.settle()
        assert len(tree.ledger) == 0
        failures(tree, "scheduler", 1, InjectedCrash)
        for letter in list(tree.kit.record.letters):
            tree.kit.dead_letter("scheduler", letter.reason)


@virtual
async def test_a_resumed_request_goes_on_from_the_state_that_the_cache_has() -> None:
    engine = FakeEngine(gated=True)
    async with serving(engine=engine, cache=True) as tree:
        stream = await tree.admitted("a", "x" * 100, max_tokens=20)
        engine.allow(4)
        while stream.emitted_tokens < 2:
            await stream.take()
        engine.crash = RuntimeError("device lost")
        engine.gated = False
        events = await drain(stream)
        assert text(events) == "".join(f"120.{n} " for n in range(2, 20))[-len(text(events)) :]
        assert stream.emitted_tokens == 20
        assert engine.prefilled < 110  # the prompt once, and the few tokens behind its state
        await tree.kit.settle()
        failures(tree, "lanes/0", 1)
        assert tree.residency is not None
        assert (await tree.residency.figures(1.0)).leases == 0


class _Refusing(FakeBackend):
    def insert(self, request: RowRequest) -> None:
        if request.tokens[0] == ord(POISON):
            raise ValueError("no such row can be")
        super().insert(request)


class Uninsertable(FakeEngine):
    def backend(self) -> FakeBackend:
        return _Refusing(self)


@virtual
async def test_a_request_that_a_lane_cannot_even_take_in_fails_alone() -> None:
    async with serving(batch=4, engine=Uninsertable()) as tree:
        poison = await tree.admitted("poison", "!x")
        healthy = [await tree.admitted(f"r{n}", max_tokens=40) for n in range(2)]
        end = (await drain(poison))[-1]
        assert isinstance(end, Failed)
        assert "no such row can be" in end.message
        for stream in healthy:
            assert isinstance((await drain(stream))[-1], Finished)
        await tree.kit.advance(1.0)
        failures(tree, "lanes/0", 2)
