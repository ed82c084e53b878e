"""Random lives of a small tree, and what must hold in every one of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samovar.runtime.kernel import AskError, RestartLimit, SupervisorSpec

from tests.kernel.stage import STEADY, Get, Handle, Log, Note, Ping, Run, Worker, boom, worker
from tests.kit import KitSystem, virtual

PATHS = ["a", "group/b", "group/c", "group/d", "e"]
OVERFLOWS = ["reject", "wait", "drop_oldest"]


class Life:
    """One tree, the asks sent into it, and the incarnations that are there."""

    def __init__(self, overflow: Any, on_restart: Any) -> None:
        self.log = Log()
        self.live: Counter[str] = Counter()
        self.askers: list[asyncio.Task[Any]] = []
        options: dict[str, Any] = {
            "capacity": 2,
            "overflow": overflow,
            "on_restart": on_restart,
            "on_started": self._started,
            "shutdown_s": 3.0,
        }
        self.a, self.b = worker("a", self.log, **options), worker("b", self.log, **options)
        self.c = worker("c", self.log, restart="transient", **options)
        self.d = worker("d", self.log, restart="temporary", **options)
        self.e = worker("e", self.log, **options)
        limit = RestartLimit(4, 20.0)
        group = SupervisorSpec(
            "group", [self.b, self.c, self.d], strategy="rest_for_one", limit=limit, backoff=STEADY
        )
        self.root = SupervisorSpec("root", [self.a, group, self.e], limit=limit, backoff=STEADY)
        self.refs = dict(
            zip(PATHS, (each.ref for each in (self.a, self.b, self.c, self.d, self.e)), strict=True)
        )
        self.seen: dict[str, tuple[int, ...]] = {}

    async def _started(self, actor: Worker) -> None:
        path = actor.ctx.path
        self.live[path] += 1
        assert self.live[path] == 1, f"two incarnations of {path} at once"

        async def ended() -> None:
            await asyncio.sleep(0.3)
            self.live[path] -= 1

        actor.ctx.on_end(ended)

    def ask(self, path: str, message: Any, timeout_s: float = 4.0) -> None:
        self.askers.append(asyncio.ensure_future(self.refs[path].ask(message, timeout_s)))

    def check_counters(self, kit: KitSystem) -> None:
        """Counters never go backwards, and asks that are open have an asker."""
        for figures in kit.system.figures():
            lost = sum(figures.dead_letters.values())
            now = (figures.handled, figures.skipped, figures.restarts, figures.incarnation, lost)
            before = self.seen.get(figures.path, now)
            assert all(old <= new for old, new in zip(before, now, strict=True)), figures
            self.seen[figures.path] = now
        open_asks = sum(figures.open_asks for figures in kit.system.figures())
        assert open_asks == sum(not asker.done() for asker in self.askers)


async def slowly(actor: Worker) -> str:
    await asyncio.sleep(1.5)
    return "done"


async def defer(actor: Worker, message: Handle) -> None:
    actor.ctx.defer(message)


async def stop(actor: Worker) -> None:
    actor.ctx.stop()


async def act(life: Life, kit: KitSystem, what: str, path: str) -> None:  # noqa: C901 - one case an action
    ref = life.refs[path]
    match what:
        case "crash":
            kit.system.crash(path)
        case "crash group":
            kit.system.crash("group")
        case "note":
            ref.tell(Note(1))
        case "boom":
            ref.tell(Run(boom))
        case "stop":
            ref.tell(Run(stop))
        case "ping":
            life.ask(path, Ping(1))
        case "slow":
            life.ask(path, Get(slowly))
        case "defer":
            life.ask(path, Handle(defer))
        case "abandon" if life.askers:
            life.askers[-1].cancel()
        case "settle":
            await kit.settle()
        case "advance":
            await kit.advance(0.7)
        case _:
            pass


ACTIONS = [
    *("crash", "crash group", "note", "boom", "stop", "ping", "ping", "slow", "defer", "abandon"),
    *("settle", "settle", "advance", "advance"),
]
LIVES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(PATHS)), max_size=40)


@pytest.mark.timeout(60)  # many whole lives: two seconds of work
@settings(max_examples=100, deadline=None)
@given(LIVES, st.sampled_from(OVERFLOWS), st.sampled_from(["keep", "drop"]))
@example([("slow", "a"), ("ping", "a"), ("crash", "a"), ("advance", "a")], "wait", "drop")
def test_whatever_happens_every_ask_ends_and_nothing_is_left(
    actions: list[tuple[str, str]], overflow: str, on_restart: str
) -> None:
    @virtual
    async def check() -> None:
        life = Life(overflow, on_restart)
        async with KitSystem(life.root) as kit:
            assert life.log.of("started") == PATHS
            for what, path in actions:
                await act(life, kit, what, path)
                if what in ("settle", "advance"):
                    life.check_counters(kit)
            await kit.advance(4.2)  # every ask has had its deadline
            assert all(asker.done() for asker in life.askers), "an ask outlived its deadline"
            for asker in life.askers:
                assert (
                    asker.cancelled() or asker.exception() is None or isinstance(asker.exception(), AskError)
                )
            life.check_counters(kit)
            life.log.entries.clear()
            alive = [figures.path for figures in kit.system.figures() if figures.state == "running"]
            assert await kit.system.stop() == "stopped"
            stopped = life.log.of("stopped")
            assert stopped == [path for path in reversed(PATHS) if path in stopped]
            assert {path for path in alive if path in PATHS} <= set(stopped)
            for figures in kit.system.figures():
                assert (figures.state, figures.depth, figures.open_asks, figures.tasks) == ("gone", 0, 0, 0)
            assert not +life.live
            kit.record.failures.clear()
            kit.record.letters.clear()

    check()
