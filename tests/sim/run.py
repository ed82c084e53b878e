"""Simulates whole servers: ``python -m tests.sim.run --seeds 1000 [--from 0] [--jobs 2] [--clients huge]``.

One seed is one run, the same every time: clients, troubles, and the order of the threads follow from it. A
seed that fails is printed with what went wrong, made smaller, and with the command that does it again.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import structlog
from samovar.actors import monitor
from samovar.runtime import tiers

from tests.cache.turns import TurnLoop, Turns
from tests.kit.faults import PowerLoss
from tests.kit.outside import repeatable, replaced

from .journal import Spins
from .plan import GROUPS, draw
from .world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .plan import Plan

BEAT_S = 1.0
"""The monitor beats ten times a second; in years of virtual time that is all there would be to do."""
SMALLER_S = 20.0


class SimFailed(AssertionError):
    """A run went wrong."""


@dataclass
class Result:
    """What a run was. ``digest`` says all of it."""

    seed: int
    digest: str = ""
    events: int = 0
    elapsed_s: float = 0.0
    virtual_s: float = 0.0
    coverage: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    told: list[str] = field(default_factory=list)


def live(plan: Plan) -> Result:
    """Live one run. Never raises what is the run's fault: see ``failure``."""
    begun_s = time.perf_counter()
    turns = Turns(Random(plan.seed))
    result = Result(plan.seed)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with turns.installed(), replaced(monitor, BEAT_S=BEAT_S):
            _lived(plan, turns, result)
    finally:
        structlog.reset_defaults()
    result.elapsed_s = time.perf_counter() - begun_s
    return result


def _lived(plan: Plan, turns: Turns, result: Result) -> None:
    with asyncio.Runner(loop_factory=partial(TurnLoop, turns)) as runner:
        loop: Any = runner.get_loop()
        world = World(plan, turns, loop)
        try:
            with (
                repeatable(turns.now_s, world.wall, plan.seed),
                replaced(tiers, CheckpointDirectory=world.directory_made),
            ):
                runner.run(_checked(world))
                gc.collect(1)
                errors = [each for each in loop.errors if not isinstance(each.get("exception"), PowerLoss)]
                assert not errors, f"errors nobody handled: {errors}"
                assert not turns.strands, f"threads left running: {[each.name for each in turns.strands]}"
        except (Exception, Spins) as error:  # noqa: BLE001 - whatever it is, it is the run's
            turns.abandon()
            result.failure = "".join(traceback.format_exception(error)[-3:])
        result.digest, result.events = world.log.digest, world.log.count
        result.virtual_s, result.coverage, result.told = loop.time(), world.coverage, world.log.told


async def _checked(world: World) -> None:
    await world.run()
    await world.turns.loop.settle()  # type: ignore[union-attr] - pools that were closed end
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks left running: {left}"


def run(seed: int, group: str | None = None) -> Result:
    """Live the run of a seed. Raises SimFailed, which names it."""
    result = live(draw(seed, group))
    if result.failure is not None:
        raise SimFailed(described(result, group))
    return result


def described(result: Result, group: str | None) -> str:
    """Return what a person needs to know of a run that failed."""
    which = f" --clients {group}" if group else ""
    again = f"python -m tests.sim.run --from {result.seed} --seeds 1{which}"
    return "\n  ".join([f"seed {result.seed}: {again}", *result.told, result.failure or ""])


def smaller(plan: Plan, within_s: float = SMALLER_S) -> Plan:
    """Return a plan that fails as well, with fewer clients and troubles, as far as there is time."""
    until_s = time.perf_counter() + within_s
    for candidate in _halves(plan):
        if time.perf_counter() > until_s:
            break
        if live(candidate).failure is not None:
            return smaller(candidate, until_s - time.perf_counter())
    return plan


def _halves(plan: Plan) -> Iterator[Plan]:
    """Yield plans without ever smaller parts of the clients, then of the troubles."""
    for count, leave_out in (
        (len(plan.clients), lambda gone: plan.without(clients=gone)),
        (len(plan.troubles), lambda gone: plan.without(troubles=gone)),
    ):
        for size in (count >> halvings for halvings in range(count.bit_length())):
            for first in range(0, count, size):
                yield leave_out(frozenset(range(first, min(count, first + size))))


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; return whether any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--clients", choices=sorted(GROUPS), default=None)
    parser.add_argument("--shrink", action="store_true", help="make failing plans smaller")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    begun_s, failed, coverage, virtual_s = time.perf_counter(), list[int](), Counter[str](), 0.0
    for result in _results(seeds, options.clients, options.jobs):
        coverage += result.coverage
        virtual_s += result.virtual_s
        if result.failure is not None:
            failed.append(result.seed)
            print(described(result, options.clients), flush=True)  # noqa: T201
            if options.shrink:
                print("smaller:", smaller(draw(result.seed, options.clients)), flush=True)  # noqa: T201
    _report(len(seeds), time.perf_counter() - begun_s, virtual_s, coverage, failed)
    return bool(failed)


def _results(seeds: range, group: str | None, jobs: int) -> Iterator[Result]:
    one = partial(_one, group)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=4)


def _one(group: str | None, seed: int) -> Result:
    return live(draw(seed, group))


def _report(
    seeds: int, elapsed_s: float, virtual_s: float, coverage: Counter[str], failed: list[int]
) -> None:
    print("what came up, and how often:")  # noqa: T201
    for what, count in sorted(coverage.items()):
        print(f"  {count:7} {what}")  # noqa: T201
    print(  # noqa: T201
        f"{seeds} seeds, {virtual_s / 3600:.1f} virtual hours in {elapsed_s:.1f} s:"
        f" {seeds / elapsed_s:.1f} seeds/s; failed: {sorted(failed) or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())
