from __future__ import annotations

import asyncio

import pytest
from samovar.actors.requests import Refused
from samovar.actors.scheduling.intake import Submit
from samovar.runtime.engine.errors import ModelUnreadable
from samovar.runtime.engine.port import Cancelled, Failed, Finished
from samovar.runtime.kernel import ActorCrashed, AskTimeout, StartFailed

from tests.kit import virtual
from tests.kit.engine import FakeEngine

from .tree import drain, request, serving, text


@virtual
async def test_a_prompt_beyond_the_context_is_refused_by_name() -> None:
    async with serving(engine=FakeEngine(context_length=10)) as tree:
        answer = await tree.submit("a", "x" * 10)
        assert isinstance(answer, Refused)
        assert (answer.code, answer.param) == ("context_length_exceeded", "messages")
        assert "10 tokens" in answer.message


@virtual
async def test_max_tokens_ends_at_the_context() -> None:
    async with serving(engine=FakeEngine(context_length=10)) as tree:
        events = await drain(await tree.admitted("a", "x" * 8, max_tokens=100))
        assert isinstance(events[-1], Finished)
        assert events[-1].completion_tokens == 2


@virtual
async def test_messages_that_the_template_refuses_are_refused() -> None:
    async with serving() as tree:
        answer = await tree.submit("a", "!bad")
        assert isinstance(answer, Refused)
        assert (answer.code, answer.param) == ("template_error", "messages")


@virtual
async def test_messages_that_render_to_nothing_are_refused() -> None:
    async with serving() as tree:
        answer = await tree.submit("a", "")
        assert isinstance(answer, Refused)
        assert answer.code == "empty_prompt"


@virtual
async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, queue=2, engine=engine) as tree:
        await tree.admitted("running")
        waiting = [asyncio.ensure_future(tree.admitted(f"w{n}")) for n in range(2)]
        await tree.kit.settle()
        answer = await tree.submit("one too many")
        assert isinstance(answer, Refused)
        assert answer.code == "queue_full"
        assert answer.retry_after_s is not None
        engine.gated = False
        for task in waiting:
            assert isinstance((await drain(await task))[-1], Finished)


@virtual
async def test_more_requests_than_rows_are_served_in_order() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=2, queue=10, engine=engine) as tree:
        admissions = [asyncio.ensure_future(tree.admitted(f"r{n}")) for n in range(6)]
        while len(engine.inserted) < 2:  # both first rows are in before the first step
            await tree.kit.settle()
        engine.gated = False
        for stream in await asyncio.gather(*admissions):
            events = await drain(stream)
            assert text(events) == "97.0 97.1 97.2 "
            assert isinstance(events[-1], Finished)
        assert tree.engine.inserted == [f"r{n}" for n in range(6)]
        figures = await tree.scheduler.figures(1.0)
        assert (figures.admitted, figures.finished, figures.running, figures.queued) == (6, 6, 0, 0)
        assert (await tree.lanes[0].figures(1.0)).peak_rows == 2


@virtual
async def test_requests_go_to_the_lane_with_the_fewest_rows() -> None:
    engine = FakeEngine(gated=True)
    async with serving(lanes=2, batch=2, engine=engine) as tree:
        streams = [await tree.admitted(f"r{n}") for n in range(4)]
        rows = [len(await lane.rows(1.0)) for lane in tree.lanes]
        assert rows == [2, 2]
        engine.gated = False
        for stream in streams:
            await drain(stream)


@virtual
async def test_a_client_that_leaves_the_queue_is_skipped() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, queue=4, engine=engine) as tree:
        running = await tree.admitted("running")
        leaver = asyncio.ensure_future(tree.submit("leaver"))
        stayer = asyncio.ensure_future(tree.admitted("stayer"))
        await tree.kit.settle()
        leaver.cancel()
        await tree.kit.settle()
        engine.gated = False
        await drain(running)
        await drain(await stayer)
        assert tree.engine.inserted == ["running", "stayer"]
        assert (await tree.scheduler.figures(1.0)).cancelled == 1


@virtual
async def test_waiting_for_a_row_ends_at_the_deadline() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, engine=engine) as tree:
        await tree.admitted("running")
        with pytest.raises(AskTimeout):
            await tree.scheduler.submit(request("late"), 1.0)
        assert tree.engine.inserted == ["running"]


@virtual
async def test_cancelling_frees_the_row_and_ends_the_stream_once() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, engine=engine) as tree:
        stream = await tree.admitted("a", max_tokens=100)
        engine.allow(3)
        stream.cancel()
        events = await drain(stream)
        assert events[-1] == Cancelled("a")
        assert sum(isinstance(event, Cancelled | Finished | Failed) for event in events) == 1
        stream.cancel()  # harmless after the end
        await tree.kit.settle()
        figures = await tree.scheduler.figures(1.0)
        assert (figures.running, figures.cancelled) == (0, 1)
        engine.gated = False
        await drain(await tree.admitted("next"))


@virtual
async def test_a_scheduler_crash_loses_no_request() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, queue=4, engine=engine) as tree:
        running = await tree.admitted("running")
        queued = asyncio.ensure_future(tree.admitted("queued"))
        await tree.kit.settle()
        tree.kit.system.crash("scheduler")
        await tree.kit.advance(1.0)
        tree.kit.failure("scheduler")
        figures = await tree.scheduler.figures(1.0)
        assert (figures.running, figures.queued, figures.admitted) == (1, 1, 1)
        engine.gated = False
        assert isinstance((await drain(running))[-1], Finished)
        assert isinstance((await drain(await queued))[-1], Finished)


@virtual
async def test_a_scheduler_that_crashes_on_the_same_request_twice_fails_it() -> None:
    async with serving() as tree:
        tree.kit.crash_on(tree.scheduler.ref, Submit, 1)
        tree.kit.crash_on(tree.scheduler.ref, Submit, 2)
        with pytest.raises(ActorCrashed):
            await tree.submit("a")
        await tree.kit.advance(1.0)
        for _ in range(2):
            tree.kit.failure("scheduler")
            tree.kit.dead_letter("scheduler", "crashed")
        await drain(await tree.admitted("b"))


@virtual
async def test_draining_refuses_new_requests_and_waits_for_the_old() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, engine=engine) as tree:
        running = await tree.admitted("running")
        draining = asyncio.ensure_future(tree.scheduler.drain(30.0))
        await tree.kit.settle()
        answer = await tree.submit("late")
        assert isinstance(answer, Refused)
        assert answer.code == "draining"
        assert not draining.done()
        engine.gated = False
        await drain(running)
        await draining


@virtual
async def test_a_drain_that_takes_too_long_says_so() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, engine=engine) as tree:
        await tree.admitted("running")
        with pytest.raises(AskTimeout):
            await tree.scheduler.drain(1.0)


@virtual
async def test_a_model_that_cannot_be_loaded_stops_the_start() -> None:
    engine = FakeEngine(open_error=ModelUnreadable("config.json is damaged"))
    tree = serving(engine=engine)
    with pytest.raises(StartFailed, match=r"config\.json is damaged") as raised:
        await tree.kit.system.start()
    assert isinstance(raised.value.__cause__, ModelUnreadable)
    await tree.kit.system.stop()
    tree.pool.close()


@virtual
async def test_a_client_that_leaves_in_the_moment_it_is_admitted_gives_its_row_back() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, engine=engine) as tree:
        leaver = asyncio.ensure_future(tree.submit("leaver", max_tokens=1000))
        await asyncio.sleep(0)
        while not leaver._fut_waiter.done():  # noqa: ASYNC110 - the round between answer and waking
            await asyncio.sleep(0)
        leaver.cancel()  # answered, but not awake yet
        await tree.kit.advance(0.1)
        assert leaver.cancelled()
        figures = await tree.scheduler.figures(1.0)
        assert (figures.admitted, figures.cancelled, figures.running) == (1, 1, 0)
