"""Whose prompt is prefilled next, and how much of it in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from samovar.runtime.engine.batching.chunks import (
    FIRST_CHUNK,
    FIRST_FULL_CHUNK,
    FULL_PASS_S,
    SMALLEST_CHUNK,
    ChunkSizer,
    PassBudget,
    PassCost,
)
from samovar.runtime.engine.batching.pace import RateWindow, StepMeter
from samovar.runtime.engine.batching.prefill import ELDER_TURN, PrefillQueue

from tests.engine.batching.test_batch import make_row

if TYPE_CHECKING:
    from samovar.runtime.engine.batching.rows import Row


def queue_of(*lengths: int) -> tuple[PrefillQueue, list[Row]]:
    queue = PrefillQueue()
    rows = [make_row(str(place), length + 1) for place, length in enumerate(lengths)]
    for row in rows:
        queue.add(row)
    return queue, rows


def test_the_shortest_prompt_goes_first_and_does_not_wait_for_part_of_another() -> None:
    queue, (long, short, shorter) = queue_of(1000, 20, 10)
    assert queue.plan(PassBudget(100)) == [(shorter, 10), (short, 20)]
    queue.discard([short, shorter])
    assert queue.plan(PassBudget(100)) == [(long, 100)]


def test_prompts_that_no_budget_completes_take_turns_of_their_own() -> None:
    queue, (first, second) = queue_of(50, 50)
    assert queue.plan(PassBudget(40)) == [(first, 40)]
    first.prefilled += 40
    assert queue.plan(PassBudget(40)) == [(first, 10)]
    queue.discard([first])
    assert queue.plan(PassBudget(60)) == [(second, 50)]


def test_a_stream_of_short_prompts_does_not_starve_a_long_one() -> None:
    queue, (long,) = queue_of(400)
    passes = 0
    while long.remaining:
        passes += 1
        queue.add(make_row(f"s{passes}", 51))
        turns = queue.plan(PassBudget(50))
        for row, count in turns:
            row.prefilled += count
        queue.discard([row for row, _ in turns if not row.remaining])
    assert passes <= 8 * ELDER_TURN


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    queue, (long,) = queue_of(10_000)
    for arrival in range(3):
        [(row, count)] = queue.plan(PassBudget(100))
        assert row is long
        row.prefilled += count
        short = make_row(f"s{arrival}", 51)
        queue.add(short)
        waited = 0
        while short.remaining:
            for row, count in queue.plan(PassBudget(50)):
                row.prefilled += count
            waited += 1
        queue.discard([short])
        assert waited <= 2


def test_a_prompt_of_one_token_needs_no_budget() -> None:
    queue, (row,) = queue_of(0)
    assert queue.plan(PassBudget(1)) == [(row, 0)]


# --- how much in one pass -------------------------------------------------------------------------

GAP_S = 0.25
EACH, ATTENTION = 0.006, 0.000_001


def takes(tokens: int, context: int, speed: float = 1.0) -> float:
    """What a pass takes on a machine like a small CPU; ``speed`` 0.5 is half as fast."""
    return tokens * (EACH + ATTENTION * (context + tokens / 2)) / speed


def prefill(
    sizer: ChunkSizer, prompt: int, *, decoding: bool, noise: list[float] | None = None, speed: float = 1.0
) -> list[float]:
    """Prefill a prompt and return what its passes took."""
    passes, context = list[float](), 0
    while context < prompt:
        tokens = sizer.budget(decoding=decoding, step_s=0.05).grant(context, prompt - context)
        assert tokens > 0
        factor = noise[len(passes) % len(noise)] if noise else 1.0
        seconds = takes(tokens, context, speed) * factor
        sizer.record(tokens, context + tokens / 2, seconds)
        passes.append(seconds)
        context += tokens
    return passes


def test_the_first_chunks_are_small_and_grow() -> None:
    assert ChunkSizer(2048, GAP_S).budget(decoding=True, step_s=0.0).grant(0, 5000) == FIRST_CHUNK
    assert ChunkSizer(2048, GAP_S).budget(decoding=False, step_s=0.0).grant(0, 5000) == FIRST_FULL_CHUNK
    assert ChunkSizer(20, GAP_S).budget(decoding=False, step_s=0.0).grant(0, 5000) == 20
    sizer = ChunkSizer(2048, GAP_S)
    sizes = list[int]()
    for _ in range(8):
        sizes.append(sizer.budget(decoding=False, step_s=0.0).grant(0, 5000))
        sizer.record(sizes[-1], sizes[-1] / 2, sizes[-1] * 1e-5)
    assert sizes == [128, 256, 512, 1024, 2048, 2048, 2048, 2048]


@pytest.mark.parametrize("noise", [None, [1.0, 1.3, 0.8, 1.1, 0.9]])
def test_no_pass_of_a_long_prompt_holds_a_stream_up(noise: list[float] | None) -> None:
    passes = prefill(ChunkSizer(512, GAP_S), 2000, decoding=True, noise=noise)
    assert max(passes[1:-1]) + 0.05 <= GAP_S * (1.5 if noise else 1.1)
    assert passes[-1] + 0.05 <= GAP_S * 1.5
    assert sum(passes) / len(passes) + 0.05 > GAP_S * 0.7, "passes are needlessly small"


def test_a_pass_that_no_stream_waits_for_is_bounded_too() -> None:
    passes = prefill(ChunkSizer(512, GAP_S), 6000, decoding=False)
    assert max(passes[1:-1]) <= FULL_PASS_S * 1.1
    assert passes[-1] <= FULL_PASS_S * 1.3
    assert sorted(passes)[len(passes) // 2] > FULL_PASS_S * 0.7


def test_a_slower_machine_is_followed_within_a_few_passes() -> None:
    sizer = ChunkSizer(512, GAP_S)
    prefill(sizer, 2000, decoding=True)
    passes = prefill(sizer, 2000, decoding=True, speed=0.6)
    assert max(passes[4:]) <= GAP_S * 1.3
    faster = prefill(sizer, 4000, decoding=True)
    assert sum(faster[-5:]) / 5 > GAP_S * 0.5


def test_one_odd_pass_does_not_decide_the_next_chunk() -> None:
    sizer = ChunkSizer(2048, GAP_S)
    for _ in range(10):
        sizer.record(1000, 500, 1.0)
    usual = sizer.budget(decoding=True, step_s=0.0).grant(0, 5000)
    sizer.record(1000, 500, 100.0)
    assert sizer.budget(decoding=True, step_s=0.0).grant(0, 5000) > usual * 0.6


def test_a_first_pass_that_waited_for_kernels_is_forgotten() -> None:
    sizer = ChunkSizer(2048, GAP_S)
    sizer.record(128, 64, 5.0)
    sizer.record(SMALLEST_CHUNK, SMALLEST_CHUNK / 2, SMALLEST_CHUNK * 1e-5)
    assert sizer.budget(decoding=False, step_s=0.0).grant(0, 5000) == 256
    later = ChunkSizer(2048, GAP_S)
    for _ in range(10):
        later.record(128, 64, 5.0)
    later.record(SMALLEST_CHUNK, SMALLEST_CHUNK / 2, SMALLEST_CHUNK * 1e-5)
    assert later.budget(decoding=True, step_s=0.0).grant(0, 5000) == SMALLEST_CHUNK


def test_a_small_rest_is_not_left_for_a_pass_of_its_own() -> None:
    sizer = ChunkSizer(512, GAP_S)
    for _ in range(5):
        sizer.record(64, 32, 64 * 0.0025)
    for wanted, granted in ((99, 99), (125, 125), (170, 96)):
        fits = sizer.budget(decoding=True, step_s=0.0).grant(0, wanted)
        assert fits == pytest.approx(granted, abs=5), wanted


def test_slow_steps_leave_a_pass_half_a_step() -> None:
    sizer = ChunkSizer(512, GAP_S)
    for _ in range(5):
        sizer.record(64, 32, 64 * EACH)
    granted = sizer.budget(decoding=True, step_s=0.5).grant(0, 500)
    assert granted * EACH == pytest.approx(0.25, rel=0.1)


def test_what_is_too_slow_for_any_gap_still_gets_somewhere() -> None:
    sizer = ChunkSizer(512, GAP_S)
    for _ in range(5):
        sizer.record(SMALLEST_CHUNK, 8, 20.0)
    budget = sizer.budget(decoding=True, step_s=1.0)
    assert budget.grant(0, 500) == SMALLEST_CHUNK
    assert budget.grant(0, 500) == 0


def test_the_cost_of_attention_is_told_from_the_cost_of_a_token() -> None:
    cost = PassCost()
    for context in range(0, 4000, 200):
        cost.record(100, context + 50, takes(100, context))
    assert cost.seconds(64, 6000) == pytest.approx(takes(64, 6000), rel=0.1)
    assert cost.seconds(64, 0) == pytest.approx(takes(64, 0), rel=0.1)
    assert takes(cost.tokens_within(0.2, 3000), 3000) == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("gaps", [(0.02, 0.27), (0.27, 0.02)], ids=["launch returns", "launch computes"])
def test_the_meter_tells_a_pass_from_the_steps_around_it(gaps: tuple[float, float]) -> None:
    meter = StepMeter()
    meter.started(0.0)
    now_s = 0.0
    for _ in range(2):
        now_s += 0.02
        assert meter.read(4, now_s) == 0.0
    for _ in range(5):
        now_s += gaps[0]
        assert meter.read(4, now_s, running=True) == 0.0
        now_s += gaps[1]
        assert meter.read(4, now_s, running=True, passed=True) == pytest.approx(0.25)
    assert meter.plain_s == pytest.approx(0.02)
    p50, p99 = meter.window.percentiles_ms()
    assert (p50, p99) == (pytest.approx(20), pytest.approx(270))
    assert meter.window.per_second == pytest.approx(12 * 4 / now_s)


def test_the_meter_follows_steps_that_grow_during_passes() -> None:
    meter = StepMeter()
    meter.started(0.0)
    now_s = 0.0
    for turn in range(40):
        step_s = 0.02 if turn < 10 else 0.06
        now_s += step_s
        meter.read(1, now_s, running=True)
        now_s += step_s + 0.2
        pass_s = meter.read(8, now_s, running=True, passed=True)
    assert meter.plain_s == pytest.approx(0.06, rel=0.02)
    assert pass_s == pytest.approx(0.2, rel=0.02)


def test_a_pass_whose_first_gap_nobody_saw() -> None:
    meter = StepMeter()
    meter.started(0.0)
    meter.read(1, 0.02)
    assert meter.read(1, 0.24, running=True, passed=True) == pytest.approx(0.2)


def test_a_window_without_records_is_zero() -> None:
    window = RateWindow()
    assert (window.per_second, window.percentiles_ms()) == (0.0, (0.0, 0.0))
