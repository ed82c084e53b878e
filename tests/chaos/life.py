"""One chaos run: eight clients, crashes of lanes, scheduler and residency, clients that leave."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from samovar.actors import residency, scheduler
from samovar.actors.caching.lending import Release, Take
from samovar.actors.generation import CancelRow, LaneSteps, RowEnded, RowPublished, StartRow
from samovar.actors.requests import Admitted, Refused
from samovar.actors.scheduling.intake import Prepared, Submit
from samovar.actors.scheduling.lanewatch import LaneLooked
from samovar.actors.scheduling.seating import Borrowed
from samovar.runtime.engine.errors import LaneStepFailed
from samovar.runtime.engine.port import Cancelled, Delta, Failed, Finished, RowRequest
from samovar.runtime.kernel import ActorCrashed, ActorGone, InjectedCrash

from tests.actors.tree import request, serving

from .engine import PHASES, POISON, ChaosEngine, Planned, StepFault

if TYPE_CHECKING:
    from random import Random

    from samovar.actors.stream import RequestStream, StreamEvent

    from tests.actors.tree import Serving
    from tests.cache.turns import Turns

CLIENTS = 8
PATIENCE_S = 3600.0
LANE_KINDS = (StartRow, CancelRow, LaneSteps)
SCHEDULER_KINDS = (
    Submit,
    Prepared,
    Borrowed,
    LaneLooked,
    scheduler.Dispatch,
    scheduler.Cancel,
    RowEnded,
    RowPublished,
)
RESIDENCY_KINDS = (Take, Release, residency.Put)


@dataclass
class Client:
    """One request and what came of it. It goes after ``leaves_s`` seconds or ``leaves_at`` tokens."""

    id: str
    content: str
    max_tokens: int
    comes_s: float
    leaves_s: float | None
    leaves_at: int | None
    events: list[StreamEvent] = field(default_factory=list)
    refused: Refused | None = None
    error: Exception | None = None
    left: bool = False
    stream: RequestStream | None = None


class Life:
    """Draws a run from ``chance``, lives it, and checks what must hold of every run."""

    def __init__(self, chance: Random, turns: Turns) -> None:
        self.chance = chance
        self.turns = turns
        self.log: list[str] = []
        self.engine = ChaosEngine(
            trims=chance.random() < 0.7, prefill_tokens=chance.choice([25, 64, 1000]), context_length=10_000
        )
        self.lanes = chance.choice([1, 1, 2, 3])
        batch = chance.choice([1, 3, 8])
        self.cached = chance.random() < 0.8
        self.tree: Serving = serving(
            lanes=self.lanes,
            batch=batch,
            queue=CLIENTS,
            engine=self.engine,
            restarts=1000,
            cache=self.cached,
        )
        self.poisoned = chance.random() < 0.3
        self.clients = [self._client(n) for n in range(CLIENTS)]
        step_s = chance.choice([0.001, 0.01, 0.05])
        self.say(f"lanes {self.lanes} batch {batch} cache {self.cached} step {step_s}")
        self.crashes = [self._crash() for _ in range(chance.randint(1, 3))]
        faults = [fault for fault in self.crashes if isinstance(fault, StepFault)]
        poison = chance.choice(["prefill", "decode"]) if self.poisoned else None
        self.engine.plan(turns, lambda: step_s * chance.uniform(0.5, 1.5), faults, poison)  # type: ignore[arg-type]

    def say(self, text: str) -> None:
        self.log.append(text)

    def _client(self, n: int) -> Client:
        chance = self.chance
        shared = "shared beginning of some length. " * chance.choice([0, 1, 6])
        poison = POISON if self.poisoned and n == 2 else ""
        leaving = chance.random()
        client = Client(
            f"r{n}",
            f"{poison}{shared}{n}" + "x" * chance.choice([1, 20, 60]),
            chance.choice([1, 4, 12, 24]),
            chance.choice([0.0, 0.0, chance.uniform(0.0, 0.3)]),
            chance.uniform(0.0, 0.4) if leaving < 0.12 else None,
            chance.randint(0, 10) if 0.12 <= leaving < 0.24 else None,
        )
        self.say(f"{client}")
        return client

    def _crash(self) -> StepFault | tuple[str, float] | tuple[str, type, int]:
        chance = self.chance
        actors = ["scheduler", *(f"lanes/{n}" for n in range(self.lanes))]
        kinds: dict[str, tuple[type, ...]] = {"scheduler": SCHEDULER_KINDS}
        if self.cached:
            actors.append("residency")
            kinds["residency"] = RESIDENCY_KINDS
        path = chance.choice(actors)
        crash: StepFault | tuple[str, float] | tuple[str, type, int]
        match chance.randint(0, 3):
            case 0 | 1:
                crash = StepFault(chance.choice(PHASES), chance.randint(1, 12))
            case 2:
                crash = path, chance.uniform(0.0, 0.4)
            case _:
                crash = path, chance.choice(kinds.get(path, LANE_KINDS)), chance.randint(1, 10)
        self.say(f"{crash}")
        return crash

    # -- the run

    async def live(self) -> None:
        async with asyncio.timeout(PATIENCE_S), self.tree as tree:
            clients = [asyncio.ensure_future(self._be(client)) for client in self.clients]
            others = [asyncio.ensure_future(self._carry_out(crash)) for crash in self.crashes]
            watching = asyncio.ensure_future(self._watch(tree))
            await asyncio.gather(*clients, *others)
            watching.cancel()
            await asyncio.wait({watching})
            if not watching.cancelled():
                watching.result()
            await tree.kit.advance(10.0)
            self._check_books(tree)
            await self._check(tree)
            self._read_failures(tree)

    async def _watch(self, tree: Serving) -> None:
        """Compare the books of the actors now and then."""
        while True:
            self._check_books(tree)
            await asyncio.sleep(self.chance.uniform(0.0, 0.2))

    def _check_books(self, tree: Serving) -> None:
        running = {each.path for each in tree.kit.system.figures() if each.state == "running"}
        if "scheduler" in running:
            tree.schedulers[-1].check_integrity()
        if "residency" in running:
            tree.keepers[-1].check_integrity()

    async def _carry_out(self, crash: Any) -> None:
        match crash:
            case (str(path), float(at_s)):
                await asyncio.sleep(at_s)
                self.tree.kit.system.crash(path)
            case (str(path), type() as kind, int(nth)):
                ref = self._ref(path)
                self.tree.kit.crash_on(ref, kind, nth)
            case _:
                pass  # the engine's

    def _ref(self, path: str) -> Any:
        if path == "scheduler":
            return self.tree.scheduler.ref
        if path == "residency":
            assert self.tree.residency is not None
            return self.tree.residency.ref
        return self.tree.lanes[int(path.partition("/")[2])].ref

    async def _be(self, client: Client) -> None:
        await asyncio.sleep(client.comes_s)
        task = asyncio.ensure_future(self._ask(client))
        if client.leaves_s is not None:
            await asyncio.wait({task}, timeout=client.leaves_s)
            if not task.done():
                client.left = True
                task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _ask(self, client: Client) -> None:
        """As the HTTP handler does: whatever happens, the stream is cancelled on the way out."""
        asked = request(client.id, client.content, client.max_tokens)
        try:
            admission = await self.tree.scheduler.submit(asked, PATIENCE_S)
        except (ActorCrashed, ActorGone) as error:
            client.error = error
            return
        if not isinstance(admission, Admitted):
            client.refused = admission
            return
        stream = client.stream = admission.stream
        try:
            while not client.events or client.events[-1] is not stream.terminal:
                client.events += await stream.take()
                if client.leaves_at is not None and stream.emitted_tokens >= client.leaves_at:
                    client.left = True
                    stream.cancel()
        finally:
            stream.cancel()

    # -- what must hold

    async def _check(self, tree: Serving) -> None:
        for client in self.clients:
            self._check_client(client)
        assert len(tree.ledger) == 0, [running.id for running in tree.ledger]
        figures = await tree.scheduler.figures(1.0)
        assert (figures.running, figures.queued) == (0, 0), figures
        assert figures.admitted <= figures.finished + figures.cancelled + figures.failed, figures
        for lane in tree.lanes:
            assert await lane.rows(1.0) == ()
        if tree.residency is not None:
            assert (await tree.residency.figures(1.0)).leases == 0

    def _check_client(self, client: Client) -> None:
        row = RowRequest(client.id, list(client.content.encode()), client.max_tokens)
        text, tokens = self.engine.whole(row)
        got = "".join(event.text for event in client.events if isinstance(event, Delta))
        ends = [event for event in client.events if isinstance(event, Finished | Cancelled | Failed)]
        if client.stream is None:
            self._check_unadmitted(client)
            return
        assert text.startswith(got), (client.id, got, text)
        if not client.left:
            assert len(ends) == 1, (client.id, ends)
        assert client.stream.terminal is not None, client.id
        match client.stream.terminal:
            case Finished() as end:
                assert client.left or got == text, (client.id, got, text)
                assert tuple(client.stream.emitted) == tokens
                assert (end.prompt_tokens, end.completion_tokens) == (len(row.tokens), len(tokens))
            case Cancelled():
                assert client.left, client.id
            case Failed() as end:
                assert end.code == "lane_crashed", end
                assert sum(client.id in blamed for blamed in self.engine.blamed) >= 2, (client.id, end)
        if self.poisoned and client.content.startswith(POISON):
            assert client.left or isinstance(client.stream.terminal, Failed), client.stream.terminal

    def _check_unadmitted(self, client: Client) -> None:
        schedulers = sum(1 for failure in self.tree.kit.record.failures if failure.path in _ENDING_SCHEDULERS)
        if client.error is not None:
            assert schedulers >= 2, (client.id, client.error)  # submitted once more, not for ever
        else:
            assert client.left, (client.id, client.refused)

    def _read_failures(self, tree: Serving) -> None:
        """Whatever failed, it failed by plan."""
        for failure in tree.kit.record.failures:
            error = failure.error
            cause = error.__cause__ if isinstance(error, LaneStepFailed) else error
            assert isinstance(cause, Planned | InjectedCrash), failure
        tree.kit.record.failures.clear()
        tree.kit.record.letters.clear()
        for record in tree.kit.record.stuck:
            raise AssertionError(record)


_ENDING_SCHEDULERS = {"scheduler", "residency"}
