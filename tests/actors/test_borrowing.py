"""The scheduler, lanes and residency together: what is borrowed, given back, waited for and published."""

from __future__ import annotations

import asyncio

import pytest
from samovar.actors.requests import Admitted, GenerationRequest, PrefixReuse
from samovar.runtime.engine.errors import LaneStepFailed
from samovar.runtime.engine.port import Cancelled, Failed, Finished
from samovar.storage.tokens import TokenIds

from tests.kit import virtual
from tests.kit.checkpoints import FakeDisk
from tests.kit.engine import FakeEngine
from tests.kit.prompts import chat
from tests.kit.states import FakeState

from .tree import Serving, drain, serving

PROMPT = "a prompt of some length"
WHOLE = len(PROMPT) - 1
SYSTEM = "system " * 40


async def reuse_of(tree: Serving, request_id: str, content: str) -> PrefixReuse:
    answer = await tree.submit(request_id, content)
    assert isinstance(answer, Admitted)
    events = await drain(answer.stream)
    assert isinstance(events[-1], Finished), events[-1]
    assert events[-1].cached_tokens == answer.reuse.cached_tokens
    return answer.reuse


async def leases(tree: Serving) -> int:
    assert tree.residency is not None
    await tree.kit.settle()
    figures = await tree.residency.figures(1.0)
    return figures.leases + figures.waiting + figures.restoring


async def in_flight(tree: Serving) -> None:
    """Wait until the lane has a row."""
    while not tree.engine.inserted:
        await tree.kit.settle()


@virtual
async def test_without_a_cache_nothing_is_borrowed_and_the_reason_says_so() -> None:
    async with serving() as tree:
        for name in "ab":
            assert (await reuse_of(tree, name, PROMPT)).miss_reason == "cache_off"
        assert tree.engine.prefilled == 2 * WHOLE


@virtual
async def test_a_repeated_prompt_borrows_all_but_its_last_token_the_moment_the_first_ends() -> None:
    async with serving(cache=True) as tree:
        first = await reuse_of(tree, "a", PROMPT)
        assert (first.tier, first.cached_tokens, first.miss_reason) == ("none", 0, "empty")
        again = await reuse_of(tree, "b", PROMPT)
        assert (again.tier, again.cached_tokens) == ("ram", WHOLE)
        assert tree.engine.prefilled == WHOLE
        assert await leases(tree) == 0


@virtual
async def test_a_wrong_state_fails_its_request_and_no_other() -> None:
    async with serving(cache=True) as tree:
        await reuse_of(tree, "a", PROMPT)
        assert tree.residency is not None
        taken = await tree.residency.take(tokens_of(PROMPT), "", None, None, tree.scheduler.ref, 1.0)
        assert taken.lease is not None
        state = taken.lease.checkpoint
        assert isinstance(state, FakeState)
        state.data[1][0] ^= 1
        tree.residency.release(taken.lease.id)
        answer = await tree.submit("b", PROMPT)
        assert isinstance(answer, Admitted)
        end = (await drain(answer.stream))[-1]
        assert isinstance(end, Failed)
        assert end.code == "wrong_state"
        assert (await reuse_of(tree, "c", "something else entirely")).tier == "none"
        assert await leases(tree) == 0


def tokens_of(content: str) -> TokenIds:
    return TokenIds.of(FakeEngine().codec().encode(content))


@virtual
async def test_leases_end_with_a_cancelled_row() -> None:
    engine = FakeEngine()
    async with serving(cache=True, engine=engine) as tree:
        await reuse_of(tree, "a", PROMPT)
        engine.gated = True
        stream = await tree.admitted("b", PROMPT, max_tokens=100)
        assert await leases(tree) == 1
        stream.cancel()
        assert isinstance((await drain(stream))[-1], Cancelled)
        assert await leases(tree) == 0


@virtual
async def test_leases_end_with_rows_that_lost_their_lane_and_its_states_stay() -> None:
    engine = FakeEngine()
    async with serving(cache=True, engine=engine) as tree:
        await reuse_of(tree, "a", PROMPT)
        engine.gated = True
        stream = await tree.admitted("b", PROMPT, max_tokens=100)
        engine.crash = RuntimeError("the model broke")
        engine.gated = False
        assert isinstance((await drain(stream))[-1], Finished)
        assert await leases(tree) == 0
        assert (await reuse_of(tree, "c", PROMPT)).tier == "ram"
        tree.kit.failure("lanes/0", LaneStepFailed)


@virtual
async def test_leases_end_with_the_scheduler_that_held_them() -> None:
    engine = FakeEngine()
    async with serving(cache=True, engine=engine) as tree:
        await reuse_of(tree, "a", PROMPT)
        engine.gated = True
        stream = await tree.admitted("b", PROMPT, max_tokens=3)
        assert await leases(tree) == 1
        tree.kit.system.crash(tree.scheduler.ref.path)
        await tree.kit.advance(5.0)
        tree.kit.failure("scheduler")
        assert await leases(tree) == 0
        engine.gated = False
        assert isinstance((await drain(stream))[-1], Finished)
        assert (await reuse_of(tree, "c", PROMPT)).tier == "ram"
        assert await leases(tree) == 0


@virtual
async def test_a_client_that_leaves_while_its_prefix_is_restored_takes_the_restore_with_it() -> None:
    disk = FakeDisk()
    state = FakeState.of(tokens_of(PROMPT), 16, trims=True)
    disk.hold(state)  # type: ignore[arg-type]
    disk.open.clear()
    async with serving(cache=True, ssd=disk, batch=1) as tree:
        leaver = asyncio.ensure_future(tree.submit("leaver", PROMPT))
        while not disk.restores:
            await tree.kit.settle()
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        assert await leases(tree) == 0
        assert disk.given_up
        figures = await tree.scheduler.figures(1.0)
        assert (figures.running, figures.queued, figures.cancelled) == (0, 0, 1)
        disk.open.set()
        assert (await reuse_of(tree, "next", "quite another prompt")).tier == "none"


@virtual
async def test_requests_with_one_long_beginning_prefill_it_once() -> None:
    """B146: the others wait for the first one's state; cancelling it strands nobody."""
    engine = FakeEngine(gated=True)
    async with serving(cache=True, batch=8, queue=16, engine=engine) as tree:
        asking = [asyncio.ensure_future(tree.submit(f"r{n}", f"{SYSTEM}{n}?")) for n in range(8)]
        await in_flight(tree)
        assert engine.inserted == ["r0"]
        engine.gated = False
        answers = await asyncio.gather(*asking)
        for answer in answers:
            assert isinstance(answer, Admitted)
            assert isinstance((await drain(answer.stream))[-1], Finished)
        cached = [answer.reuse.cached_tokens for answer in answers if isinstance(answer, Admitted)]
        assert cached[0] == 0
        assert min(cached[1:]) >= len(SYSTEM)
        assert engine.prefilled < 2 * len(SYSTEM)


@virtual
async def test_cancelling_the_one_that_others_wait_for_strands_nobody() -> None:
    engine = FakeEngine(gated=True, prefill_tokens=8)
    async with serving(cache=True, batch=8, queue=16, engine=engine) as tree:
        first = asyncio.ensure_future(tree.admitted("first", f"{SYSTEM}1?"))
        await in_flight(tree)
        others = [asyncio.ensure_future(tree.submit(f"r{n}", f"{SYSTEM}{n}?")) for n in range(3)]
        await tree.kit.settle()
        assert engine.inserted == ["first"]
        (await first).cancel()
        engine.gated = False
        for answer in await asyncio.gather(*others):
            assert isinstance(answer, Admitted)
            assert isinstance((await drain(answer.stream))[-1], Finished)


@virtual
async def test_a_residency_that_crashes_costs_a_hit_and_nothing_else() -> None:
    async with serving(cache=True) as tree:
        await reuse_of(tree, "a", PROMPT)
        assert tree.residency is not None
        await tree.kit.settle()  # what is still in its mailbox would survive
        tree.kit.system.crash(tree.residency.ref.path)
        await tree.kit.advance(5.0)
        tree.kit.failure("residency")
        assert (await reuse_of(tree, "b", PROMPT)).tier == "none"
        assert (await reuse_of(tree, "c", PROMPT)).tier == "ram"


@virtual
async def test_a_session_finds_its_last_state() -> None:
    async with serving(cache=True) as tree:
        for turn, content in enumerate((PROMPT, PROMPT + " and more")):
            ask = GenerationRequest(f"t{turn}", chat(content), max_tokens=3, session_id="chat")
            answer = await tree.scheduler.submit(ask, 60.0)
            assert isinstance(answer, Admitted)
            await drain(answer.stream)
        assert answer.reuse.cached_tokens >= len(PROMPT)
        assert tree.residency is not None
        figures = await tree.residency.figures(1.0)
        assert (figures.sessions, figures.session_hits) == (1, 1)


@virtual
async def test_a_drain_waits_for_a_request_that_is_borrowing() -> None:
    disk = FakeDisk()
    disk.hold(FakeState.of(tokens_of(PROMPT), 16, trims=True))  # type: ignore[arg-type]
    disk.open.clear()
    async with serving(cache=True, ssd=disk) as tree:
        asking = asyncio.ensure_future(tree.submit("a", PROMPT))
        while not disk.restores:
            await tree.kit.settle()
        draining = asyncio.ensure_future(tree.scheduler.drain(60.0))
        await tree.kit.settle()
        assert not draining.done()
        disk.open.set()
        answer = await asking
        assert isinstance(answer, Admitted)
        await drain(answer.stream)
        await draining
