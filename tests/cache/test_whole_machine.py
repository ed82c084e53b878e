"""The whole cache under hypothesis: the same operations, chosen by it, so that what fails shrinks."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .life import ACTORS, FAULTS, KINDS, Life
from .states import NAMESPACES, Key
from .turns import TurnLoop, Turns
from .whole import Shape

if TYPE_CHECKING:
    from collections.abc import Awaitable

KEYS = st.tuples(st.sampled_from(NAMESPACES), st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple))
SESSIONS = st.sampled_from([None, "s"])
SHAPES = st.builds(
    Shape,
    ram_bytes=st.sampled_from([60_000, 300_000]),
    hard_bytes=st.just(400_000),
    ssd_bytes=st.sampled_from([0, 400_000]),
    write_behind=st.booleans(),
)
CRASHES = st.sampled_from([(which, kind) for which in ACTORS for kind in KINDS[which]])


class WholeLife(RuleBasedStateMachine):
    """One disk, many processes. What goes on beside the rules is part of the run: see ``Life``."""

    @initialize(shape=SHAPES, seed=st.integers(0, 1000))
    def start(self, shape: Shape, seed: int) -> None:
        self.stack = ExitStack()
        self.turns = Turns(Random(seed))
        self.stack.enter_context(self.turns.installed())
        runner = self.stack.enter_context(asyncio.Runner(loop_factory=lambda: TurnLoop(self.turns)))
        self.loop: Any = runner.get_loop()
        self.life = Life(self.turns, seed, shape)
        self.over = False
        self.orders: asyncio.Queue[tuple[Awaitable[Any], asyncio.Future[Any]] | None] = asyncio.Queue()
        self.living = self.loop.create_task(self._live())
        self.do(self.life.start())

    async def _live(self) -> None:
        """Carry out orders in one task, from the first process to the last."""
        while (order := await self.orders.get()) is not None:
            work, done = order
            try:
                done.set_result(await work)
            except BaseException as error:  # noqa: BLE001 - it is raised where the order was given
                done.set_exception(error)

    def do(self, work: Awaitable[Any]) -> Any:
        done = self.loop.create_future()
        self.orders.put_nowait((work, done))
        try:
            return self.loop.run_until_complete(done)
        except BaseException:
            self.over = True
            raise

    # -- rules

    @rule(key=KEYS, session=SESSIONS)
    def put(self, key: Key, session: str | None) -> None:
        self.life.put(key, session)

    @rule(prompt=KEYS, session=SESSIONS, hold=st.booleans())
    def take(self, prompt: Key, session: str | None, hold: bool) -> None:
        self.do(self.life.take(prompt, session, hold=hold))

    @rule(prompt=KEYS, rounds=st.integers(0, 60))
    def take_and_leave(self, prompt: Key, rounds: int) -> None:
        self.do(self.life.take_and_leave(prompt, rounds))

    @rule(prompts=st.lists(KEYS, max_size=4), crash=st.none() | CRASHES)
    def take_beside(self, prompts: list[Key], crash: tuple[str, type] | None) -> None:
        if crash is not None:
            self.life.crash_on(*crash)
        self.do(self._beside(prompts))

    async def _beside(self, prompts: list[Key]) -> None:
        for prompt in prompts:
            self.life.meanwhile(self.life.take(prompt))

    @precondition(lambda self: self.life.leases)
    @rule(place=st.integers(0, 3))
    def release(self, place: int) -> None:
        self.life.release(place)

    @rule(timeout_s=st.sampled_from([0.0, 1.0, 900.0]))
    def flush(self, timeout_s: float) -> None:
        self.do(self.life.flush(timeout_s))

    @rule(tier=st.sampled_from(["ram", "ssd", "all"]))
    def clear(self, tier: Any) -> None:
        self.do(self.life.clear(tier))

    @rule()
    def drain(self) -> None:
        self.do(self.life.drain())

    @rule(by_s=st.sampled_from([0.01, 1.0, 400.0]))
    def pass_time(self, by_s: float) -> None:
        self.do(self.life.pass_time(by_s))

    @rule(
        fault=st.sampled_from(FAULTS), often=st.sampled_from([0.3, 1.0]), times=st.sampled_from([1, 3, None])
    )
    def fault(self, fault: tuple[str, int], often: float, times: int | None) -> None:
        self.life.fault(*fault, often, times)

    @rule(mean_s=st.sampled_from([0.0, 0.01, 5.0]), free_bytes=st.sampled_from([None, 0, 100_000]))
    def trouble(self, mean_s: float, free_bytes: int | None) -> None:
        self.life.pace(mean_s)
        if free_bytes is not None:
            self.life.fill_up(free_bytes)

    @rule(which=st.sampled_from(ACTORS))
    def crash(self, which: str) -> None:
        if which == "storage/archive":
            self.life.heal()
        self.do(self.life.crash(which))

    @rule(place=st.integers(0, 5), at=st.integers(0, 1 << 17))
    def rot(self, place: int, at: int) -> None:
        self.life.rot(place, at)

    @rule(how=st.sampled_from(["stop", "kill", "power"]), seed=st.integers(0, 100))
    def restart(self, how: str, seed: int) -> None:
        self.do(self.life.restart(how, seed))

    @rule(prompt=KEYS)
    def calm(self, prompt: Key) -> None:
        self.do(self.life.calm())
        self.do(self.life.exact(prompt))

    @invariant()
    def nothing_went_wrong_unseen(self) -> None:
        if hasattr(self, "life"):
            assert not self.life.book.wrongs

    def teardown(self) -> None:
        if not hasattr(self, "life"):
            return
        try:
            if not self.over:
                self.do(self.life.finish())
        finally:
            self.orders.put_nowait(None)
            if not self.over:
                self.loop.run_until_complete(self.living)
            else:
                self.turns.abandon()
            self.stack.close()


TestWholeLife = pytest.mark.timeout(60)(WholeLife.TestCase)  # many whole lives: two seconds of work
TestWholeLife.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
