"""Which dirty records stand for which other prefixes, and what becomes of those when they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .dirty import Key, Record, Rider, Version, record_of
from .ledger import Ledger, rider_key
from .lost import LostPrefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .dirty import Attempt

P = TypeVar("P")


class Coverage(Generic[P]):
    """Admits records, lets them ride on one another, settles, loses and rehouses them.

    ``writing``: the prefixes that are being written, which nothing supersedes; attempts of another ``epoch``
    mean nothing. ``run``: the flush that is on, or 0. For their owner to take, ``fresh`` collects records
    that were admitted or made urgent, ``left`` those that are held no more, ``orphans`` versions that nobody
    owes any more; ``losses`` counts lost prefixes.
    """

    def __init__(self, writing: Mapping[Key, Attempt[P]], lost_limit: int, epoch: int, run: int) -> None:
        self._writing = writing
        self._epoch = epoch
        self.held = Ledger[P]()
        self.lost = LostPrefixes(lost_limit)
        self.run = run
        self.fresh: list[Record[P]] = []
        self.left: list[Record[P]] = []
        self.orphans: list[Version] = []
        self.losses = 0

    def admit(self, record: Record[P], *, again: bool = False) -> None:
        """Hold a record, or let it ride on one that covers it.

        Ancestors that it serves are superseded by it, as in RAM; by one that was known before (``again``)
        they are only covered: they may be newer than it.
        """
        host = self.held.serving(record.tokens, record.namespace)
        if host is not None and host.hopeful:
            self.held.ride(host, Rider(record.item.version, record.item), len(record.tokens))
            if record.urgent and not host.urgent:
                host.urgent = True
                self.fresh.append(host)
            return
        self.held.add(record)
        self._carry_ancestors(record, keep=again)
        self.fresh.append(record)

    def replace(self, old: Record[P], record: Record[P]) -> None:
        """Admit a record in place of an older version, with what rides on that."""
        record.urgent = record.urgent or old.urgent
        self._remove(old)
        self.admit(record)
        self.rehouse(old)

    def _remove(self, record: Record[P]) -> None:
        self.held.remove(record)
        self.left.append(record)

    def _carry_ancestors(self, record: Record[P], *, keep: bool) -> None:
        for ancestor in self.held.ancestors(record.tokens, record.namespace):
            if record.serves(len(ancestor.tokens)) and ancestor.key not in self._writing:
                self._remove(ancestor)
                rider = Rider(ancestor.item.version, ancestor.item if keep else None)
                self.held.ride(record, rider, len(ancestor.tokens))
                record.urgent = record.urgent or ancestor.urgent
                self.rehouse(ancestor)

    def settle(self, record: Record[P], reusable_from: int) -> list[Version]:
        """Note that the first ``reusable_from`` to all tokens of a record are durable.

        Returns the versions, other than its own, that are durable by that.
        """
        item = record.item
        self.lost.discard_covered(item.namespace, item.tokens, reusable_from)
        durable = self._take_out(record, reusable_from) if record.live else []
        for ancestor in self.held.ancestors(item.tokens, item.namespace):
            if len(ancestor.tokens) >= reusable_from and ancestor.key not in self._writing:
                durable.append(Version(*ancestor.key, ancestor.item.version))
                durable += self._take_out(ancestor, reusable_from)
        return durable

    def _take_out(self, record: Record[P], reusable_from: int) -> list[Version]:
        self._remove(record)
        covered = [length for length in record.riders if length >= reusable_from]
        riders = [(length, self.held.unhook(record, length)) for length in covered]
        self.rehouse(record)
        return [Version(*rider_key(record, length), rider.version) for length, rider in riders]

    def drop(self, key: Key, version: int) -> None:
        """Let a version's payload go; one that is being written may still make it."""
        host = self.held.host(key)
        record = self.held.get(key[1], key[0])
        if host is not None:
            rider = host.riders[len(key[1])]
            if rider.version == version:
                self.held.shed(rider)
                rider.dropped = True
        elif record is not None and record.item.version == version:
            self._remove(record)
            attempt = self._writing.get(key)
            if attempt is not None and attempt.epoch == self._epoch:
                attempt.record.dropped = True  # lost if that fails
            else:
                self.lose(key, version)
            self.rehouse(record)

    def lose(self, key: Key, version: int) -> None:
        """Note that a prefix was let go. As long as a record stands for it, it is not lost."""
        host = self.held.serving(key[1], key[0])
        if host is not None:
            self.held.ride(host, Rider(version, None, dropped=True), len(key[1]))
        else:
            self.losses += 1
            self.lost.add(key, self.run)

    def rehouse(self, record: Record[P], which: Callable[[Rider[P]], bool] = lambda _: True) -> None:
        """Find other places for riders of a record that has left or may not be written; the longest first."""
        for length in sorted((n for n, rider in record.riders.items() if which(rider)), reverse=True):
            rider, key = self.held.unhook(record, length), rider_key(record, length)
            if rider.item is not None:
                self.admit(record_of(rider.item), again=True)
            elif self.held.known(key):
                continue
            elif rider.dropped:
                self.lose(key, rider.version)
            elif (host := self.held.serving(key[1], key[0])) is not None:
                self.held.ride(host, rider, length)
            else:
                self.orphans.append(Version(*key, rider.version))
