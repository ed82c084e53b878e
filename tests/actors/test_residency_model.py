"""Residency against a naive model: random operations under virtual time, one seed a run.

The model is a plain list that is searched and sorted from end to end. After every operation RAM must hold
exactly what the model holds, every answer must be as long as the best in either tier, and all books agree.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from samovar.actors.archive import Withdrawn
from samovar.actors.durability import DirtyCheckpoint, NotOwed, Persisted, PersistFailed
from samovar.actors.residency import Pressure
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.storage.container_errors import CorruptTensor
from samovar.storage.tokens import TokenIds

from tests.kit.checkpoints import FakeCheckpoint, checkpoint
from tests.kit.loop import virtual

from .cache_tree import Cache, Dropped, Reset

if TYPE_CHECKING:
    from samovar.actors.caching.tiers import Taken
    from samovar.storage.entry import StoredEntry
    from samovar.storage.index import Match

MAX_BYTES, HARD_MAX_BYTES = 100, 200
IDLE_S = 1000.0
STEPS = 300


@dataclass(eq=False)
class Held:
    """An entry as the model sees it."""

    ids: list[int]
    namespace: str
    trimmable: bool
    reusable_from: int
    size: int
    used: int
    durable: bool = False
    leases: int = 0
    sessions: set[str] = field(default_factory=set)

    def serves(self, ids: list[int], limit: int) -> int:
        common = next((n for n, (a, b) in enumerate(zip(self.ids, ids, strict=False)) if a != b), None)
        common = min(len(self.ids), len(ids)) if common is None else common
        length = min(common, limit)
        if length == len(self.ids) or (self.trimmable and self.reusable_from <= length):
            return length
        return len(self.ids) if len(self.ids) <= length else 0


class Model:
    """RAM as a list, with the rules of DESIGN §5 spelt out."""

    def __init__(self) -> None:
        self.entries: list[Held] = []
        self.lost = 0
        self.clock = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def find(self, ids: list[int], namespace: str) -> Held | None:
        return next((e for e in self.entries if (e.ids, e.namespace) == (ids, namespace)), None)

    def latest(self, session: str, namespace: str) -> Held | None:
        return next((e for e in self.entries if session in e.sessions and e.namespace == namespace), None)

    def best(self, ids: list[int], namespace: str) -> int:
        limit = len(ids) - 1
        return max((e.serves(ids, limit) for e in self.entries if e.namespace == namespace), default=0)

    def put(self, new: Held, session: str | None) -> None:
        for old in list(self.entries):
            if old.namespace != new.namespace or old.ids != new.ids[: len(old.ids)]:
                continue
            duplicate = len(old.ids) == len(new.ids)
            if duplicate or (new.trimmable and new.reusable_from <= len(old.ids)):
                self.entries.remove(old)
                new.sessions |= old.sessions
        self.entries.append(new)
        if session is not None:
            self.refer(session, new)

    def refer(self, session: str, entry: Held) -> None:
        for other in self.entries:
            if other.namespace == entry.namespace:
                other.sessions.discard(session)
        entry.sessions.add(session)

    def order(self) -> list[Held]:
        order = sorted(self.entries, key=lambda e: (bool(e.sessions), e.used))
        return [*(e for e in order if e.size > MAX_BYTES), *(e for e in order if e.size <= MAX_BYTES)]

    def planned(self, target: int) -> list[Held]:
        """Return who has to go to get down to ``target``, durable or not."""
        left = sum(e.size for e in self.entries if e.size <= MAX_BYTES or not e.leases)
        chosen: list[Held] = []
        for entry in self.order():
            if left > target and not entry.leases:
                chosen.append(entry)
                left -= entry.size
        return chosen

    def room_for(self, size: int) -> bool:
        """Make room for a restore of ``size``, unless there is none to be made."""
        ceiling = HARD_MAX_BYTES - min(size, MAX_BYTES)
        going = [entry for entry in self.planned(ceiling) if entry.durable]
        if sum(e.size for e in self.entries if e not in going) > ceiling:
            return False
        self.entries = [entry for entry in self.entries if entry not in going]
        return True

    def reclaim(self, target: int = MAX_BYTES) -> None:
        for entry in self.planned(target):
            if entry.durable:
                self.entries.remove(entry)
        order = self.order()
        lent = sorted((e for e in order if e.leases), key=lambda e: (bool(e.sessions), e.used))
        for entry in [*(e for e in order if not e.leases), *lent]:
            if sum(e.size for e in self.entries) <= HARD_MAX_BYTES:
                break
            self.entries.remove(entry)
            self.lost += not entry.durable


class Driver:
    """Does the same to residency and to the model, and compares."""

    def __init__(self, cache: Cache, chance: random.Random) -> None:
        self.cache = cache
        self.chance = chance
        self.model = Model()
        self.leases: dict[int, Held] = {}
        self.pending: dict[int, FakeCheckpoint] = {}
        self.stale: list[tuple[TokenIds, str, int]] = []
        self.known: list[list[int]] = [[1]]
        self.log: list[str] = []

    # -- pieces -----------------------------------------------------------------------------------------

    def ids(self) -> list[int]:
        """Return token ids that share a prefix with known ones."""
        base = self.chance.choice(self.known)
        cut = self.chance.randint(0, len(base))
        new = base[:cut] + [self.chance.randint(0, 2) for _ in range(self.chance.randint(0, 4))]
        self.known = [*self.known, new][-12:] if new else self.known
        return new or [self.chance.randint(0, 2)]

    def namespace(self) -> str:
        return self.chance.choice(["", "", "", "lora"])

    def session(self) -> str | None:
        return self.chance.choice([None, None, "s", "t"])

    def listen(self) -> None:
        """Play durability's ear: note what it knows, and that nothing was lost below the ceiling."""
        while self.cache.durability.seen:
            match self.cache.durability.seen.popleft():
                case DirtyCheckpoint(checkpoint=of, version=version):
                    assert isinstance(of, FakeCheckpoint)
                    self.pending[version] = of
                case Dropped(version=version):
                    of = self.pending.get(version)
                    if of is not None:
                        self.stale.append((of.spec.tokens, of.spec.namespace, version))
                    self.pending.pop(version, None)
                case Reset():
                    self.forget_pending()

    def forget_pending(self) -> None:
        self.stale += [(of.spec.tokens, of.spec.namespace, v) for v, of in self.pending.items()]
        self.stale = self.stale[-20:]
        self.pending.clear()

    def on_disk(self, ids: list[int], namespace: str) -> Match[StoredEntry] | None:
        return self.cache.disk.index.longest(TokenIds.of(ids), namespace, len(ids) - 1)

    # -- operations -------------------------------------------------------------------------------------

    async def put(self) -> None:
        ids, trimmable = self.ids(), self.chance.random() < 0.6
        reusable_from = self.chance.choice([0, 0, len(ids) // 2]) if trimmable else len(ids)
        size = self.chance.choice([5, 10, 20, 40, 40, 120])
        session, namespace = self.session(), self.namespace()
        new = checkpoint(
            *ids, namespace=namespace, nbytes=size, trimmable=trimmable, reusable_from=reusable_from
        )
        await self.cache.put(new, session=session)
        held = Held(ids, namespace, trimmable, reusable_from, size, self.model.tick())
        self.model.put(held, session)
        self.model.reclaim()

    async def take(self) -> None:
        ids, namespace, session = self.ids(), self.namespace(), self.session()
        self.model.reclaim()
        in_ram, file = self.model.best(ids, namespace), self.on_disk(ids, namespace)
        on_disk = 0 if file is None else file.length
        refused = file is not None and on_disk > in_ram and not self.model.room_for(file.entry.file_bytes)
        taken = await self.cache.take(*ids, namespace=namespace, session=session)
        assert (taken.miss_reason == "no_room") == refused
        on_disk = 0 if refused else on_disk
        assert taken.length == max(in_ram, on_disk), (ids, taken, in_ram, on_disk)
        assert taken.tier == ("ssd" if on_disk > in_ram else "ram" if in_ram else "none")
        self.took(taken, namespace, session)
        if taken.tier == "ssd":
            self.model.reclaim()
        if taken.lease is not None and self.chance.random() < 0.7:
            await self.release(taken.lease.id)

    def took(self, taken: Taken, namespace: str, session: str | None) -> None:
        if taken.lease is None:
            return
        spec = taken.lease.checkpoint.spec
        entry = self.model.find(spec.tokens.tolist(), namespace)
        if taken.tier == "ssd":
            assert entry is None or entry.reusable_from > spec.reusable_from
            entry = Held(
                spec.tokens.tolist(),
                namespace,
                spec.trimmable,
                spec.reusable_from,
                taken.lease.checkpoint.held_bytes,
                self.model.tick(),
                durable=True,
            )
            self.model.put(entry, None)
        assert entry is not None, "lent what is not held"
        entry.used = self.model.tick()
        entry.leases += 1
        self.leases[taken.lease.id] = entry
        if session is not None and self.model.latest(session, namespace) is None:
            self.model.refer(session, entry)

    async def release(self, lease_id: int | None = None) -> None:
        if lease_id is None:
            if not self.leases:
                return
            lease_id = self.chance.choice(list(self.leases))
        self.cache.residency.release(lease_id)
        await self.cache.kit.settle()
        self.cache.leases.discard(lease_id)
        self.leases.pop(lease_id).leases -= 1
        self.model.reclaim()

    async def take_and_leave(self) -> None:
        """A taker that is cancelled at some moment. What it published by its restore may stay."""
        ids = self.ids()
        task = asyncio.create_task(self.cache.take(*ids))
        for _ in range(self.chance.randint(0, 12)):
            await asyncio.sleep(0)
        if not task.cancel():
            await task
        await asyncio.wait([task])
        for lease_id in [one for one in self.cache.leases if one not in self.leases]:
            self.cache.residency.release(lease_id)
            self.cache.leases.discard(lease_id)
        await self.cache.kit.settle()
        self.resync()

    async def take_together(self) -> None:
        """Several takes wait for the disk while other things happen."""
        self.cache.disk.open.clear()
        prompts = [self.ids() for _ in range(4)]
        lengths = [self.model.best(ids, "") for ids in prompts]
        files = [self.on_disk(ids, "") for ids in prompts]
        takes = [asyncio.create_task(self.cache.take(*ids)) for ids in prompts]
        await self.cache.kit.settle()
        cleared = self.chance.random() < 0.2
        if cleared:
            await self.cache.residency.clear("ram", 10.0)
        elif self.chance.random() < 0.5:
            takes[0].cancel()
        self.cache.disk.open.set()
        answers = await asyncio.gather(*takes, return_exceptions=True)
        for taken, length, file in zip(answers, lengths, files, strict=True):
            if isinstance(taken, BaseException):
                assert isinstance(taken, asyncio.CancelledError)
                continue
            best = length if file is None else max(length, file.length)
            assert taken.length >= best or taken.miss_reason in {"cleared", "no_room"}
            if taken.lease is not None:
                self.cache.residency.release(taken.lease.id)
                self.cache.leases.discard(taken.lease.id)
        await self.cache.kit.settle()
        assert not cleared or not self.cache.held(), "a restore outlived the clear"
        self.resync(cleared=cleared)

    async def persist(self) -> None:
        self.listen()
        if not self.pending:
            return
        version = self.chance.choice(list(self.pending))
        of = self.pending[version]
        tokens, namespace = of.spec.tokens, of.spec.namespace
        how = self.chance.random()
        if how < 0.2:
            error: Exception = NotOwed("gone") if how < 0.05 else OSError(28, "no space left on device")
            if how < 0.05:
                del self.pending[version]
            self.cache.residency.ref.tell(PersistFailed(tokens, namespace, version, error))
        else:
            del self.pending[version]
            self.cache.disk.hold(of)
            self.cache.residency.ref.tell(Persisted(tokens, namespace, version))
            current = self.current(version)
            if current is not None:
                current.durable = True
                self.model.reclaim()
        await self.cache.kit.settle()

    def current(self, version: int) -> Held | None:
        """Return the model's entry of a version that RAM still has."""
        for entry in self.cache.actor._ram.entries:
            if entry.version == version:
                return self.model.find(entry.tokens.tolist(), entry.namespace)
        return None

    async def late_word(self) -> None:
        """A write ends whose version durability was told to forget, or of an earlier incarnation."""
        if not self.stale:
            return
        tokens, namespace, version = self.stale.pop(self.chance.randrange(len(self.stale)))
        if self.current(version) is None:  # durability says nothing about what was reset
            self.cache.residency.ref.tell(Persisted(tokens, namespace, version))
            await self.cache.kit.settle()

    async def withdraw(self) -> None:
        files = list(self.cache.disk.index)
        if not files:
            return
        gone = self.chance.choice(files)
        self.cache.disk.drop(gone)
        self.cache.residency.ref.tell(Withdrawn(gone.tokens, gone.namespace))
        await self.cache.kit.settle()
        ids = gone.tokens.tolist()
        exact = self.model.find(ids, gone.namespace)
        for entry in self.model.entries:
            ancestor = len(entry.ids) < len(ids) and entry.ids == ids[: len(entry.ids)]
            covered = ancestor and (exact is None or exact.trimmable)
            if entry.namespace == gone.namespace and (entry is exact or covered):
                entry.durable = False

    async def damage(self) -> None:
        """A file turns out to be bad when it is read."""
        files = [entry for entry in self.cache.disk.index if len(entry.tokens) > 1]
        if not files:
            return
        bad = self.chance.choice(files)
        ids = [*bad.tokens.tolist(), 7]
        self.model.reclaim()
        in_ram = self.model.best(ids, bad.namespace)
        self.cache.disk.bad[bad.id] = CorruptTensor(bad.path, "state", "fails its hash")
        taken = await self.cache.take(*ids, namespace=bad.namespace)
        assert taken.length >= in_ram or taken.miss_reason == "no_room"
        assert (
            taken.lease is None or taken.lease.checkpoint.spec.tokens != bad.tokens or in_ram == len(ids) - 1
        )
        del self.cache.disk.bad[bad.id]
        if taken.lease is not None:
            self.cache.residency.release(taken.lease.id)
            self.cache.leases.discard(taken.lease.id)
        await self.cache.kit.settle()
        await self.cache.kit.advance(2.0)
        self.resync()

    async def clear(self) -> None:
        tier = self.chance.choice(["ram", "ssd", "all"])
        report = await self.cache.residency.clear(tier, 10.0)  # type: ignore[arg-type]
        self.listen()
        if tier != "ram":
            assert not list(self.cache.disk.index)
            for entry in self.model.entries:
                entry.durable = False
        if tier != "ssd":
            assert report.ram == len(self.model.entries)
            self.model.entries.clear()

    async def press(self) -> None:
        excess = self.chance.randint(1, 100)
        total = sum(entry.size for entry in self.model.entries)
        self.cache.gauge.reading = MemoryReading(850 + excess, 1000)
        self.cache.residency.ref.tell(Pressure())
        await self.cache.kit.settle()
        self.cache.gauge.reading = MemoryReading(0, 0)
        self.model.reclaim(min(MAX_BYTES, max(0, total - excess)))

    async def pass_time(self) -> None:
        await self.cache.kit.advance(1.3 * IDLE_S)
        self.model.entries = [entry for entry in self.model.entries if entry.leases or not entry.durable]

    async def close_session(self) -> None:
        session = self.chance.choice(["s", "t", "unknown"])
        count = sum(session in entry.sessions for entry in self.model.entries)
        assert await self.cache.residency.close_session(session, 1.0) == count
        for entry in self.model.entries:
            entry.sessions.discard(session)

    async def crash_residency(self) -> None:
        self.listen()
        self.cache.kit.crash_on(self.cache.residency.ref, Pressure)
        self.cache.residency.pressure()
        await self.crashed(self.cache.residency.ref)
        self.leases.clear()
        self.cache.leases.clear()
        self.model.entries.clear()

    async def crash_durability(self) -> None:
        self.listen()
        self.forget_pending()
        self.cache.kit.crash_on(self.cache.durability.ref, str)
        self.cache.durability.ref.tell("crash")
        await self.crashed(self.cache.durability.ref)
        for entry in self.model.entries:
            entry.durable = False  # until it is said again

    async def crashed(self, ref: Any) -> None:
        await self.cache.kit.settle()
        self.cache.kit.failure(ref.path)
        self.cache.kit.dead_letter(ref.path, "crashed")
        while self.cache.kit.figures(ref).state != "running":
            await self.cache.kit.advance(1.0)

    # -- comparing --------------------------------------------------------------------------------------

    def resync(self, *, cleared: bool = False) -> None:
        """Take over what RAM holds after operations whose outcome is a matter of timing."""
        by_key = {(tuple(e.ids), e.namespace): e for e in self.model.entries}
        entries: list[Held] = []
        order = self.cache.actor._ram.entries._order
        self.model.clock = order._clock
        for real in order.victims():
            key = (tuple(real.tokens.tolist()), real.namespace)
            old = by_key.get(key)
            assert old is not None or real.durable, "something undurable came from nowhere"
            used = order._places[real][1]
            new = Held(list(key[0]), key[1], real.trimmable, real.reusable_from, real.held_bytes, used)
            new.durable, new.sessions = real.durable, set(real.sessions)
            entries.append(new)
            for lease_id, lent in self.leases.items():
                if lent is old and self.cache.actor._lender._leases[lease_id].entry is real:
                    new.leases += 1
                    self.leases[lease_id] = new
        kept = {(tuple(e.ids), e.namespace) for e in entries}
        gone = [old for key, old in by_key.items() if key not in kept and not old.durable]
        uncovered = [
            old
            for old in gone
            if not any(
                e.namespace == old.namespace and e.serves(old.ids, len(old.ids)) == len(old.ids)
                for e in entries
            )
        ]
        disk = self.cache.disk.index
        uncovered = [old for old in uncovered if disk.serving(TokenIds.of(old.ids), old.namespace) is None]
        newly_lost = self.cache.counts.lost - self.model.lost
        assert cleared or len(uncovered) <= newly_lost, f"undurable ones are gone: {uncovered}"
        self.model.entries, self.model.lost = entries, self.cache.counts.lost

    async def check(self) -> None:
        self.listen()
        actor = self.cache.actor
        real = sorted((e.tokens.tolist(), e.namespace, e.durable) for e in actor._ram.entries)
        naive = sorted((e.ids, e.namespace, e.durable) for e in self.model.entries)
        assert real == naive
        order = [(e.tokens.tolist(), e.namespace) for e in actor._ram.entries._order.victims()]
        expected = sorted(self.model.entries, key=lambda e: (bool(e.sessions), e.used))
        assert order == [(e.ids, e.namespace) for e in expected]
        figures = await self.cache.residency.figures(1.0)
        assert figures.bytes == sum(entry.size for entry in self.model.entries) <= HARD_MAX_BYTES
        assert figures.lost == self.model.lost
        assert figures.leases == len(self.leases)
        assert figures.waiting == figures.restoring == 0
        actor.check_integrity()
        for entry in actor._ram.entries:
            if entry.durable:
                assert self.cache.disk.index.serving(entry.tokens, entry.namespace) is not None

    async def finish(self) -> None:
        """Everything undurable is known to durability once it is asked for, and goes when it is written."""
        for lease_id in list(self.leases):
            await self.release(lease_id)
        await self.cache.residency.announce(1.0)
        self.listen()
        undurable = {e.version for e in self.cache.actor._ram.entries if not e.durable}
        assert undurable <= set(self.pending)
        for version in undurable:
            of = self.pending[version]
            self.cache.disk.hold(of)
            self.cache.residency.ref.tell(Persisted(of.spec.tokens, of.spec.namespace, version))
        await self.cache.kit.settle()
        assert (await self.cache.residency.figures(1.0)).bytes <= MAX_BYTES


WEIGHTS = {
    "put": 30,
    "take": 30,
    "persist": 25,
    "release": 6,
    "take_and_leave": 4,
    "take_together": 4,
    "withdraw": 4,
    "late_word": 3,
    "damage": 2,
    "press": 2,
    "close_session": 2,
    "clear": 1,
    "pass_time": 1,
    "crash_residency": 1,
    "crash_durability": 1,
}


@pytest.mark.parametrize("seed", range(10))
def test_residency_agrees_with_a_naive_model(seed: int) -> None:
    @virtual
    async def run() -> None:
        chance = random.Random(seed)
        async with Cache(
            max_bytes=MAX_BYTES, hard_max_bytes=HARD_MAX_BYTES, demote_idle_s=IDLE_S, restarts=10_000
        ) as cache:
            driver = Driver(cache, chance)
            for step in range(STEPS):
                (operation,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
                try:
                    await getattr(driver, operation)()
                    await driver.check()
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}, step {step}, {operation}: {error}") from error
            await driver.finish()
            cache.durability.seen.clear()

    run()
