"""Which entry goes first, which are superseded, the books of RAM, and what a restore is expected to cost."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from samovar.storage.index import PrefixIndex
from samovar.storage.residence import Residence, Resident
from samovar.storage.restore_cost import PRIOR_BYTES_PER_S, PRIOR_OVERHEAD_S, RestoreCost
from samovar.storage.retention import LeastRecentlyUsed, superseded_by
from samovar.storage.tokens import TokenIds

from tests.kit.checkpoints import FakeCheckpoint, checkpoint

# -- the order --------------------------------------------------------------------------------------------


def test_unknown_entries_are_an_error_and_change_nothing() -> None:
    order = LeastRecentlyUsed[str]()
    order.admit("a")
    for change in (order.use, order.discard, lambda name: order.prefer(name, kept=True)):
        with pytest.raises(KeyError):
            change("b")
    with pytest.raises(AssertionError):
        order.admit("a")
    assert list(order.victims()) == ["a"]


def test_b103_a_use_refreshes() -> None:
    order = LeastRecentlyUsed[str]()
    for name in "pq":
        order.admit(name)
    order.use("p")
    order.admit("r")
    assert list(order.victims()) == ["q", "p", "r"]


def test_preferred_entries_go_last_and_fall_back_to_where_they_were() -> None:
    order = LeastRecentlyUsed[str]()
    for name in "abc":
        order.admit(name)
    order.prefer("a", kept=True)
    assert list(order.victims()) == ["b", "c", "a"]
    order.prefer("b", kept=True)
    order.use("a")
    assert list(order.victims()) == ["c", "b", "a"]
    order.prefer("b", kept=False)
    assert list(order.victims()) == ["b", "c", "a"]
    order.prefer("a", kept=False)
    assert list(order.victims()) == ["b", "c", "a"]


_NAMES = st.sampled_from("abcdef")
_CHANGES = st.lists(st.tuples(st.sampled_from(["admit", "use", "prefer", "loose", "discard"]), _NAMES))


@given(_CHANGES)
@settings(max_examples=100, deadline=None)
def test_the_order_is_that_of_a_list(changes: list[tuple[str, str]]) -> None:
    order = LeastRecentlyUsed[str]()
    uses: list[str] = []
    preferred: set[str] = set()
    for change, name in changes:
        if (change == "admit") == (name in uses):
            continue
        if change in {"admit", "use"}:
            uses = [other for other in uses if other != name] + [name]
            (order.admit if change == "admit" else order.use)(name)
        elif change == "discard":
            uses.remove(name)
            preferred.discard(name)
            order.discard(name)
        else:
            preferred = preferred | {name} if change == "prefer" else preferred - {name}
            order.prefer(name, kept=change == "prefer")
        assert list(order.victims()) == sorted(uses, key=lambda one: one in preferred)
        assert len(order) == len(uses)


# -- supersession -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    tokens: TokenIds
    trimmable: bool = True
    reusable_from: int = 0
    namespace: str = ""


def entry(*ids: int, **how: Any) -> Entry:
    return Entry(TokenIds.of(ids), **how)


def test_an_untrimmable_checkpoint_supersedes_nothing() -> None:
    index = PrefixIndex([entry(1), entry(1, 2)])
    assert superseded_by(entry(1, 2, 3, trimmable=False, reusable_from=3), index) == []


def test_only_ancestors_that_the_new_one_serves_are_superseded() -> None:
    served = [entry(1, 2, 3), entry(1, 2, 3, 4, trimmable=False, reusable_from=4)]
    others = [
        entry(1, 2),  # below what the new one can be reused from
        entry(1, 2, 3, 4, 5),  # a duplicate, which is replaced and not superseded
        entry(1, 2, 3, 4, 5, 6),
        entry(1, 2, 9),
        entry(1, 2, 3, namespace="lora"),
    ]
    index = PrefixIndex([*served, *others])
    assert superseded_by(entry(1, 2, 3, 4, 5, reusable_from=3), index) == served


# -- the books of RAM -------------------------------------------------------------------------------------


class ResidenceMachine(RuleBasedStateMachine):
    """Whatever is done in whatever order, all books agree and victims are enough and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.residence = Residence[FakeCheckpoint](50, max_sessions=3)
        self.clock = 0.0

    def some(self, number: int) -> Resident[FakeCheckpoint]:
        entries = sorted(self.residence, key=lambda one: one.version)
        return entries[number % len(entries)]

    @rule(
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        size=st.sampled_from([1, 10, 60]),
        trimmable=st.booleans(),
        session=st.sampled_from([None, "a", "b", "c", "d"]),
    )
    def put(self, ids: list[int], size: int, trimmable: bool, session: str | None) -> None:
        self.clock += 1
        new = Resident(
            checkpoint(*ids, nbytes=size, trimmable=trimmable), int(self.clock), self.clock, durable=False
        )
        before = {name for one in self.residence for name in one.sessions}
        kept = self.residence.put(new, session)
        assert self.residence.holds(new)
        assert not any(self.residence.holds(old) for old in kept.gone)
        assert all(new.serves(len(old.tokens)) for old in kept.gone)
        after = {name for one in self.residence for name in one.sessions}
        assert len(before - after) <= 1, "only the bound on sessions forgets any"
        assert session is None or self.residence.latest(session, "") is new

    @precondition(lambda self: len(self.residence))
    @rule(number=st.integers(0, 50), leases=st.integers(0, 1))
    def use(self, number: int, leases: int) -> None:
        self.clock += 1
        one = self.some(number)
        one.leases = leases
        self.residence.use(one, self.clock)

    @precondition(lambda self: len(self.residence))
    @rule(number=st.integers(0, 50))
    def remove(self, number: int) -> None:
        gone = self.some(number)
        self.residence.remove(gone)
        assert not gone.sessions
        with pytest.raises(KeyError):
            self.residence.remove(gone)

    @rule(session=st.sampled_from("abcd"))
    def close(self, session: str) -> None:
        count = sum(session in one.sessions for one in self.residence)
        assert self.residence.close_session(session) == count
        assert self.residence.latest(session, "") is None

    @rule(goal=st.integers(0, 200), lent=st.booleans())
    def victims(self, goal: int, lent: bool) -> None:
        chosen = self.residence.victims(goal, lent=lent)
        assert len(set(chosen)) == len(chosen)
        assert lent or not any(one.leases for one in chosen)
        ballast = (
            0 if lent else sum(one.held_bytes for one in self.residence if one.leases and one.held_bytes > 50)
        )
        left = self.residence.bytes - ballast - sum(one.held_bytes for one in chosen)
        rest = [one for one in self.residence if one not in chosen and (lent or not one.leases)]
        assert left <= goal or not rest
        assert not chosen or left + chosen[-1].held_bytes > goal

    @rule(before=st.integers(0, 60))
    def idle(self, before: int) -> None:
        idle = self.residence.idle_since(before)
        assert all(not one.leases and one.used_s <= before for one in idle)

    @rule()
    def clear(self) -> None:
        if self.clock % 5 == 0:
            self.residence.clear()
            assert len(self.residence) == self.residence.bytes == self.residence.sessions == 0

    @invariant()
    def agrees(self) -> None:
        self.residence.check_integrity()


ResidenceMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestResidence = ResidenceMachine.TestCase


def test_what_is_larger_than_the_cap_goes_first_and_nothing_goes_for_it() -> None:
    residence = Residence[FakeCheckpoint](50, max_sessions=3)
    small = [Resident(checkpoint(n, n, nbytes=20), n, 0.0, durable=True) for n in range(2)]
    big = Resident(checkpoint(7, 7, nbytes=90), 7, 0.0, durable=True)
    for one in (*small, big):
        residence.put(one, None)
    assert residence.victims(50) == [big]
    big.leases = 1
    assert residence.victims(50) == []
    assert residence.victims(50, lent=True) == [*small, big]


# -- cost -------------------------------------------------------------------------------------------------


def test_the_prior_is_believed_until_something_was_measured() -> None:
    cost = RestoreCost()
    assert cost.estimate_s(0, 0.0) == PRIOR_OVERHEAD_S
    assert cost.estimate_s(10**9, 0.0) == pytest.approx(PRIOR_OVERHEAD_S + 10**9 / PRIOR_BYTES_PER_S)


@pytest.mark.parametrize("bytes_per_s", [1e7, 1e8, 3e9, 2e10])
def test_estimates_come_near_what_is_measured(bytes_per_s: float) -> None:
    cost, chance = RestoreCost(), random.Random(1)
    for second in range(40):
        size = chance.randint(2 << 20, 1 << 30)
        cost.observe(size, PRIOR_OVERHEAD_S + size / bytes_per_s, float(second) / 10)
    assert cost.bytes_per_s(4.0) == pytest.approx(bytes_per_s, rel=0.2)
    cost.observe(1000, 1.0, 4.0)
    assert cost.estimate_s(0, 4.0) > 0.1
    assert cost.bytes_per_s(4.0) == pytest.approx(bytes_per_s, rel=0.2)


def test_a_measurement_fades_so_that_one_slow_restore_forbids_nothing_for_ever() -> None:
    cost = RestoreCost()
    cost.observe(100 << 20, 100.0, 0.0)
    slow = [cost.estimate_s(100 << 20, now_s) for now_s in (0.0, 120.0, 240.0, 3600.0)]
    assert slow == sorted(slow, reverse=True)
    assert slow[0] > 20.0
    assert slow[3] == pytest.approx(RestoreCost().estimate_s(100 << 20, 0.0), rel=0.01)


def test_nonsense_measurements_leave_estimates_usable() -> None:
    cost = RestoreCost()
    for size, elapsed_s in [(0, 0.0), (1 << 30, 0.0), (1, 1e-9), (1 << 40, 1e-9)]:
        cost.observe(size, elapsed_s, 5.0)
        assert 0 < cost.bytes_per_s(5.0) < float("inf")
        assert cost.estimate_s(1 << 30, 1.0) >= 0.0  # the clock may be read late
