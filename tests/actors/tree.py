"""Lanes and a scheduler over the scripted engine, as every test of this folder needs them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from samovar.actors.caching.tiers import ResidencyCounts, ResidencyOptions
from samovar.actors.generation import GenerationActor, Lane, LaneTotals
from samovar.actors.requests import Admission, Admitted, GenerationRequest
from samovar.actors.residency import Residency, ResidencyActor, ResidencyMessage
from samovar.actors.scheduler import Scheduler, SchedulerActor
from samovar.actors.scheduling.ledger import Ledger
from samovar.actors.scheduling.options import SchedulerOptions
from samovar.runtime.engine.port import Delta
from samovar.runtime.kernel import BlockingPool, ChildSpec, RestartLimit, SupervisorSpec

from tests.kit import KitSystem
from tests.kit.checkpoints import FakeGauge
from tests.kit.engine import FakeEngine
from tests.kit.prompts import chat

if TYPE_CHECKING:
    from samovar.actors.stream import RequestStream, StreamEvent

    from tests.kit.checkpoints import FakeDisk


@dataclass
class Serving:
    kit: KitSystem
    engine: FakeEngine
    scheduler: Scheduler
    lanes: list[Lane]
    pool: BlockingPool
    ledger: Ledger
    residency: Residency | None = None
    schedulers: list[SchedulerActor] = field(default_factory=list)
    keepers: list[ResidencyActor] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        await self.kit.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.engine.gated = False
        self.pool.close()
        await self.kit.__aexit__(*error)  # type: ignore[arg-type]

    async def submit(self, request_id: str, content: str = "ab", max_tokens: int = 3) -> Admission:
        return await self.scheduler.submit(request(request_id, content, max_tokens), 60.0)

    async def admitted(self, request_id: str, content: str = "ab", max_tokens: int = 3) -> RequestStream:
        answer = await self.submit(request_id, content, max_tokens)
        assert isinstance(answer, Admitted), answer
        return answer.stream


def request(request_id: str, content: str = "ab", max_tokens: int | None = 3) -> GenerationRequest:
    return GenerationRequest(request_id, chat(content), max_tokens=max_tokens)


def serving(
    *,
    lanes: int = 1,
    batch: int = 2,
    queue: int = 4,
    engine: FakeEngine | None = None,
    restarts: int = 5,
    cache: bool = False,
    ssd: FakeDisk | None = None,
    kv_budget: int = 0,
) -> Serving:
    """Return lanes and a scheduler; with ``cache`` over a RAM tier, with ``ssd`` over a disk tier too."""
    engine = engine or FakeEngine()
    pool = BlockingPool("tokenise", 1, limit=100)
    schedulers: list[SchedulerActor] = []
    keepers: list[ResidencyActor] = []
    keeper = _residency(ssd, keepers) if cache else None
    residency = None if keeper is None else Residency(keeper.ref)
    lane_specs = [
        ChildSpec(
            str(n),
            partial(GenerationActor, engine.backend, LaneTotals(), residency),
            capacity=100,
            on_restart="drop",
        )
        for n in range(lanes)
    ]
    faces = [Lane(spec.ref) for spec in lane_specs]
    options = SchedulerOptions(batch=batch, queue=queue, max_tokens=16, kv_budget_bytes=kv_budget)
    ledger = Ledger()

    def scheduling() -> SchedulerActor:
        schedulers.append(
            SchedulerActor(
                faces,
                engine.codec(),
                engine.info(),
                pool,
                options,
                ledger=ledger,
                residency=residency,
                chance=lambda: 7,
            )
        )
        return schedulers[-1]

    scheduler = ChildSpec("scheduler", scheduling, capacity=100, on_restart="drop")
    limit = RestartLimit(restarts, 60.0)
    root = SupervisorSpec(
        "root",
        [
            *([] if keeper is None else [keeper]),
            SupervisorSpec("lanes", lane_specs, limit=limit),
            scheduler,
        ],
        strategy="rest_for_one",
        limit=limit,
    )
    return Serving(
        KitSystem(root), engine, Scheduler(scheduler.ref), faces, pool, ledger, residency, schedulers, keepers
    )


def _residency(ssd: FakeDisk | None, keepers: list[ResidencyActor]) -> ChildSpec[ResidencyMessage]:
    options = ResidencyOptions(1 << 30, 1 << 30, min_tokens=4)
    counts = ResidencyCounts()

    def keeping() -> ResidencyActor:
        keepers.append(ResidencyActor(ssd, ssd, None, FakeGauge(), options, counts=counts))
        return keepers[-1]

    return ChildSpec("residency", keeping, capacity=1000)


async def drain(stream: RequestStream) -> list[StreamEvent]:
    """Read a stream to its end."""
    events: list[StreamEvent] = []
    while not events or events[-1] is not stream.terminal:
        events += await stream.take()
    return events


def text(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))
