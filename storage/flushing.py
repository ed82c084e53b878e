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

from .dirty import Attempt, Dirty, DirtyLimits, FailureKind, Key, Record, Rider, Tally, Version, record_of
from .ledger import Ledger, rider_key
from .lost import LostPrefixes
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
        self._losses = 0
        self._orphans: list[Version] = []
        self._writing: dict[Key, Attempt[P]] = {}
        self._forget_all()

    def _forget_all(self) -> None:
        self._held = Ledger[P]()
        self._queue = WriteQueue[P]()
        self._failed: dict[Key, Record[P]] = {}
        self._lost = LostPrefixes(self._limits.lost)

    # -- what is told -----------------------------------------------------------------------------------

    def announce(self, item: Dirty[P]) -> None:
        """Take in a version. A known one only gets as urgent as it is told to be."""
        key = (item.namespace, item.tokens)
        old = self._held.get(item.tokens, item.namespace)
        if old is not None and old.item.version == item.version:
            if item.urgent:
                self.urge(item.tokens, item.namespace)
            return
        self._lost.discard(key)
        self._held.unride(key)
        record = record_of(item)
        if old is not None:
            record.urgent = record.urgent or old.urgent
            self._remove(old)
        self._admit(record)
        if old is not None:
            self._rehouse(old)

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
        key = (namespace, tokens)
        host = self._held.host(key)
        record = self._held.get(tokens, namespace)
        if host is not None:
            rider = host.riders[len(tokens)]
            if rider.version == version:
                self._held.shed(rider)
                rider.dropped = True
        elif record is not None and record.item.version == version:
            self._remove(record)
            record.dropped = True
            if key not in self._writing:
                self._lose(key, version)
            self._rehouse(record)

    def reset(self) -> None:
        """Forget everything. Attempts under way still occupy their places; their outcome means nothing."""
        self._epoch += 1
        self._forget_all()

    def take_orphans(self) -> list[Version]:
        """Return, once, the versions that nobody owes any more although they are not durable.

        Those are superseded ones whose superseder was lost, or is superseded by what does not cover them.
        """
        orphans, self._orphans = self._orphans, []
        return orphans

    def take_losses(self) -> int:
        """Return how many prefixes were lost since the last call."""
        losses, self._losses = self._losses, 0
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
        self._lost.discard_covered(item.namespace, item.tokens, reusable_from)
        durable = [Version(item.namespace, item.tokens, item.version)]
        if attempt.record.live:
            durable += self._settle(attempt.record, reusable_from)
        for ancestor in self._held.ancestors(item.tokens, item.namespace):
            if len(ancestor.tokens) >= reusable_from and ancestor.key not in self._writing:
                durable.append(Version(*ancestor.key, ancestor.item.version))
                durable += self._settle(ancestor, reusable_from)
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
            self._rehouse(record, lambda rider: rider.item is not None)
        elif record.dropped and not self._held.known(record.key):
            self._lose(record.key, record.item.version)
        return opened

    # -- flush ------------------------------------------------------------------------------------------

    def begin_flush(self) -> None:
        """Try every version once from now on, whatever delays it. Until ``end_flush`` none is tried twice."""
        self._runs += 1
        self._run = self._runs
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
        self._run = 0

    def lost(self) -> list[Key]:
        """Return the lost prefixes, oldest first."""
        return self._lost.keys()

    def found(self, key: Key) -> None:
        """Note that a lost prefix turned out to be covered by what is stored."""
        self._lost.discard(key)

    def tally(self) -> Tally:
        """Return the figures."""
        run = self._run
        return Tally(
            pending=self._held.pending,
            pending_bytes=self._held.pending_bytes,
            queued=sum(1 for record in self._held if record.ticket),
            writing=len(self._writing),
            missing=len(self._lost),
            flushed=self._flushed if run else 0,
            failed=sum(1 for record in self._failed.values() if run and record.run == run),
            dropped=self._lost.during(run) if run else 0,
        )

    # -- records ----------------------------------------------------------------------------------------

    def _admit(self, record: Record[P]) -> None:
        """Hold a record, or let it ride on one that covers it."""
        host = self._held.serving(record.tokens, record.namespace)
        if host is not None and host.hopeful:
            self._held.ride(host, Rider(record.item.version, record.item), len(record.tokens))
            if record.urgent:
                self.urge(host.tokens, host.namespace)
            return
        self._held.add(record)
        self._supersede(record)
        if self._wanted(record):
            self._enqueue(record)

    def _supersede(self, record: Record[P]) -> None:
        for ancestor in self._held.ancestors(record.tokens, record.namespace):
            if record.serves(len(ancestor.tokens)) and ancestor.key not in self._writing:
                self._remove(ancestor)
                self._held.ride(record, Rider(ancestor.item.version, None), len(ancestor.tokens))
                record.urgent = record.urgent or ancestor.urgent
                self._rehouse(ancestor)

    def _remove(self, record: Record[P]) -> None:
        self._held.remove(record)
        self._failed.pop(record.key, None)

    def _settle(self, record: Record[P], reusable_from: int) -> list[Version]:
        """Take a durable record out; return the versions that rode on it and are covered."""
        self._remove(record)
        covered = [length for length in record.riders if length >= reusable_from]
        riders = [(length, self._held.unhook(record, length)) for length in covered]
        self._rehouse(record)
        return [Version(*rider_key(record, length), rider.version) for length, rider in riders]

    def _lose(self, key: Key, version: int) -> None:
        host = self._held.serving(key[1], key[0])
        if host is not None:
            self._held.ride(host, Rider(version, None, dropped=True), len(key[1]))
        else:
            self._losses += 1
            self._lost.add(key, self._run)

    def _rehouse(self, record: Record[P], which: Callable[[Rider[P]], bool] = lambda _: True) -> None:
        """Find other places for riders of a record that has left or may not be written; the longest first."""
        for length in sorted((n for n, rider in record.riders.items() if which(rider)), reverse=True):
            rider, key = self._held.unhook(record, length), rider_key(record, length)
            if rider.item is not None:
                self._admit(record_of(rider.item))
            elif self._held.known(key):
                continue
            elif rider.dropped:
                self._lose(key, rider.version)
            elif (host := self._held.serving(key[1], key[0])) is not None:
                self._held.ride(host, rider, length)
            else:
                self._orphans.append(Version(*key, rider.version))

    # -- queue ------------------------------------------------------------------------------------------

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
