"""The dirty records against a naive model: random announcements, drops, urges, flushes, failures, resets.

The model keeps what the cache promised (``owed``) and what the disk has (``disk``), and knows nothing of
queues, riders or hosts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from samovar.storage.breaker import Breaker
from samovar.storage.dirty import Attempt, Dirty, DirtyLimits, Version
from samovar.storage.flushing import DirtyRecords
from samovar.storage.tokens import TokenIds

Key = tuple[str, TokenIds]
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=7).map(TokenIds.of)
FEW = st.sampled_from([TokenIds.of(ids) for ids in ((0,), (0, 0), (0, 0, 1), (0, 0, 1, 1), (0, 1))])


@dataclass(frozen=True)
class Stored:
    """A file of the model's disk."""

    namespace: str
    tokens: TokenIds
    reusable_from: int

    def covers(self, key: Key) -> bool:
        namespace, tokens = key
        fits = len(tokens) == len(self.tokens) or self.reusable_from <= len(tokens) <= len(self.tokens)
        return namespace == self.namespace and fits and self.tokens.starts_with(tokens)


@dataclass
class Model:
    owed: dict[Key, int] = field(default_factory=dict)
    disk: list[Stored] = field(default_factory=list)
    tried: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)  # (run, version) of each attempt

    def covered(self, key: Key) -> bool:
        return any(stored.covers(key) for stored in self.disk)


class DirtyMachine(RuleBasedStateMachine):
    writers = 2
    write_behind = True

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(1)
        limits = DirtyLimits(self.writers, write_behind=self.write_behind, lost=1000)
        self.breaker = Breaker(3, lambda n: min(60.0, 2.0**n))
        self.records = DirtyRecords[str](limits, self.breaker, lambda n: min(60.0, 2.0**n))
        self.model = Model()
        self.now_s = 0.0
        self.version = 0
        self.run = 0
        self.attempts: list[Attempt[str]] = []
        self.stale: list[Attempt[str]] = []

    # -- what residency tells

    @rule(
        tokens=FEW | TOKENS,
        namespace=st.sampled_from(["", "a"]),
        trimmable=st.booleans(),
        reusable=st.integers(0, 7),
        urgent=st.booleans(),
    )
    def announce(
        self, tokens: TokenIds, namespace: str, trimmable: bool, reusable: int, urgent: bool
    ) -> None:
        self.version += 1
        reusable_from = min(reusable, len(tokens)) if trimmable else len(tokens)
        item = Dirty(
            namespace, tokens, trimmable, reusable_from, len(tokens), self.version, "payload", urgent
        )
        self.records.announce(item)
        # The rule of DESIGN §5: the cache gives up strict ancestors that the new one serves.
        covers = Stored(namespace, tokens, reusable_from)
        for key in [key for key in self.model.owed if covers.covers(key) and len(key[1]) < len(tokens)]:
            del self.model.owed[key]
        self.model.owed[namespace, tokens] = self.version

    @precondition(lambda self: self.model.owed)
    @rule(data=st.data())
    def announce_again(self, data: st.DataObject) -> None:
        before = self.records.tally()
        for record in list(self.records._held):
            self.records.announce(record.item)
        assert self.records.tally().pending == before.pending

    @precondition(lambda self: self.model.owed)
    @rule(data=st.data(), right_version=st.booleans())
    def drop(self, data: st.DataObject, right_version: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.owed, key=_order)))
        self.records.drop(key[1], key[0], self.model.owed[key] - (not right_version))

    @rule(tokens=FEW | TOKENS)
    def urge(self, tokens: TokenIds) -> None:
        self.records.urge(tokens, "")

    @rule()
    def reset(self) -> None:
        self.records.reset()
        self.stale += self.attempts
        self.attempts = []
        self.model.owed.clear()
        assert self.records.tally().clean

    # -- what the writers do

    @rule()
    def begin(self) -> None:
        attempt = self.records.next(self.now_s)
        if attempt is None:
            return
        key = (attempt.item.namespace, attempt.item.tokens)
        assert attempt.item.payload == "payload"
        in_hand = [(each.item.namespace, each.item.tokens) for each in self.attempts + self.stale]
        assert key not in in_hand, "two writes of one prefix at a time"
        for other in self.attempts:
            if other.record.live and other.record.hopeful:
                stored = Stored(other.item.namespace, other.item.tokens, other.item.reusable_from)
                assert not stored.covers(key), "wrote what a write under way covers"
        if attempt.run:
            assert attempt.run == self.run
            seen = self.model.tried.setdefault(key, [])
            assert (self.run, attempt.item.version) not in seen, "a flush tried one version twice"
            seen.append((self.run, attempt.item.version))
        self.attempts.append(attempt)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), already=st.booleans())
    def succeed(self, data: st.DataObject, already: bool) -> None:
        attempt = self._take(data)
        item = attempt.item
        key = (item.namespace, item.tokens)
        covering = [stored for stored in self.model.disk if stored.covers(key)]
        if already and covering:
            durable = self.records.succeeded(attempt, reusable_from=covering[0].reusable_from, written=False)
        else:
            self.model.disk.append(Stored(*key, item.reusable_from))
            durable = self.records.succeeded(attempt, reusable_from=item.reusable_from, written=True)
            assert not self.breaker.degraded
        assert Version(*key, item.version) in durable
        for version in durable:
            assert self.model.covered((version.namespace, version.tokens)), "called durable, is not there"

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), kind=st.sampled_from(["disk", "disk", "crash", "room", "refused"]))
    def fail(self, data: st.DataObject, kind: str) -> None:
        self.records.failed(self._take(data), kind, self.now_s)  # type: ignore[arg-type]

    @precondition(lambda self: self.stale)
    @rule(success=st.booleans())
    def end_stale(self, success: bool) -> None:
        attempt = self.stale.pop()
        before = self.records.tally()
        if success:
            assert not self.records.succeeded(attempt, reusable_from=0, written=True)
        else:
            self.records.failed(attempt, "disk", self.now_s)
        after = self.records.tally()
        assert (before.pending, before.missing) == (after.pending, after.missing)

    def _take(self, data: st.DataObject) -> Attempt[str]:
        return self.attempts.pop(data.draw(st.integers(0, len(self.attempts) - 1)))

    # -- time and flushes

    @rule(by_s=st.sampled_from([0.5, 3.0, 100.0]))
    def wait(self, by_s: float) -> None:
        self.now_s += by_s

    @rule()
    def begin_flush(self) -> None:
        self.records.begin_flush()
        self.run += 1
        assert self.records.flushing

    @precondition(lambda self: self.records.flush_over)
    @rule()
    def end_flush(self) -> None:
        tally = self.records.tally()
        assert not self.attempts
        for record in self.records._held:
            assert (self.run, record.item.version) in self.model.tried[record.key], "a version was not tried"
        assert tally.failed == len(self.records._held)
        for key in self.records.lost():
            if self.model.covered(key):
                self.records.found(key)
        if self.records.tally().clean:
            assert all(self.model.covered(key) for key in self.model.owed), "durable, but something is not"
        self.records.end_flush()

    # -- always

    @invariant()
    def sound(self) -> None:
        self.records.check_integrity()

    @invariant()
    def nothing_owed_is_forgotten(self) -> None:
        held = {record.key for record in self.records._held} | set(self.records._held._hosts)
        in_hand = {(each.item.namespace, each.item.tokens) for each in self.attempts}
        known = held | in_hand | set(self.records.lost())
        for key in self.model.owed:
            assert key in known or self.model.covered(key), "an owed checkpoint that nobody knows of"

    @invariant()
    def it_wakes_when_there_will_be_work(self) -> None:
        wake_at_s = self.records.wake_at_s()
        if wake_at_s is None and not self.attempts and not self.stale and not self.records.flushing:
            for record in self.records._held:
                waits = record.parked or not (self.write_behind or record.urgent)
                assert record.ticket or waits, "a record that nothing will ever wake"

    def teardown(self) -> None:
        """From any state a flush on a sound disk leaves nothing dirty."""
        for attempt in self.attempts + self.stale:
            self.records.failed(attempt, "disk", self.now_s)
        self.attempts, self.stale = [], []
        self.records.begin_flush()
        while (attempt := self.records.next(self.now_s)) is not None:
            item = attempt.item
            self.model.disk.append(Stored(item.namespace, item.tokens, item.reusable_from))
            self.records.succeeded(attempt, reusable_from=item.reusable_from, written=True)
        assert self.records.flush_over
        assert self.records.tally().pending == 0
        assert self.records.tally().pending_bytes == 0
        for key in self.model.owed:
            assert self.model.covered(key) or key in self.records.lost()


def _order(key: Key) -> tuple[str, list[int]]:
    return (key[0], key[1].tolist())


class UrgentOnlyMachine(DirtyMachine):
    writers = 1
    write_behind = False


DirtyMachine.TestCase.settings = settings(max_examples=70, stateful_step_count=50, deadline=None)
UrgentOnlyMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestWriteBehind = DirtyMachine.TestCase
TestUrgentOnly = UrgentOnlyMachine.TestCase
