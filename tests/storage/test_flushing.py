"""Rules of the dirty records that are easier read than searched for at random."""

from __future__ import annotations

import random

from samovar.storage.breaker import Breaker
from samovar.storage.dirty import Attempt, Dirty, DirtyLimits
from samovar.storage.flushing import DirtyRecords
from samovar.storage.tokens import TokenIds


def records(**limits: object) -> DirtyRecords[str]:
    given = {"writers": 1, **limits}
    return DirtyRecords(DirtyLimits(**given), Breaker(100, lambda n: n), lambda n: 10.0)  # type: ignore[arg-type]


def dirty(
    *ids: int, version: int = 1, urgent: bool = False, trimmable: bool = True, start: int = 0
) -> Dirty[str]:
    tokens = TokenIds.of(ids)
    start = start if trimmable else len(tokens)
    return Dirty("", tokens, trimmable, start, len(ids), version, "payload", urgent)


def written(it: DirtyRecords[str]) -> list[list[int]]:
    """Carry out everything that may be done now; return it in order."""
    order = []
    while (attempt := it.next(0.0)) is not None:
        order.append(attempt.item.tokens.tolist())
        succeed(it, attempt)
    return order


def succeed(it: DirtyRecords[str], attempt: Attempt[str]) -> None:
    it.succeeded(attempt, reusable_from=attempt.item.reusable_from, written=True)


def test_urgent_then_longest_then_oldest() -> None:
    it = records()
    for item in (dirty(1), dirty(2, 2), dirty(3, 3), dirty(4, urgent=True), dirty(5, 5, 5)):
        it.announce(item)
    assert written(it) == [[4], [5, 5, 5], [2, 2], [3, 3], [1]]


def test_any_order_of_a_conversation_is_written_as_its_frontier_alone() -> None:
    turns = [dirty(*range(length)) for length in (1, 5, 9, 20)]
    for seed in range(24):
        it = records()
        for item in random.Random(seed).sample(turns, len(turns)):
            it.announce(item)
        assert written(it) == [list(range(20))]
        assert it.tally().clean


def test_every_state_of_a_model_that_cannot_trim_is_written() -> None:
    it = records()
    for length in (1, 5, 9):
        it.announce(dirty(*range(length), trimmable=False))
    assert [len(ids) for ids in written(it)] == [9, 5, 1]


def test_an_ancestor_goes_alone_once_the_longer_one_has_failed() -> None:
    it = records()
    it.announce(dirty(1, 2, 3))
    attempt = it.next(0.0)
    assert attempt is not None
    it.announce(dirty(1, 2))
    assert it.tally().pending == 2
    it.failed(attempt, "disk", 0.0)
    assert written(it) == [[1, 2]]
    assert it.wake_at_s() == 10.0
    assert it.tally().pending == 1


def test_what_loses_its_place_supersedes_nothing_newer() -> None:
    """Found by the model: an older middle, set free by its host, let go of a newer short one."""
    it = records(write_behind=False)
    it.announce(dirty(0, 0, 0, version=1, start=2))
    it.announce(dirty(0, 0, version=2))
    it.announce(dirty(0, version=3, trimmable=False))
    it.announce(dirty(0, 0, 0, version=4, trimmable=False))  # covers nothing any more
    it.announce(dirty(0, 0, version=5, trimmable=False))
    assert it.take_orphans() == []
    it.begin_flush()
    assert written(it) == [[0, 0, 0], [0, 0], [0]]


def test_a_drop_behind_a_write_of_before_a_reset_is_a_loss() -> None:
    """Found by the model: it was taken for being written."""
    it = records()
    it.announce(dirty(1, 2, version=1))
    assert it.next(0.0) is not None
    it.reset()
    it.announce(dirty(1, 2, version=2))
    it.drop(TokenIds.of((1, 2)), "", 2)
    assert it.tally().missing == 1


def test_a_drop_behind_a_write_of_an_older_version_is_a_loss_only_if_that_fails() -> None:
    for success in (True, False):
        it = records()
        it.announce(dirty(1, 2, version=1))
        attempt = it.next(0.0)
        assert attempt is not None
        it.announce(dirty(1, 2, version=2))
        it.drop(TokenIds.of((1, 2)), "", 2)
        assert it.tally().missing == 0
        if success:
            succeed(it, attempt)
        else:
            it.failed(attempt, "disk", 0.0)
        assert it.tally().missing == (not success)


def test_what_is_being_written_is_told_once_though_a_longer_one_came() -> None:
    it = records(writers=2)
    it.announce(dirty(1, 2, version=1))
    short = it.next(0.0)
    it.announce(dirty(1, 2, 3, version=2))
    long = it.next(0.0)
    assert short is not None
    assert long is not None
    told = [it.succeeded(each, reusable_from=0, written=True) for each in (short, long)]
    assert [[version.version for version in each] for each in told] == [[1], [2]]


def test_a_dropped_one_is_lost_with_the_one_that_was_to_cover_it() -> None:
    it = records(write_behind=False)
    it.announce(dirty(1, 2, 3, version=1))
    it.announce(dirty(1, 2, version=2))
    it.drop(TokenIds.of((1, 2)), "", 2)
    assert it.tally().missing == 0
    it.drop(TokenIds.of((1, 2, 3)), "", 1)
    assert it.tally().missing == 2
    assert it.take_orphans() == []


def test_what_is_covered_by_something_unknown_vouches_for_itself_alone() -> None:
    it = records(write_behind=False)
    it.announce(dirty(1, 2, 3, version=1))
    it.announce(dirty(1, 2, version=2))
    it.begin_flush()
    attempt = it.next(0.0)
    assert attempt is not None
    durable = it.succeeded(attempt, reusable_from=3, written=False)
    assert [version.version for version in durable] == [1]
    assert written(it) == [[1, 2]]


def test_a_lost_one_that_is_published_again_is_pending_and_not_missing() -> None:
    it = records(write_behind=False)
    it.announce(dirty(1, 2, version=1))
    it.drop(TokenIds.of((1, 2)), "", 1)
    it.announce(dirty(1, 2, version=2))
    assert (it.tally().pending, it.tally().missing) == (1, 0)


def test_a_flush_waits_behind_a_write_of_before_a_reset() -> None:
    it = records(writers=2)
    it.announce(dirty(1, 2, version=1))
    stale = it.next(0.0)
    assert stale is not None
    it.reset()
    it.announce(dirty(1, 2, version=2))
    it.begin_flush()
    assert it.next(0.0) is None
    assert not it.flush_over
    assert it.succeeded(stale, reusable_from=0, written=True) == []
    assert written(it) == [[1, 2]]
    assert it.flush_over


def test_payloads_of_the_superseded_are_let_go() -> None:
    it = records(write_behind=False)
    for length in range(1, 50):
        it.announce(dirty(*range(length)))
    tally = it.tally()
    assert (tally.pending, tally.pending_bytes) == (1, 49)


def test_lost_prefixes_beyond_the_limit_are_still_counted() -> None:
    it = records(lost=3, write_behind=False)
    for n in range(5):
        it.announce(dirty(n, n))
        it.drop(TokenIds.of((n, n)), "", 1)
    assert it.tally().missing == 5
    assert len(it.lost()) == 3
    assert it.take_losses() == 5
    assert it.take_losses() == 0


def test_the_queue_forgets_places_that_are_stale() -> None:
    it = records()
    for version in range(10_000):
        it.announce(dirty(1, 2, version=version))
    assert len(it._queue._places) < 100
    assert written(it) == [[1, 2]]


def test_thousands_are_taken_in_and_written() -> None:
    it = records(writers=2)
    for n in range(3000):
        it.announce(dirty(n // 100, n % 100, 7))
    assert it.tally().pending == 3000
    assert len(written(it)) == 3000


def test_what_found_no_room_beside_another_write_is_tried_again_in_the_same_flush() -> None:
    """Found by killing real servers: two writers, a tight cap, one holds the room that the other wants."""
    it = records(writers=2)
    it.announce(dirty(1, 1))
    it.announce(dirty(2))
    it.begin_flush()
    first, second = it.next(0.0), it.next(0.0)
    assert first is not None
    assert second is not None
    it.failed(second, "room", 0.0)
    assert it.next(0.0) is None  # not at once: nothing has changed
    assert not it.flush_over
    succeed(it, first)
    assert not it.flush_over
    assert written(it) == [[2]]
    assert it.flush_over
    assert it.tally().clean


def test_without_room_beside_nothing_a_flush_ends_and_says_so() -> None:
    it = records(writers=2)
    for ids in ((1, 1), (2,)):
        it.announce(dirty(*ids))
    it.begin_flush()
    first, second = it.next(0.0), it.next(0.0)
    assert first is not None
    assert second is not None
    it.failed(second, "room", 0.0)
    it.failed(first, "room", 0.0)
    assert it.next(0.0) is None
    assert it.flush_over
    assert it.tally().failed == 2


def test_a_dropped_one_that_is_being_written_is_pending_until_it_is_known() -> None:
    it = records()
    it.announce(dirty(1, 2))
    attempt = it.next(0.0)
    assert attempt is not None
    it.drop(attempt.item.tokens, "", 1)
    assert (it.tally().pending, it.tally().pending_bytes, it.tally().clean) == (1, 2, False)
    it.failed(attempt, "disk", 0.0)
    assert (it.tally().pending, it.tally().missing) == (0, 1)
