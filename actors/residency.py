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
    Timer,
)
from .archive import Withdrawn
from .caching.gate import Candidates
from .caching.lending import Found, Lender, LookAgain, Release, RestoreEnded, Take
from .caching.ram_tier import Draining, RamTier
from .caching.tiers import (
    NOTHING_SOUGHT,
    ClearReport,
    ClearTier,
    DrainReport,
    EntryFigures,
    Explanation,
    ResidencyFigures,
    Taken,
)
from .durability import Persisted, PersistFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime.engine.checkpoint import Checkpoint, MemoryGauge
    from ..storage.entry import StoredEntry
    from ..storage.tokens import TokenIds
    from .caching.tiers import (
        ArchivePort,
        DurabilityPort,
        ReadersPort,
        ResidencyCounts,
        ResidencyOptions,
        Sought,
    )

LEAST_S: Final = 0.001
"""How soon a timer is set at the least, so that one which fires a rounding error early does not spin."""
ADMIN_ASKS: Final = 16
"""How many drains, clears and explanations may be under way, each kind."""
_take_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Put:
    """Keep a checkpoint. ``provisional``: another one that may supersede it is to be expected soon."""

    checkpoint: Checkpoint
    session: str | None
    provisional: bool = False


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
class Explained:
    """SSD was asked for an explanation (from a task)."""

    explain: Explain
    answer: Deferred[Explanation]
    sought: Sought
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Cleared:
    """SSD was cleared, or could not be (from a task)."""

    answer: Deferred[ClearReport]
    ram: int
    ssd: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """Something that was withheld may be written now."""


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
    | Due
    | Persisted
    | PersistFailed
    | Withdrawn
    | Terminated
)


@dataclass(slots=True)
class _Drain:
    answer: Deferred[DrainReport]
    draining: Draining


class ResidencyActor(Actor[ResidencyMessage]):
    """See the module. ``archive``, ``readers`` and ``durability`` are there together, or none of them.

    ``failed`` is told of every file that could not be restored, with None for one that holds another prefix.
    """

    def __init__(
        self,
        archive: ArchivePort | None,
        readers: ReadersPort | None,
        durability: DurabilityPort | None,
        memory: MemoryGauge,
        options: ResidencyOptions,
        *,
        counts: ResidencyCounts,
        failed: Callable[[StoredEntry, Exception | None], None] = lambda _entry, _error: None,
    ) -> None:
        self._failed = failed
        self._archive = archive
        self._readers = readers
        self._durability = durability
        self._lending: Lender | None = None
        self._options = options
        self._counts = counts
        self._ram = RamTier(durability, memory, options, counts)
        self._drains: list[_Drain] = []
        self._clears = 0
        self._explains = 0
        self._due: Timer | None = None
        self._due_s = 0.0

    async def started(self) -> None:
        """Watch durability, whose restart forgets what it was told."""
        disk = None
        if self._archive is not None and self._readers is not None:
            disk = self._archive, self._readers
        self._lending = Lender(
            self.ctx, self._ram, disk, self._options, counts=self._counts, tell_failed=self._failed
        )
        if self._durability is not None:
            self.ctx.watch(self._durability.ref)
            self._set_tick()

    @property
    def _lender(self) -> Lender:
        assert self._lending is not None, "not started"
        return self._lending

    async def receive(self, message: ResidencyMessage) -> None:
        """Handle one message; nothing here waits."""
        match message:
            case Take():
                self._lender.take(message)
            case Release():
                self._lender.release(message.lease_id)
            case Put():
                self._put(message)
            case Found() | RestoreEnded() | LookAgain():
                self._lender.hear(message)
            case Persisted() | PersistFailed() | Withdrawn():
                self._hear_of_files(message)
            case Terminated():
                self._ended(message)
            case Tick() | Pressure() | Due():
                self._look_after(message)
            case _:
                self._administer(message)

    def _hear_of_files(self, message: Persisted | PersistFailed | Withdrawn) -> None:
        match message:
            case Persisted():
                self._ram.persisted(message.tokens, message.namespace, message.version)
            case PersistFailed():
                self._ram.persist_failed(message.tokens, message.namespace, message.version, message.error)
            case Withdrawn():
                now_s, clearing = self.ctx.now_s(), self._clears > 0
                self._ram.withdrawn(message.tokens, message.namespace, now_s, withhold=clearing)
                self._set_due(now_s)  # what was withheld because that was durable may be due
                self._lender.file_withdrawn(message.tokens, message.namespace)
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

    def _ended(self, message: Terminated) -> None:
        """Durability has forgotten what it was told, or a borrower needs its leases no more."""
        if self._durability is not None and message.ref is self._durability.ref:
            if message.reason != "gone":
                self.ctx.watch(message.ref)
            now_s = self.ctx.now_s()
            self._ram.durability_ended(now_s, restarting=message.restarting)
            self._set_due(now_s)
            self._lender.files_uncertain()
            return
        self._lender.borrower_ended(message.ref)

    # -- upkeep -----------------------------------------------------------------------------------------

    def _put(self, message: Put) -> None:
        if not self._options.max_bytes:
            return
        now_s, provisional = self.ctx.now_s(), message.provisional
        due_s = self._ram.put(message.checkpoint, message.session, now_s, provisional=provisional)
        if due_s is not None:
            self._set_due(due_s)

    def _set_due(self, at_s: float) -> None:
        """Wake at ``at_s``, or before. One timer for all: a burst of prompts must not use up the actor's."""
        if self._due is not None:
            if self._due_s <= at_s:
                return
            self._due.cancel()
        self._due_s = at_s
        self._due = self.ctx.after(max(LEAST_S, at_s - self.ctx.now_s()), Due())

    def _set_tick(self) -> None:
        self.ctx.after(self._options.tick_s, Tick())

    def _look_after(self, message: Tick | Pressure | Due) -> None:
        if isinstance(message, Pressure):
            self._ram.reclaim()
            return
        now_s = self.ctx.now_s()
        self._ram.announce_due(now_s)
        if isinstance(message, Due):
            self._due = None
            if (next_s := self._ram.next_due_s(now_s)) is not None:
                self._set_due(next_s)
            return
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
        self._lender.turn_all_away("cleared")
        ram = 0 if message.tier == "ssd" else self._ram.clear()
        self._advance_drains()
        if archive is None:
            self.ctx.reply(message, ClearReport(ram, 0))
            return
        self._ram.withhold_all()
        self._count_clears(1)
        answer = self.ctx.defer(message)
        self.ctx.spawn(
            archive.clear(self._options.clear_timeout_s),
            lambda count: Cleared(answer, ram, count),
            lambda error: Cleared(answer, ram, 0, error),
        )

    def _count_clears(self, change: int) -> None:
        self._clears += change
        self._lender.ssd_is_being_cleared = self._clears > 0

    def _reset_durability(self) -> bool:
        return self._durability is None or self._durability.reset() is not False

    def _cleared(self, message: Cleared) -> None:
        self._count_clears(-1)
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
            self._administer(Explained(message, self.ctx.defer(message), NOTHING_SOUGHT))
            return
        if self._explains >= ADMIN_ASKS:
            self._refuse(message)
            return
        self._explains += 1
        answer = self.ctx.defer(message)
        self.ctx.spawn(
            self._archive.find(message.tokens, message.namespace, 0, self._options.find_timeout_s),
            lambda sought: Explained(message, answer, sought),
            lambda _: Explained(message, answer, NOTHING_SOUGHT, failed=True),
        )

    def _explanation(self, message: Explained) -> Explanation:
        tokens, namespace = message.explain.tokens, message.explain.namespace
        candidates = Candidates(
            prompt_tokens=len(tokens),
            ram=self._ram.longest(tokens, namespace, None),
            ssd=message.sought.match if self._lender.long_enough(len(tokens) - 1) else None,
            shared=max(message.sought.shared, self._ram.entries.index.common_prefix(tokens, namespace)),
            nothing=self._lender.why_nothing(tokens, namespace, message.sought.shared),
            ssd_failed=message.failed,
        )
        return candidates.explain(self._lender.gate, message.explain.prefill_tps, self.ctx.now_s())

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
            leases=self._lender.leases,
            waiting=self._lender.waiting,
            restoring=self._lender.restoring,
            undurable=len(undurable),
            undurable_bytes=sum(undurable),
            withdrawn=sum(1 for entry in entries if entry.withdrawals and not entry.durable),
        )

    def check_integrity(self) -> None:
        """Assert that all books agree. For tests and idle moments: walks everything."""
        self._ram.entries.check_integrity()
        self._lender.check_integrity(self._ram.entries)


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

    def put(self, checkpoint: Checkpoint, session: str | None, *, provisional: bool = False) -> bool:
        """Publish a checkpoint. Every take told later sees it. False when it was not taken.

        It goes to disk at once, or a while later where part of it is durable already, unless it is superseded
        before, must leave RAM, or is flushed: ``caching/withholding.py``. ``provisional``: two seconds later.
        """
        return self.ref.tell(Put(checkpoint, session, provisional))

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
