"""Which published checkpoints are not on disk yet, and which to write next (DESIGN §5, seed §5.6).

dirty → queued → writing → durable
                    ├────→ failed → queued     after a delay; all at once when the disk has recovered
                    └────→ parked              refused for good, or it crashes writers; a flush tries again
      → riding on a longer record that covers it: not written at all, unless that one fails
      → lost: let go before it was durable; a flush says so

Pure: no clock, chance, thread or file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .coverage import Coverage
from .dirty import Attempt, Dirty, DirtyLimits, FailureKind, Key, Record, Tally, Version, record_of
from .writequeue import WriteQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .breaker import Breaker
    from .tokens import TokenIds

P = TypeVar("P")


class DirtyRecords(Generic[P]):
    """The records of one cache. One owner; nothing blocks.

    Order: urgent ones first, then the longest: what covers others is written before them, and what a
    hopeful record covers is not written. At most one attempt per prefix, and ``limits.writers`` in all. A
    record that is superseded as in RAM (DESIGN §5, put) lets its payload go at once; what it owed is then
    its superseder's.

    ``delay_s(n)`` is the pause after a record's n-th failure.
    """

    def __init__(self, limits: DirtyLimits, breaker: Breaker, delay_s: Callable[[int], float]) -> None:
        self.breaker = breaker
        self._limits = limits
        self._delay_s = delay_s
        self._epoch = 0
        self._runs = 0
        self._run = 0
        self._flushed = 0
        self._writing: dict[Key, Attempt[P]] = {}
        self._forget_all()

    def _forget_all(self) -> None:
        self._covers = Coverage[P](self._writing, self._limits.lost, self._epoch, self._run)
        self._held = self._covers.held
        self._queue = WriteQueue[P]()
        self._failed: dict[Key, Record[P]] = {}
        self._crowded: list[Record[P]] = []

    # -- what is told -----------------------------------------------------------------------------------

    def announce(self, item: Dirty[P]) -> None:
        """Take in a version. A known one only gets as urgent as it is told to be."""
        key = (item.namespace, item.tokens)
        old = self._held.get(item.tokens, item.namespace)
        if old is not None and old.item.version == item.version:
            if item.urgent:
                self.urge(item.tokens, item.namespace)
            return
        self._covers.lost.discard(key)
        self._held.unride(key)
        if old is not None:
            self._covers.replace(old, record_of(item))
        else:
            self._covers.admit(record_of(item))
        self._take_in()

    def urge(self, tokens: TokenIds, namespace: str) -> None:
        """Let a record go before others. That changes the order, never a delay. Unknown ones are ignored."""
        record = self._held.host((namespace, tokens)) or self._held.get(tokens, namespace)
        if record is not None and not record.urgent:
            record.urgent = True
            if record.ticket or not record.failures:
                self._enqueue(record)

    def drop(self, tokens: TokenIds, namespace: str, version: int) -> None:
        """Let a version's payload go, written or not.

        An attempt under way is not interrupted: if it succeeds, nothing was lost.
        """
        self._covers.drop((namespace, tokens), version)
        self._take_in()

    def reset(self) -> None:
        """Forget everything. Attempts under way still occupy their places; their outcome means nothing."""
        self._epoch += 1
        self._forget_all()

    def take_orphans(self) -> list[Version]:
        """Return, once, the versions that nobody owes any more although they are not durable.

        Those are superseded ones whose superseder was lost, or is superseded by what does not cover them.
        """
        orphans, self._covers.orphans = self._covers.orphans, []
        return orphans

    def take_losses(self) -> int:
        """Return how many prefixes were lost since the last call."""
        losses, self._covers.losses = self._covers.losses, 0
        return losses

    def current(self, attempt: Attempt[P]) -> bool:
        """Whether an attempt's outcome still means something: nothing was reset since it began."""
        return attempt.epoch == self._epoch

    # -- what to do -------------------------------------------------------------------------------------

    def next(self, now_s: float) -> Attempt[P] | None:
        """Begin the next attempt, if one may begin now."""
        if len(self._writing) >= self._limits.writers:
            return None
        if not self._run:
            if not self.breaker.allows(now_s):
                return None
            self._requeue_due(now_s)
        record = self._queue.pop()
        if record is None:
            return None
        if not self._run:
            self.breaker.began()
        record.run = self._run
        attempt = Attempt(record.item, record, self._epoch, self._run)
        self._writing[record.key] = attempt
        return attempt

    def wake_at_s(self) -> float | None:
        """When ``next`` will have something that it has not now, though nothing is told meanwhile."""
        if self._run or len(self._writing) >= self._limits.writers:
            return None
        retries_s = [each.retry_at_s for each in self._failed.values() if self._retries(each)]
        if self.breaker.degraded:
            return self.breaker.probe_at_s if retries_s or self._queue.peek() is not None else None
        return min(retries_s, default=None)

    # -- how it ended -----------------------------------------------------------------------------------

    def succeeded(self, attempt: Attempt[P], *, reusable_from: int, written: bool) -> list[Version]:
        """Note that the attempt's prefix is durable, as are its own prefixes from ``reusable_from`` on.

        ``written`` False: it was covered already, and nothing is known about the disk. Returns all versions
        that are durable by this.
        """
        self._leave(attempt)
        if not self.current(attempt):
            return []
        if not written:
            self.breaker.ended()
        elif self.breaker.succeeded():
            self._requeue(list(self._failed.values()))
        item = attempt.item
        durable = [Version(item.namespace, item.tokens, item.version)]
        durable += self._covers.settle(attempt.record, reusable_from)
        self._try_crowded()
        self._take_in()
        self._flushed += len(durable)
        return durable

    def failed(self, attempt: Attempt[P], kind: FailureKind, now_s: float) -> bool:
        """Note a failure. True when it made the breaker open."""
        self._leave(attempt)
        if not self.current(attempt):
            return False
        record, opened = attempt.record, False
        if kind in ("disk", "crash"):
            opened = self.breaker.failed(now_s)
        else:
            self.breaker.ended()
        if record.live:
            record.note_failure(kind)
            record.retry_at_s = now_s + self._delay_s(record.failures)
            self._failed[record.key] = record
            if self._run and record.run != self._run:
                self._enqueue(record)  # it was under way when the flush began
            self._covers.rehouse(record, lambda rider: rider.item is not None)
            if kind == "room" and self._run and self._writing:
                self._crowded.append(record)  # what is being written may have taken its room
        elif record.dropped and not self._held.known(record.key):
            self._covers.lose(record.key, record.item.version)
        if kind != "room":
            self._try_crowded()
        self._take_in()
        return opened

    # -- flush ------------------------------------------------------------------------------------------

    def begin_flush(self) -> None:
        """Try every version once from now on, whatever delays it.

        Until ``end_flush`` none is tried twice, but one that found no room beside what was being written is
        tried again when that is done.
        """
        self._runs += 1
        self._run = self._covers.run = self._runs
        self._flushed = 0
        self._requeue(list(self._held))

    @property
    def flushing(self) -> bool:
        """Whether a flush is on."""
        return bool(self._run)

    @property
    def flush_over(self) -> bool:
        """Whether the flush has tried every version, and nothing is being written that matters to one."""
        return bool(self._run) and self._queue.peek() is None and not any(map(self._matters, self._writing))

    def end_flush(self) -> None:
        """Go back to the usual retries."""
        self._run = self._covers.run = 0
        self._crowded.clear()

    def lost(self) -> list[Key]:
        """Return the lost prefixes, oldest first."""
        return self._covers.lost.keys()

    def found(self, key: Key) -> None:
        """Note that a lost prefix turned out to be covered by what is stored."""
        self._covers.lost.discard(key)

    def tally(self) -> Tally:
        """Return the figures."""
        run, let_go = self._run, [each.item for each in self._writing.values() if self._undecided(each)]
        return Tally(
            pending=self._held.pending + len(let_go),
            pending_bytes=self._held.pending_bytes + sum(item.nbytes for item in let_go),
            queued=sum(1 for record in self._held if record.ticket),
            writing=len(self._writing),
            missing=len(self._covers.lost),
            flushed=self._flushed if run else 0,
            failed=sum(1 for record in self._failed.values() if run and record.run == run),
            dropped=self._covers.lost.during(run) if run else 0,
        )

    def _undecided(self, attempt: Attempt[P]) -> bool:
        """Whether an attempt's version was dropped, and is lost unless the attempt makes it."""
        record = attempt.record
        return self.current(attempt) and record.dropped and not self._held.known(record.key)

    # -- queue ------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Forget the failures of what has left, queue what was admitted or hastened."""
        covers = self._covers
        for record in covers.left:
            if self._failed.get(record.key) is record:
                del self._failed[record.key]
        for record in covers.fresh:
            if record.live and self._wanted(record):
                self._enqueue(record)
        covers.left.clear()
        covers.fresh.clear()

    def _wanted(self, record: Record[P]) -> bool:
        return bool(self._run) or record.urgent or self._limits.write_behind

    def _retries(self, record: Record[P]) -> bool:
        return not record.parked and self._wanted(record)

    def _enqueue(self, record: Record[P]) -> None:
        if record.key not in self._writing:  # else the end of that attempt lets it in
            self._failed.pop(record.key, None)
            self._queue.push(record)
            self._queue.shrink(len(self._held))

    def _requeue(self, records: Iterable[Record[P]]) -> None:
        for record in records:
            if self._run or self._retries(record):
                self._enqueue(record)

    def _try_crowded(self) -> None:
        """A write has ended and gives its reservation back: what found no room beside it may try again."""
        crowded, self._crowded = self._crowded, []
        for record in crowded:
            if self._run and self._failed.get(record.key) is record:
                self._enqueue(record)

    def _requeue_due(self, now_s: float) -> None:
        """Queue what has waited long enough; while the breaker is not closed, all is due as its probe."""
        degraded = self.breaker.degraded
        self._requeue([each for each in self._failed.values() if degraded or each.retry_at_s <= now_s])

    def _leave(self, attempt: Attempt[P]) -> None:
        """Free the attempt's place; a later version of its prefix may go now."""
        record = attempt.record
        del self._writing[record.key]
        current = self._held.get(record.tokens, record.namespace)
        if current is not None and current is not record and self._wanted(current):
            self._enqueue(current)

    def _matters(self, key: Key) -> bool:
        """Whether an attempt under way is of now, or one of before a reset that a record waits behind."""
        return self.current(self._writing[key]) or self._held.get(key[1], key[0]) is not None

    # -- check ------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Assert what the records promise about themselves. Walks all of them."""
        self._held.check_integrity()
        assert len(self._writing) <= self._limits.writers, "more attempts than writers"
        for key, record in self._failed.items():
            assert record.live, "a failed record that has left"
            assert not record.ticket, "a failed record that is queued"
            assert key == record.key, "a failed record under a foreign key"
        for record in self._held:
            idle = not (record.ticket or record.key in self._failed or record.key in self._writing)
            assert not idle or not self._wanted(record), "a wanted record that nothing will write"
