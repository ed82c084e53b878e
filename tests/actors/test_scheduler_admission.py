"""Who is admitted, in which order, and what those are told who are not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from samovar.actors.requests import Admitted, Refused
from samovar.actors.scheduling.admission import CAPACITY_TOKENS, HANDICAP_S
from samovar.actors.scheduling.turnover import LEAST_S, MOST_S, UNKNOWN_S, Turnover
from samovar.runtime.engine.port import Finished, KvCost, Sampling

from tests.kit import virtual
from tests.kit.engine import FakeEngine

from .tree import drain, request, serving

if TYPE_CHECKING:
    from samovar.actors.requests import Admission, ServiceClass
    from samovar.runtime.engine.port import RowRequest

    from .tree import Serving

BLOCK = CAPACITY_TOKENS
KV = KvCost(token_bytes=1.0)


class Recording(FakeEngine):
    """Remembers the rows that it was given."""

    def reply(self, row: RowRequest, n: int) -> str | None:
        self.rows[row.id] = row
        return super().reply(row, n)

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.rows: dict[str, RowRequest] = {}


async def ask(tree: Serving, request_id: str, service_class: ServiceClass, content: str = "ab") -> Admission:
    asked = replace(request(request_id, content), service_class=service_class)
    return await tree.scheduler.submit(asked, 3600.0)


async def ended(admission: Admission) -> Finished:
    assert isinstance(admission, Admitted), admission
    last = (await drain(admission.stream))[-1]
    assert isinstance(last, Finished)
    return last


@virtual
async def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = FakeEngine(kv=KV, context_length=100_000)
    async with serving(engine=engine, kv_budget=2 * BLOCK) as tree:
        answer = await tree.submit("a", "x" * 100, max_tokens=2 * BLOCK)
        assert isinstance(answer, Refused)
        assert (answer.code, answer.param) == ("memory_exceeded", "max_tokens")
        for number in (100, 2 * BLOCK, 3 * BLOCK):
            assert str(number) in answer.message
        answer = await tree.submit("b", "x" * (2 * BLOCK), max_tokens=1)
        assert isinstance(answer, Refused)
        assert (answer.code, answer.param) == ("memory_exceeded", "messages")
        assert answer.retry_after_s is None
        assert (await tree.scheduler.figures(1.0)).kv_budget_bytes == 2 * BLOCK


@virtual
async def test_a_reply_whose_length_is_left_to_the_server_is_cut_to_the_memory() -> None:
    engine = FakeEngine(kv=KV, context_length=100_000)
    async with serving(engine=engine, kv_budget=BLOCK) as tree:
        admission = await tree.scheduler.submit(request("a", "x" * (BLOCK - 5), None), 60.0)
        assert (await ended(admission)).completion_tokens == 5


@virtual
async def test_the_states_of_running_requests_stay_within_the_budget() -> None:
    engine = FakeEngine(gated=True, kv=KV)
    async with serving(batch=8, queue=10, engine=engine, kv_budget=3 * BLOCK) as tree:
        waiting = [asyncio.ensure_future(tree.submit(f"r{n}")) for n in range(5)]
        await tree.kit.settle()
        figures = await tree.scheduler.figures(1.0)
        assert (figures.running, figures.queued, figures.kv_bytes) == (3, 2, 3 * BLOCK)
        engine.gated = False
        for task in waiting:
            await ended(await task)
        assert (await tree.scheduler.figures(1.0)).kv_bytes == 0


@virtual
async def test_a_huge_request_waits_its_turn_and_disturbs_nobody() -> None:
    engine = FakeEngine(gated=True, kv=KV)
    async with serving(batch=3, queue=40, engine=engine, kv_budget=3 * BLOCK) as tree:
        first = [await tree.submit(f"first{n}", max_tokens=40) for n in range(2)]
        huge = asyncio.ensure_future(tree.submit("huge", "x" * (2 * BLOCK), max_tokens=2))
        later = [asyncio.ensure_future(tree.submit(f"later{n}")) for n in range(30)]
        await tree.kit.settle()
        engine.gated = False
        for admission in first:
            assert (await ended(admission)).completion_tokens == 40
        assert (await ended(await huge)).completion_tokens == 2
        for task in later:
            await ended(await task)
        place = engine.inserted.index("huge")
        assert 2 < place < len(engine.inserted) - 10  # some passed it, most did not


@virtual
async def test_classes_go_in_order_and_a_lower_one_is_not_starved() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, queue=40, engine=engine) as tree:
        running = await tree.submit("running")
        tasks = [asyncio.ensure_future(ask(tree, "flex", "flex"))]
        await tree.kit.settle()
        for name, kind in (("d1", "default"), ("p1", "priority"), ("d2", "default"), ("p2", "priority")):
            tasks.append(asyncio.ensure_future(ask(tree, name, kind)))
            await tree.kit.settle()
        await tree.kit.advance(HANDICAP_S["flex"] + 1)
        tasks.append(asyncio.ensure_future(ask(tree, "late", "priority")))
        await tree.kit.settle()
        engine.gated = False
        await ended(running)
        for task in tasks:
            await ended(await task)
        assert engine.inserted == ["running", "p1", "p2", "d1", "d2", "flex", "late"]


@virtual
async def test_a_row_that_draws_gets_a_seed_and_others_keep_theirs() -> None:
    engine = Recording()
    async with serving(engine=engine, batch=4) as tree:
        for name, sampling in (
            ("greedy", Sampling()),
            ("drawn", Sampling(temperature=0.7)),
            ("seeded", Sampling(temperature=0.7, seed=11)),
        ):
            await ended(await tree.scheduler.submit(replace(request(name), sampling=sampling), 60.0))
        seeds = {name: row.sampling.seed for name, row in engine.rows.items()}
        assert seeds == {"greedy": None, "drawn": 7, "seeded": 11}


@virtual
async def test_those_who_are_turned_away_are_told_how_long_the_queue_will_take() -> None:
    engine = FakeEngine(gated=True)
    async with serving(batch=1, queue=3, engine=engine) as tree:
        first = await tree.submit("first")
        await tree.kit.advance(6.0)
        engine.allow(5)
        await ended(first)  # it ran six seconds
        tasks = [asyncio.ensure_future(tree.submit(f"r{n}")) for n in range(4)]
        await tree.kit.settle()
        answer = await tree.submit("one too many")
        assert isinstance(answer, Refused)
        assert answer.retry_after_s == pytest.approx(18.0, abs=0.5)
        engine.gated = False
        for task in tasks:
            await ended(await task)


def test_estimates_are_kept_within_limits() -> None:
    turnover = Turnover()
    assert turnover.retry_after_s(10, 4) == UNKNOWN_S
    turnover.ended(0.01)
    assert turnover.retry_after_s(1, 4) == LEAST_S
    for _ in range(100):
        turnover.ended(1000.0)
    assert turnover.retry_after_s(10, 4) == MOST_S
    assert turnover.rate(4) == pytest.approx(0.004)


@virtual
async def test_prompts_that_wait_for_prefill_weigh_on_a_lane_like_rows() -> None:
    engine = FakeEngine(gated=True, context_length=100_000)
    async with serving(lanes=2, batch=4, engine=engine) as tree:
        long = await tree.submit("long", "x" * 3000)
        short = [await tree.submit(f"short{n}") for n in range(3)]
        assert [len(await lane.rows(1.0)) for lane in tree.lanes] == [1, 3]
        engine.gated = False
        for admission in (long, *short):
            await ended(admission)


@virtual
async def test_three_lanes_share_requests_evenly() -> None:
    engine = FakeEngine(gated=True)
    async with serving(lanes=3, batch=4, engine=engine) as tree:
        admissions = [await tree.submit(f"r{n}") for n in range(9)]
        assert [len(await lane.rows(1.0)) for lane in tree.lanes] == [3, 3, 3]
        engine.gated = False
        for admission in admissions:
            await ended(admission)


@virtual
async def test_of_twelve_at_once_two_run_four_wait_and_six_are_told_when_to_come_back() -> None:
    """B149."""
    engine = FakeEngine(gated=True)
    async with serving(batch=2, queue=4, engine=engine) as tree:
        tasks = [asyncio.ensure_future(tree.submit(f"r{n}")) for n in range(12)]
        await tree.kit.settle()
        done = [task.result() for task in tasks if task.done()]
        assert sum(isinstance(answer, Admitted) for answer in done) == 2
        refusals = [answer for answer in done if isinstance(answer, Refused)]
        assert [answer.code for answer in refusals] == ["queue_full"] * 6
        assert all(LEAST_S <= (answer.retry_after_s or 0) <= MOST_S for answer in refusals)
        engine.gated = False
        answers = await asyncio.gather(*tasks)
        for answer in answers:
            if isinstance(answer, Admitted):
                await ended(answer)
        assert (await tree.scheduler.figures(1.0)).finished == 6


@virtual
async def test_requests_that_leave_the_queue_leave_the_others_alone() -> None:
    """B044: numbers 2 and 4 of five that wait."""
    engine = FakeEngine(gated=True)
    async with serving(batch=1, queue=5, engine=engine) as tree:
        running = await tree.submit("running")
        tasks = [asyncio.ensure_future(tree.submit(f"w{n}")) for n in range(1, 6)]
        await tree.kit.settle()
        for leaver in (tasks[1], tasks[3]):
            leaver.cancel()
        await tree.kit.settle()
        engine.gated = False
        await ended(running)
        for task in (tasks[0], tasks[2], tasks[4]):
            await ended(await task)
        assert engine.inserted == ["running", "w1", "w3", "w5"]
        figures = await tree.scheduler.figures(1.0)
        assert (figures.cancelled, figures.finished) == (2, 4)


@virtual
async def test_requests_that_come_while_the_lane_is_down_wait_for_it() -> None:
    """B073."""
    engine = FakeEngine()
    async with serving(batch=2, queue=20, engine=engine) as tree:
        await ended(await tree.submit("before"))
        tree.kit.system.crash("lanes/0")
        tasks = [asyncio.ensure_future(tree.submit(f"r{n}")) for n in range(20)]
        for task in tasks:
            await ended(await task)
        tree.kit.failure("lanes/0")
        assert engine.inserted == ["before", *(f"r{n}" for n in range(20))]


@virtual
async def test_a_row_is_told_which_tokens_end_it() -> None:
    engine = Recording()
    async with serving(engine=engine) as tree:
        asked = replace(request("a", "ab"), stop_tokens=frozenset({7}))
        await ended(await tree.scheduler.submit(asked, 60.0))
        assert engine.rows["a"].stop_tokens == {7}


def test_a_row_that_is_quantised_late_is_counted_at_its_largest() -> None:
    cost = KvCost(token_bytes=1.0, start=100, before=KvCost(token_bytes=4.0))
    assert [cost.peak_for(tokens) for tokens in (0, 50, 99)] == [0, 200, 396]
    assert cost.bytes_for(100) == 100
    assert [cost.peak_for(tokens) for tokens in (100, 396, 1000)] == [396, 396, 1000]
