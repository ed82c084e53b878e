"""What RAM holds and what leaves it, in terms of durability: the policy behind ``residency.py``.

An entry is durable, announced (durability brings it to disk), or withheld (not durable and not announced:
a longer one may supersede it soon, its file was withdrawn again and again, or the SSD tier was cleared; it is
announced when it has to go, when a flush asks, or when its time has come, see ``withholding.py``). No I/O:
what it tells durability are messages. Loop thread only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ...storage.residence import Residence, Resident
from ..durability import DirtyCheckpoint, NotOwed
from .tiers import EntryFigures
from .withholding import DEFER_SHARE, PROVISIONAL_S, due_s, rewrite_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...runtime.engine.checkpoint import Checkpoint, MemoryGauge
    from ...storage.index import Match
    from ...storage.tokens import TokenIds
    from .tiers import DurabilityPort, MissReason, ResidencyCounts, ResidencyOptions

Entry: TypeAlias = "Resident[Checkpoint]"


@dataclass(slots=True)
class Draining:
    """A drain under way: whose write it waits for, and how many entries it has moved out of RAM."""

    waiting: list[Entry] = field(default_factory=list["Entry"])
    demoted: int = 0


class RamTier:
    """The entries in RAM under their byte limits.

    ``durability`` None: there is no SSD tier, and what has to go is gone.
    """

    def __init__(
        self,
        durability: DurabilityPort | None,
        memory: MemoryGauge,
        options: ResidencyOptions,
        counts: ResidencyCounts,
    ) -> None:
        self._durability = durability
        self._memory = memory
        self._options = options
        self._counts = counts
        self._reserved_bytes = 0
        self.entries = Residence["Checkpoint"](
            options.max_bytes, max_sessions=options.max_sessions, retention=options.retention
        )

    # -- look -------------------------------------------------------------------------------------------

    def longest(self, tokens: TokenIds, namespace: str, session: str | None) -> Match[Entry] | None:
        """Return what can be lent of at most all but the last token; nothing below ``min_tokens``."""
        match = self.entries.index.longest(tokens, namespace, len(tokens) - 1)
        if match is not None and session is None and match.length < self._options.min_tokens:
            return None
        return match

    def why_nothing(self, tokens: TokenIds, namespace: str) -> MissReason:
        """Return why ``longest`` finds nothing."""
        index = self.entries.index
        if len(tokens) <= 1:
            return "too_short"
        if not index:
            return "empty"
        if index.longest(tokens, namespace, len(tokens) - 1) is not None:
            return "below_min_tokens"
        shared = index.common_prefix(tokens, namespace)
        return "untrimmable" if shared >= max(1, self._options.min_tokens) else "no_match"

    # -- change -----------------------------------------------------------------------------------------

    def put(
        self, checkpoint: Checkpoint, session: str | None, now_s: float, *, provisional: bool = False
    ) -> float | None:
        """Keep a published checkpoint, announce it, and make room.

        One that fits and may be superseded soon is withheld instead; returns until when.
        """
        length = len(checkpoint.spec.tokens)
        if length == 0 or (session is None and length < self._options.min_tokens):
            return None
        entry = Resident(checkpoint, self._counts.next_version(), now_s, durable=False)
        entry.durable_prefix = self._durable_prefix(entry)
        gone = self.entries.put(entry, session).gone
        urgent = entry.held_bytes > self._options.max_bytes
        entry.deferred = provisional or self._may_defer(entry)
        waited_s = [old.withheld_until_s for old in gone if old.deferred]  # its work is this one's now
        entry.withheld_until_s = min([now_s + PROVISIONAL_S if provisional else now_s, *waited_s])
        until_s: float | None = due_s(entry)
        if self._durability is None or urgent or until_s <= now_s:
            self._announce(entry, urgent=urgent)
            until_s = None
        self.reclaim()
        return until_s

    def _may_defer(self, new: Entry) -> bool:
        """Whether RAM has room for one more that is not written yet: what has to go must be able to."""
        deferred_bytes = sum(entry.held_bytes for entry in self.entries if entry.deferred)
        return deferred_bytes + new.held_bytes <= DEFER_SHARE * self._options.max_bytes

    def _durable_prefix(self, new: Entry) -> int:
        """Return how much of ``new`` is durable, going by the entry that shares most with it."""
        match = self.entries.index.longest(new.tokens, new.namespace, len(new.tokens))
        return 0 if match is None else min(match.length, match.entry.durable_prefix)

    def publish(self, checkpoint: Checkpoint, file_id: str, now_s: float) -> Entry:
        """Keep a restored checkpoint, which is durable, unless RAM got one that serves as much meanwhile.

        Makes no room: its borrowers must have their leases first.
        """
        spec = checkpoint.spec
        present = self.entries.index.get(spec.tokens, spec.namespace)
        if present is not None and present.reusable_from <= spec.reusable_from:
            return present
        entry = Resident(checkpoint, self._counts.next_version(), now_s, durable=True)
        entry.file_id = file_id
        self.entries.put(entry, None)
        return entry

    def lend(self, entry: Entry, session: str | None, now_s: float) -> None:
        """Count a lease. A session without a checkpoint refers to this one from now on (seed §5.12)."""
        entry.leases += 1
        if self.entries.holds(entry):
            self.entries.use(entry, now_s)
        if session is not None:
            latest = self.entries.latest(session, entry.namespace)
            self._counts.session_hits += latest is entry
            if latest is None and self.entries.holds(entry):
                self.entries.reference(session, entry)

    def give_back(self, entry: Entry) -> None:
        """End a lease; what was kept only for it may go now."""
        assert entry.leases > 0, "a lease ended twice"
        entry.leases -= 1
        if self.entries.bytes > self._options.max_bytes:
            self.reclaim()

    def clear(self) -> int:
        """Let everything go. What durability holds of it goes to disk all the same."""
        count = len(self.entries)
        self.entries.clear()
        return count

    # -- durability -------------------------------------------------------------------------------------

    def persisted(self, tokens: TokenIds, namespace: str, version: int) -> None:
        """Mark a version durable: a file serves exactly its tokens. Ancestors are told by themselves.

        What goes on from there has that much less to lose, also when the version itself was superseded.
        """
        for longer in self.entries.index.descendants(tokens, namespace):
            longer.durable_prefix = max(longer.durable_prefix, len(tokens))
        entry = self.entries.index.get(tokens, namespace)
        if entry is not None and entry.version == version:
            entry.durable = entry.announced = True
            entry.durable_prefix = len(tokens)
            entry.failed = entry.urged = False
            self.reclaim()

    def persist_failed(self, tokens: TokenIds, namespace: str, version: int, error: Exception) -> None:
        """Note that a version could not be written: durability tries again, or waits to be told again."""
        entry = self.entries.index.get(tokens, namespace)
        if entry is None or entry.version != version:
            return
        if isinstance(error, NotOwed):
            self._announce(entry, urgent=entry.urged)
        else:
            entry.failed = True

    def withdrawn(self, tokens: TokenIds, namespace: str, now_s: float, *, withhold: bool) -> None:
        """A file has gone: its entry, and whatever it may have served besides, are not durable any more.

        They are announced again, at once the first time. One that has a file of its own is known by it.
        """
        index = self.entries.index
        exact = index.get(tokens, namespace)
        affected = [] if exact is None else [exact]
        if exact is None or exact.trimmable:
            affected += index.ancestors(tokens, namespace)
        for entry in affected:
            if entry.durable:
                self._withdraw(entry, now_s, withhold=withhold)
        for entry in (*affected, *index.descendants(tokens, namespace)):
            if not entry.durable:
                entry.durable_prefix = 0

    def _withdraw(self, entry: Entry, now_s: float, *, withhold: bool) -> None:
        entry.durable = entry.announced = entry.urged = False
        entry.file_id = None
        if withhold:
            entry.withheld_until_s = math.inf
            return
        if entry.withdrawals:
            entry.withheld_until_s = now_s + rewrite_s(entry.withdrawals)
        entry.withdrawals += 1
        if entry.withheld_until_s <= now_s:
            self._announce(entry)

    def withhold_all(self) -> None:
        """Nothing is on disk and nothing is under way there (the SSD tier was cleared)."""
        for entry in self.entries:
            entry.durable = entry.announced = entry.urged = False
            entry.file_id = None
            entry.durable_prefix = 0
            entry.withheld_until_s = math.inf

    def durability_ended(self, now_s: float, *, restarting: bool) -> None:
        """Durability has forgotten everything: announce all of it again, now or by and by.

        Nothing passes for durable until it says so anew: the archive may have restarted with it, found fewer
        files than there were, and told of none. New versions, since the old ones may be called durable yet.
        """
        for entry in self.entries:
            entry.durable = entry.announced = entry.urged = False
            entry.durable_prefix = 0
            entry.version = self._counts.next_version()
        if restarting:
            self.announce_due(now_s)

    def announce_due(self, now_s: float) -> None:
        """Announce what was withheld for long enough, and what durability had no room for."""
        self.announce(entry for entry in self.entries if due_s(entry) <= now_s)

    def next_due_s(self, now_s: float) -> float | None:
        """Return when the next withheld entry is due, after ``now_s``; None when none ever is."""
        next_s = min((at_s for at_s in map(due_s, self.entries) if at_s > now_s), default=math.inf)
        return None if next_s == math.inf else next_s

    def announce_all(self) -> int:
        """Announce everything that is not durable; return how many entries that are."""
        self.announce(self.entries)
        return sum(not entry.durable for entry in self.entries)

    def announce(self, entries: Iterable[Entry]) -> None:
        """Announce those that are neither durable nor announced, until durability's mailbox is full."""
        for entry in entries:
            if not entry.durable and not entry.announced and not self._announce(entry):
                return

    def _announce(self, entry: Entry, *, urgent: bool = False) -> bool:
        if self._durability is None:
            return False
        dirty = DirtyCheckpoint(entry.checkpoint, entry.version, urgent)
        entry.announced = self._durability.dirty(dirty) is not False
        entry.urged = urgent and entry.announced
        entry.failed = entry.deferred = False
        entry.withheld_until_s = 0.0
        return entry.announced

    def _urge(self, entry: Entry) -> None:
        if not entry.announced:
            self._announce(entry, urgent=True)
        elif not entry.urged and self._durability is not None:
            entry.urged = self._durability.urge(entry.tokens, entry.namespace) is not False

    # -- what leaves ------------------------------------------------------------------------------------

    def reclaim(self) -> None:
        """Get down to the target as far as durability allows, and below the hard ceiling in any case.

        The target is the byte cap, less what the engine's memory is beyond its pressure limit. The least
        recently used go; one that is not durable yet stays and is urged, and no hotter one goes in its stead.
        What restores under way will need counts against the ceiling.
        """
        for victim in self.entries.victims(self._target_bytes()):
            if self._may_go(victim):
                self._evict(victim)
            else:
                self._urge(victim)
        ceiling_bytes = self._options.hard_max_bytes - self._reserved_bytes
        for victim in self.entries.victims(ceiling_bytes, lent=True):
            if victim.durable or self._durability is None:
                self._evict(victim)
            else:
                self._lose(victim, self._durability)

    def _may_go(self, entry: Entry) -> bool:
        return entry.durable or self._durability is None

    def _target_bytes(self) -> int:
        target = self._options.max_bytes
        reading = self._memory()
        if reading.limit_bytes <= 0:
            return target
        excess = reading.active_bytes - int(self._options.pressure * reading.limit_bytes)
        return target if excess <= 0 else min(target, max(0, self.entries.bytes - excess))

    def reserve(self, file_bytes: int) -> int | None:
        """Make room below the hard ceiling for a restore before it allocates; return what was reserved.

        None, and nothing goes, where there is no room: nothing undurable is given up for it. A file is a
        little larger than what it brings, so no more than the cap is reserved: a lone restore finds room.
        """
        size_bytes = min(file_bytes, self._options.max_bytes)
        ceiling_bytes = self._options.hard_max_bytes - self._reserved_bytes - size_bytes
        going = [entry for entry in self.entries.victims(ceiling_bytes) if self._may_go(entry)]
        if self.entries.bytes - sum(entry.held_bytes for entry in going) > ceiling_bytes:
            return None
        for entry in going:
            self._evict(entry)
        self._reserved_bytes += size_bytes
        return size_bytes

    def unreserve(self, size_bytes: int) -> None:
        """The restore has ended; what it brought is counted from its ``publish`` on."""
        self._reserved_bytes -= size_bytes
        assert self._reserved_bytes >= 0, "more was given back than was reserved"

    def demote_idle(self, now_s: float) -> None:
        """Move what was not used for long to SSD; nothing happens without one."""
        if self._durability is None or not self._options.demote_idle_s:
            return
        for entry in self.entries.idle_since(now_s - self._options.demote_idle_s):
            if entry.durable:
                self._demote(entry)
            else:
                self._urge(entry)

    def drain(self) -> Draining:
        """Begin to move everything that is not lent to SSD; ``advance`` goes on with it."""
        draining = Draining()
        if self._durability is not None:
            draining.waiting = [entry for entry in self.entries if not entry.leases]
            for entry in draining.waiting:
                if not entry.durable:
                    self._urge(entry)
        self.advance(draining)
        return draining

    def advance(self, draining: Draining) -> bool:
        """Move out what has become durable; True when nothing is left to wait for."""
        waiting: list[Entry] = []
        for entry in draining.waiting:
            if not self.entries.holds(entry):
                continue
            if not entry.durable:
                waiting += [] if entry.failed else [entry]
            elif not entry.leases:
                self._demote(entry)
                draining.demoted += 1
        draining.waiting = waiting
        return not waiting

    def _evict(self, entry: Entry) -> None:
        self.entries.remove(entry)
        self._counts.evictions += 1

    def _demote(self, entry: Entry) -> None:
        self.entries.remove(entry)
        self._counts.demotions += 1

    def _lose(self, entry: Entry, durability: DurabilityPort) -> None:
        self.entries.remove(entry)
        self._counts.lost += 1
        durability.dropped(entry.tokens, entry.namespace, entry.version)

    # -- figures ----------------------------------------------------------------------------------------

    def figures(self, now_s: float) -> tuple[EntryFigures, ...]:
        """Return what is held, entry by entry."""
        return tuple(
            EntryFigures(
                namespace=entry.namespace,
                tokens=len(entry.tokens),
                bytes=entry.held_bytes,
                trimmable=entry.trimmable,
                reusable_from=entry.reusable_from,
                durable=entry.durable,
                leases=entry.leases,
                sessions=len(entry.sessions),
                idle_s=now_s - entry.used_s,
            )
            for entry in self.entries
        )
