"""The RAM tier of the one logical cache, and the only door to both tiers (DESIGN §5, seed §4).

Prefixes are lent: a lease holds the immutable checkpoint itself, its borrower decodes from clones. RAM
answers at once; where SSD may hold more it is asked beside the mailbox, and a restore is shared by all who
want the same file and published in RAM the moment it is there. What is put is announced to durability; what
must go leaves only when it is durable, short of the hard ceiling. A restarted incarnation starts empty: SSD
is the truth, borrowers keep what they hold, and late answers for its predecessor fit no version of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from ..runtime.kernel import (
    Actor,
    ActorRef,
    Ask,
    AskTimeout,
    Deferred,
    Overloaded,
    Terminated,
)
from ..storage.entry import key_digest
from .archive import Withdrawn
from .durability import Persisted, PersistFailed
from .gate import Candidates, RestoreGate, is_harm, servable
from .ram_tier import Draining, RamTier
from .reader import Restored, RestoreJob
from .restores import Pending, Restore, Restores
from .tiers import (
    ClearReport,
    ClearTier,
    DrainReport,
    EntryFigures,
    Explanation,
    Lease,
    MissReason,
    ResidencyFigures,
    Taken,
)

if TYPE_CHECKING:
    from ..runtime.engine.checkpoint import Checkpoint, MemoryGauge
    from ..storage.entry import StoredEntry
    from ..storage.index import Match
    from ..storage.tokens import TokenIds
    from .ram_tier import Entry
    from .tiers import ArchivePort, DurabilityPort, ReadersPort, ResidencyCounts, ResidencyOptions

LOOKUPS_PER_TAKE: Final = 3
"""How often one take asks SSD: once, and again when a restore failed or RAM let go of its match."""
TOUCH_S: Final = 60.0
"""How often at most the file behind a RAM entry is touched, so that its use in RAM keeps it on SSD."""
LOOK_AGAIN_S: Final = 0.05
"""When a take asks again while a file that failed it is still on its way out."""
QUARANTINED_S: Final = 1.0
"""How long a file that was set aside is not tried, should a lookup still find it."""
ADMIN_ASKS: Final = 16
"""How many drains, clears and explanations may be under way, each kind."""
_take_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Take(Ask[Taken]):
    """Lend the longest usable prefix. ``id`` names the take, and its lease; ids are never used twice."""

    id: int
    tokens: TokenIds
    namespace: str
    session: str | None
    prefill_tps: float | None
    borrower: ActorRef[Any]


@dataclass(frozen=True, slots=True)
class Release:
    """End a lease, or a take that is still waiting. Unknown ids are ignored."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class Put:
    """Keep a checkpoint."""

    checkpoint: Checkpoint
    session: str | None


@dataclass(frozen=True, slots=True)
class Pressure:
    """Look at the engine's memory and let go of what it asks for."""


@dataclass(frozen=True, slots=True)
class Drain(Ask[DrainReport]):
    """Move to SSD whatever can be; answered when nothing more will come of it."""


@dataclass(frozen=True, slots=True)
class Clear(Ask[ClearReport]):
    """Empty a tier or both."""

    tier: ClearTier


@dataclass(frozen=True, slots=True)
class Explain(Ask[Explanation]):
    """Say what a take would get."""

    tokens: TokenIds
    namespace: str
    prefill_tps: float | None


@dataclass(frozen=True, slots=True)
class Announce(Ask[int]):
    """Tell durability of everything that is not durable; answered with how many entries that are."""


@dataclass(frozen=True, slots=True)
class CloseSession(Ask[int]):
    """Forget a session; answered with how many references it had."""

    session: str


@dataclass(frozen=True, slots=True)
class GetEntries(Ask[tuple[EntryFigures, ...]]):
    """What RAM holds."""


@dataclass(frozen=True, slots=True)
class GetFigures(Ask[ResidencyFigures]):
    """The figures."""


@dataclass(frozen=True, slots=True)
class Found:
    """SSD was asked for a take (from a task). ``error``: it could not answer."""

    take_id: int
    match: Match[StoredEntry] | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class RestoreEnded:
    """A reader is done (from a task)."""

    restore_id: str
    restored: Restored | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LookAgain:
    """It is time to ask SSD again for a take."""

    take_id: int


@dataclass(frozen=True, slots=True)
class Explained:
    """SSD was asked for an explanation (from a task)."""

    explain: Explain
    answer: Deferred[Explanation]
    match: Match[StoredEntry] | None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Cleared:
    """SSD was cleared, or could not be (from a task)."""

    answer: Deferred[ClearReport]
    ram: int
    ssd: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time for what nobody asks for: idle entries, announcements that are due."""


ResidencyMessage: TypeAlias = (
    Take
    | Release
    | Put
    | Pressure
    | Drain
    | Clear
    | Explain
    | Announce
    | CloseSession
    | GetEntries
    | GetFigures
    | Found
    | RestoreEnded
    | LookAgain
    | Explained
    | Cleared
    | Tick
    | Persisted
    | PersistFailed
    | Withdrawn
    | Terminated
)


@dataclass(slots=True)
class _Lent:
    entry: Entry
    borrower: ActorRef[Any]


@dataclass(slots=True)
class _Drain:
    answer: Deferred[DrainReport]
    draining: Draining


class ResidencyActor(Actor[ResidencyMessage]):
    """See the module. ``archive``, ``readers`` and ``durability`` are there together, or none of them."""

    def __init__(
        self,
        archive: ArchivePort | None,
        readers: ReadersPort | None,
        durability: DurabilityPort | None,
        memory: MemoryGauge,
        options: ResidencyOptions,
        *,
        counts: ResidencyCounts,
    ) -> None:
        self._archive = archive
        self._readers = readers
        self._durability = durability
        self._options = options
        self._counts = counts
        self._ram = RamTier(durability, memory, options, counts)
        self._restores = Restores[Take]()
        self._leases: dict[int, _Lent] = {}
        self._gate = RestoreGate(options, counts.cost)
        self._drains: list[_Drain] = []
        self._clears = 0
        self._explains = 0

    async def started(self) -> None:
        """Watch durability, whose restart forgets what it was told."""
        if self._durability is not None:
            self.ctx.watch(self._durability.ref)
            self._set_tick()

    async def receive(self, message: ResidencyMessage) -> None:
        """Handle one message; nothing here waits."""
        match message:
            case Take():
                self._take(message)
            case Release():
                self._release(message.lease_id)
            case Put():
                if self._options.max_bytes:
                    self._ram.put(message.checkpoint, message.session, self.ctx.now_s())
            case Found() | RestoreEnded() | LookAgain():
                self._hear_of_ssd(message)
            case Persisted() | PersistFailed() | Withdrawn():
                self._hear_of_files(message)
            case Terminated():
                self._ended(message)
            case Tick() | Pressure():
                self._look_after(message)
            case _:
                self._administer(message)

    def _hear_of_ssd(self, message: Found | RestoreEnded | LookAgain) -> None:
        match message:
            case Found():
                self._found(message)
            case RestoreEnded():
                self._restore_ended(message)
            case LookAgain():
                pending = self._restores.looked_up(message.take_id)
                if pending is not None and self._archive is not None:
                    self._look_up(pending, self._archive)
            case _:
                assert_never(message)

    def _hear_of_files(self, message: Persisted | PersistFailed | Withdrawn) -> None:
        match message:
            case Persisted():
                self._ram.persisted(message.tokens, message.namespace, message.version)
            case PersistFailed():
                self._ram.persist_failed(message.tokens, message.namespace, message.version, message.error)
            case Withdrawn():
                now_s, clearing = self.ctx.now_s(), self._clears > 0
                self._ram.withdrawn(message.tokens, message.namespace, now_s, withhold=clearing)
            case _:
                assert_never(message)
        self._advance_drains()

    def _administer(
        self,
        message: Drain
        | Clear
        | Cleared
        | Explain
        | Explained
        | Announce
        | CloseSession
        | GetEntries
        | GetFigures,
    ) -> None:
        match message:
            case Drain():
                self._drain(message)
            case Clear():
                self._clear(message)
            case Cleared():
                self._cleared(message)
            case Explain():
                self._explain(message)
            case Explained():
                self._explains -= 1
                message.answer.reply(self._explanation(message))
            case Announce():
                self.ctx.reply(message, self._ram.announce_all())
            case CloseSession():
                self.ctx.reply(message, self._ram.entries.close_session(message.session))
            case GetEntries():
                self.ctx.reply(message, self._ram.figures(self.ctx.now_s()))
            case GetFigures():
                self.ctx.reply(message, self._figures())
            case _:
                assert_never(message)

    # -- take -------------------------------------------------------------------------------------------

    def _take(self, take: Take) -> None:
        pending = Pending(take, take.id, take.borrower, self.ctx.defer(take))
        self.ctx.watch(take.borrower)
        if not self._options.max_bytes:
            self._miss(pending, "cache_off", 0)
            return
        self._ram.reclaim()
        if self._archive is None or not self._ssd_may_add(take):
            self._settle(pending, None)
        elif self._restores.waiting >= self._options.lookups:
            self._settle(pending, "busy")
        else:
            self._restores.wait(pending)
            self._look_up(pending, self._archive)

    def _ssd_may_add(self, take: Take) -> bool:
        limit = len(take.tokens) - 1
        if take.session is None and limit < self._options.min_tokens:
            return False
        return limit - self._in_ram(take) >= max(1, self._options.restore_min_tokens)

    def _in_ram(self, take: Take) -> int:
        match = self._ram.longest(take.tokens, take.namespace, take.session)
        return 0 if match is None else match.length

    def _look_up(self, pending: Pending[Take], archive: ArchivePort) -> None:
        take = pending.take
        pending.lookups += 1
        pending.known = self._in_ram(take)
        self.ctx.spawn(
            archive.find(take.tokens, take.namespace, pending.known, self._options.find_timeout_s),
            lambda match: Found(take.id, match),
            lambda error: Found(take.id, None, error),
        )

    @staticmethod
    def _may_look_again(pending: Pending[Take]) -> bool:
        return pending.lookups < LOOKUPS_PER_TAKE

    def _found(self, message: Found) -> None:
        """Go on with a take: RAM may have got more meanwhile, so what SSD adds is reckoned now."""
        pending = self._restores.looked_up(message.take_id)
        if pending is None:
            return
        match, take = message.match, pending.take
        if message.error is not None:
            self._settle(pending, "lookup_failed")
            return
        in_ram = self._in_ram(take)
        gain = servable(match, len(take.tokens) - 1) - in_ram
        if match is None or gain <= 0:
            if in_ram < pending.known and self._may_look_again(pending) and self._archive is not None:
                self._look_up(pending, self._archive)  # what RAM had has gone to SSD meanwhile
            else:
                self._settle(pending, "restore_failed" if pending.failed else None)
            return
        pending.seen = max(pending.seen, match.diverged_at)
        under_way = self._restores.of(match.entry)
        if under_way is not None:
            self._restores.join(pending, under_way)
        elif (
            self._gate.shuns(match.entry, self.ctx.now_s())
            and pending.failed
            and self._may_look_again(pending)
        ):
            self.ctx.after(LOOK_AGAIN_S, LookAgain(take.id))
        else:
            self._restore(pending, match.entry, gain)

    def _restore(self, pending: Pending[Take], entry: StoredEntry, gain: int) -> None:
        reason = self._gate.why_not(entry, gain, pending.take.prefill_tps, self.ctx.now_s())
        if reason is None and self._readers is not None and self._restores.running < self._options.restores:
            self._restores.join(pending, self._begin(entry, self._readers))
        else:
            self._settle(pending, reason or "busy")

    # -- restore ----------------------------------------------------------------------------------------

    def _begin(self, entry: StoredEntry, readers: ReadersPort) -> Restore[Take]:
        restore_id = f"restore-{self._counts.next_version()}"
        restore = self._restores.begin(restore_id, entry)
        restore.task = self.ctx.spawn(
            readers.restore(RestoreJob(restore_id, entry), self._options.restore_timeout_s),
            lambda restored: RestoreEnded(restore_id, restored),
            lambda error: RestoreEnded(restore_id, None, error),
        )
        return restore

    def _restore_ended(self, message: RestoreEnded) -> None:
        restore = self._restores.end(message.restore_id)
        if restore is None:
            return  # everybody had gone, or the cache was cleared
        restored = message.restored
        if restored is None or not _is_of(restored.checkpoint, restore.entry):
            self._restore_failed(restore, message.error)
            return
        self._counts.restores += 1
        self._counts.restored_bytes += restored.read_bytes
        self._counts.restore_ms_last = restored.elapsed_ms
        self._counts.cost.observe(restored.read_bytes, restored.elapsed_ms / 1000.0, self.ctx.now_s())
        entry = self._ram.publish(restored.checkpoint, restore.entry.id, self.ctx.now_s())
        if self._archive is not None:
            self._archive.touch(restore.entry.id)
        for pending in restore.waiters.values():
            self._settle(pending, None, restored=entry, restore_ms=restored.elapsed_ms)
        self._ram.reclaim()

    def _restore_failed(self, restore: Restore[Take], error: Exception | None) -> None:
        """Set a bad file aside, leave a good one alone for a while, and let its takes look for another."""
        self._counts.restore_failures += 1
        entry, archive, now_s = restore.entry, self._archive, self.ctx.now_s()
        missing = isinstance(error and error.__cause__, FileNotFoundError)
        if archive is not None and (missing or error is None or is_harm(error)):
            self._gate.shun(entry, now_s, QUARANTINED_S)
            if missing:
                archive.forget(entry.id)
            else:
                archive.quarantine(entry.id, str(error or "it holds another prefix than its header says"))
        else:
            self._gate.shun(entry, now_s, self._options.shun_s)
        for pending in restore.waiters.values():
            pending.failed = True
            if archive is not None and self._may_look_again(pending):
                self._look_up(pending, archive)
            else:
                self._settle(pending, "restore_failed")

    def _give_up(self, restore: Restore[Take] | None) -> None:
        if restore is not None and restore.task is not None:
            restore.task.cancel()  # which gives the reader's job up

    # -- answers and leases -----------------------------------------------------------------------------

    def _settle(
        self,
        pending: Pending[Take],
        reason: MissReason | None,
        *,
        restored: Entry | None = None,
        restore_ms: float = 0.0,
    ) -> None:
        """Answer a take with the best that RAM has now."""
        self._restores.leave(pending.id)
        take = pending.take
        match = self._ram.longest(take.tokens, take.namespace, take.session)
        if match is None:
            self._miss(pending, reason or self._why_nothing(take.tokens, take.namespace), pending.seen)
            return
        entry, now_s = match.entry, self.ctx.now_s()
        lease = Lease(take.id, entry.checkpoint, match.length)
        tier = "ssd" if entry is restored else "ram"
        diverged_at = max(match.diverged_at, pending.seen)
        if not pending.answer.reply(Taken(lease, tier, match.length, restore_ms, reason, diverged_at)):
            return  # its asker has gone
        self._leases[take.id] = _Lent(entry, take.borrower)
        self._ram.lend(entry, take.session, now_s)
        self._counts.hits += 1
        self._counts.hit_tokens += match.length
        self._counts.prompt_tokens += len(take.tokens)
        if self._archive is not None and entry.durable and now_s - entry.touched_s >= TOUCH_S:
            entry.touched_s = now_s
            self._archive.touch(entry.file_id or key_digest(entry.namespace, entry.tokens))

    def _miss(self, pending: Pending[Take], reason: MissReason, seen: int) -> None:
        take = pending.take
        shared = self._ram.entries.index.common_prefix(take.tokens, take.namespace)
        if pending.answer.reply(Taken(None, "none", 0, 0.0, reason, max(shared, seen))):
            self._counts.misses += 1
            self._counts.prompt_tokens += len(take.tokens)

    def _why_nothing(self, tokens: TokenIds, namespace: str) -> MissReason:
        if not self._options.max_bytes:
            return "cache_off"
        reason = self._ram.why_nothing(tokens, namespace)
        return "no_match" if reason == "empty" and self._archive is not None else reason

    def _release(self, lease_id: int) -> None:
        lent = self._leases.pop(lease_id, None)
        if lent is not None:
            self._ram.give_back(lent.entry)
            return
        _, restore = self._restores.leave(lease_id)
        self._give_up(restore)

    def _turn_away(self, pending: Pending[Take], reason: MissReason) -> None:
        _, restore = self._restores.leave(pending.id)
        self._give_up(restore)
        self._miss(pending, reason, pending.seen)

    def _ended(self, message: Terminated) -> None:
        """Durability has forgotten what it was told, or a borrower needs its leases no more."""
        if self._durability is not None and message.ref is self._durability.ref:
            if message.reason != "gone":
                self.ctx.watch(message.ref)
            if message.restarting:
                self._ram.durability_restarted()
            return
        for lease_id, lent in list(self._leases.items()):
            if lent.borrower is message.ref:
                self._release(lease_id)
        for pending in self._restores:
            if pending.borrower is message.ref:
                self._turn_away(pending, "borrower_gone")

    # -- upkeep -----------------------------------------------------------------------------------------

    def _set_tick(self) -> None:
        self.ctx.after(self._options.tick_s, Tick())

    def _look_after(self, message: Tick | Pressure) -> None:
        if isinstance(message, Pressure):
            self._ram.reclaim()
            return
        now_s = self.ctx.now_s()
        self._ram.announce_due(now_s)
        self._ram.demote_idle(now_s)
        self._advance_drains()
        self._set_tick()

    def _drain(self, message: Drain) -> None:
        if len(self._drains) >= ADMIN_ASKS:
            self._refuse(message)
            return
        self._drains.append(_Drain(self.ctx.defer(message), self._ram.drain()))
        self._advance_drains()

    def _advance_drains(self) -> None:
        under_way: list[_Drain] = []
        for drain in self._drains:
            if drain.answer.closed:
                continue
            if self._ram.advance(drain.draining):
                entries = self._ram.entries
                drain.answer.reply(DrainReport(drain.draining.demoted, len(entries), entries.bytes))
            else:
                under_way.append(drain)
        self._drains = under_way

    def _clear(self, message: Clear) -> None:
        """Empty the tiers. Nothing from before is lent afterwards: who waits for SSD is turned away."""
        archive = None if message.tier == "ram" else self._archive
        if archive is not None and (self._clears >= ADMIN_ASKS or not self._reset_durability()):
            self._refuse(message)
            return
        for pending in self._restores:
            self._turn_away(pending, "cleared")
        ram = 0 if message.tier == "ssd" else self._ram.clear()
        self._advance_drains()
        if archive is None:
            self.ctx.reply(message, ClearReport(ram, 0))
            return
        self._ram.withhold_all()
        self._clears += 1
        answer = self.ctx.defer(message)
        self.ctx.spawn(
            archive.clear(self._options.clear_timeout_s),
            lambda count: Cleared(answer, ram, count),
            lambda error: Cleared(answer, ram, 0, error),
        )

    def _reset_durability(self) -> bool:
        return self._durability is None or self._durability.reset() is not False

    def _cleared(self, message: Cleared) -> None:
        self._clears -= 1
        if message.error is not None:
            message.answer.reject(message.error)
        else:
            message.answer.reply(ClearReport(message.ram, message.ssd))

    def _refuse(self, message: Ask[Any]) -> None:
        operation = type(message).__name__
        self.ctx.reject(message, Overloaded(self.ctx.path, operation, "too much of that is under way"))

    # -- explain and figures ----------------------------------------------------------------------------

    def _explain(self, message: Explain) -> None:
        if self._archive is None or not self._options.max_bytes:
            self._explains += 1
            self._administer(Explained(message, self.ctx.defer(message), None))
            return
        if self._explains >= ADMIN_ASKS:
            self._refuse(message)
            return
        self._explains += 1
        answer = self.ctx.defer(message)
        self.ctx.spawn(
            self._archive.find(message.tokens, message.namespace, 0, self._options.find_timeout_s),
            lambda match: Explained(message, answer, match),
            lambda _: Explained(message, answer, None, failed=True),
        )

    def _explanation(self, message: Explained) -> Explanation:
        tokens, namespace = message.explain.tokens, message.explain.namespace
        candidates = Candidates(
            prompt_tokens=len(tokens),
            ram=self._ram.longest(tokens, namespace, None),
            ssd=message.match,
            shared=self._ram.entries.index.common_prefix(tokens, namespace),
            nothing=self._why_nothing(tokens, namespace),
            ssd_failed=message.failed,
        )
        return candidates.explain(self._gate, message.explain.prefill_tps, self.ctx.now_s())

    def _figures(self) -> ResidencyFigures:
        entries, counts = self._ram.entries, self._counts
        undurable = [entry.held_bytes for entry in entries if not entry.durable]
        return ResidencyFigures(
            entries=len(entries),
            bytes=entries.bytes,
            max_bytes=self._options.max_bytes,
            hits=counts.hits,
            misses=counts.misses,
            hit_tokens=counts.hit_tokens,
            prompt_tokens=counts.prompt_tokens,
            evictions=counts.evictions,
            demotions=counts.demotions,
            lost=counts.lost,
            sessions=entries.sessions,
            session_hits=counts.session_hits,
            restores=counts.restores,
            restore_failures=counts.restore_failures,
            restored_bytes=counts.restored_bytes,
            restore_ms_last=counts.restore_ms_last,
            leases=len(self._leases),
            waiting=self._restores.waiting,
            restoring=self._restores.running,
            undurable=len(undurable),
            undurable_bytes=sum(undurable),
        )

    def check_integrity(self) -> None:
        """Assert that all books agree. For tests and idle moments: walks everything."""
        self._ram.entries.check_integrity()
        self._restores.check_integrity()
        for entry in self._ram.entries:
            lent = sum(lease.entry is entry for lease in self._leases.values())
            assert lent == entry.leases, (
                f"{entry.leases} leases counted on an entry that was lent {lent} times"
            )


def _is_of(checkpoint: Checkpoint, entry: StoredEntry) -> bool:
    return checkpoint.spec.namespace == entry.namespace and checkpoint.spec.tokens == entry.tokens


class Residency:
    """The typed face of the cache for those who borrow, publish and administer."""

    def __init__(self, ref: ActorRef[ResidencyMessage]) -> None:
        self.ref = ref

    async def take(  # noqa: PLR0917 - all of them are what a take is
        self,
        tokens: TokenIds,
        namespace: str,
        session: str | None,
        prefill_tps: float | None,
        borrower: ActorRef[Any],
        timeout_s: float,
    ) -> Taken:
        """Borrow the longest usable prefix of ``tokens``, at most all but the last of them.

        Give the lease back with ``release``; it ends by itself with ``borrower``'s incarnation.
        ``prefill_tps`` is the measured rate that a restore has to beat, None if unknown. Raises AskError. A
        caller that is cancelled, or whose time is up, holds nothing.
        """
        take = Take(next(_take_ids), tokens, namespace, session, prefill_tps, borrower)
        try:
            return await self.ref.ask(take, timeout_s)
        except (asyncio.CancelledError, AskTimeout):
            self.release(take.id)  # it may have been lent in the very moment in which its taker left
            raise

    def release(self, lease_id: int) -> None:
        """End a lease. Idempotent."""
        self.ref.tell(Release(lease_id))

    def put(self, checkpoint: Checkpoint, session: str | None) -> bool:
        """Publish a checkpoint. Every take told later sees it. False when it was not taken."""
        return self.ref.tell(Put(checkpoint, session))

    def pressure(self) -> None:
        """Let RAM give up what the engine's memory needs, if it needs any."""
        self.ref.tell(Pressure())

    async def announce(self, timeout_s: float) -> int:
        """Return, once durability knows of everything put before, how many entries are not durable.

        Call it before a flush: what a lane published may still be in the mailbox. Raises AskError.
        """
        return await self.ref.ask(Announce(), timeout_s)

    async def drain(self, timeout_s: float) -> DrainReport:
        """Move everything that can be to SSD and free its RAM. Raises AskError."""
        return await self.ref.ask(Drain(), timeout_s)

    async def clear(self, tier: ClearTier, timeout_s: float) -> ClearReport:
        """Empty a tier or both; restores under way publish nothing. Leases stay good. Raises AskError."""
        return await self.ref.ask(Clear(tier), timeout_s)

    async def explain(
        self, tokens: TokenIds, namespace: str, prefill_tps: float | None, timeout_s: float
    ) -> Explanation:
        """Say what a take of these tokens would get, and why not more. Raises AskError."""
        return await self.ref.ask(Explain(tokens, namespace, prefill_tps), timeout_s)

    async def close_session(self, session: str, timeout_s: float) -> int:
        """Forget a session, not its checkpoints; return how many references it had. Raises AskError."""
        return await self.ref.ask(CloseSession(session), timeout_s)

    async def entries(self, timeout_s: float) -> tuple[EntryFigures, ...]:
        """Return what RAM holds. Raises AskError."""
        return await self.ref.ask(GetEntries(), timeout_s)

    async def figures(self, timeout_s: float) -> ResidencyFigures:
        """Return the figures. Raises AskError."""
        return await self.ref.ask(GetFigures(), timeout_s)
