"""Brings every published checkpoint to disk, and says honestly whether it is there (seed §5.4 to §5.6).

The records and their order are ``storage/flushing.py``; one attempt is ``spilling.py``. This actor carries
them out: at most ``writers`` attempts at a time, none of which anything in decode, RAM reuse or lookup waits
for. A restarted incarnation knows nothing; residency, which watches this, announces again.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from ..runtime.kernel import Actor, ActorRef, Ask, Backoff, Deferred, Overloaded, Timer
from ..storage.breaker import Breaker
from ..storage.dirty import Attempt, Dirty, DirtyLimits, Key
from ..storage.flushing import DirtyRecords
from .spilling.outbox import Outbox
from .spilling.spill_reports import (
    DurabilityCounts,
    DurabilityFigures,
    FlushReport,
    SpillNotice,
    SpillWarnings,
    why_not_durable,
)
from .spilling.spills import Spilled, Spiller, SpillTimeouts, cause_of, failure_kind

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from ..runtime.engine.checkpoint import Checkpoint
    from ..storage.directory_figures import DirectoryFigures
    from ..storage.tokens import TokenIds
    from .archive import Archive
    from .writer import Writers

ANSWER_S: Final = 1.0
"""How much longer than its deadline the asker of a flush waits for the answer that says so."""
LEAST_S: Final = 0.001
FLUSH_LIMIT: Final = 256
OUTBOX_LIMIT: Final = 100_000


@dataclass(frozen=True, slots=True)
class DurabilityOptions:
    """What durability may do.

    Args:
        identity: of the directory, as it stands in the files.
        write_behind: write what is published at once; without, only what is urgent and what a flush asks for.
        backoff: pauses before a checkpoint is tried again.
        breaker_failures: failures in a row after which the disk is left alone, and ``degraded`` says so.
        probe: pauses before a disk that is left alone is tried again.
        warn_every_s: at most one warning in so many seconds.
    """

    identity: str
    write_behind: bool = True
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 2.0, 60.0, 0.2))
    breaker_failures: int = 5
    probe: Backoff = field(default_factory=lambda: Backoff(5.0, 2.0, 60.0, 0.2))
    timeouts: SpillTimeouts = field(default_factory=SpillTimeouts)
    warn_every_s: float = 60.0


class NotOwed(Exception):
    """Its superseder is gone or does not cover it: whoever still holds it must announce it again."""

    code = "not_owed"
    retryable = True


@dataclass(frozen=True, slots=True)
class Persisted:
    """Told to the subscriber: this version is durable."""

    tokens: TokenIds
    namespace: str
    version: int


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """Told to the subscriber: an attempt failed. It is tried again, unless the error is NotOwed."""

    tokens: TokenIds
    namespace: str
    version: int
    error: Exception


@dataclass(frozen=True, slots=True)
class DirtyCheckpoint:
    """A version that is to become durable. ``urgent``: room is wanted where it lies."""

    checkpoint: Checkpoint
    version: int
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """A version was let go before it was durable."""

    tokens: TokenIds
    namespace: str
    version: int


@dataclass(frozen=True, slots=True)
class Urge:
    """Room is wanted where a checkpoint lies. Unknown ones are ignored."""

    tokens: TokenIds
    namespace: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget everything; what is being written must not come into the directory."""


@dataclass(frozen=True, slots=True)
class Flush(Ask[FlushReport]):
    """Try everything once, and report at the end, after ``timeout_s`` seconds at the latest."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class GetFigures(Ask[DurabilityFigures]):
    """The figures."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt has ended (from its task)."""

    attempt: Attempt[Checkpoint]
    spilled: Spilled | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What the directory says of the lost prefixes, and of itself (from a task)."""

    covered: tuple[Key, ...]
    figures: DirectoryFigures | None


@dataclass(frozen=True, slots=True)
class Wake:
    """Something may be tried again, told again, or answered at its deadline."""


DurabilityMessage: TypeAlias = (
    DirtyCheckpoint | Dropped | Urge | Reset | Flush | GetFigures | AttemptEnded | Reconciled | Wake
)


@dataclass(slots=True)
class _Waiter:
    answer: Deferred[FlushReport]
    begun_s: float
    due_s: float


class DurabilityActor(Actor[DurabilityMessage]):
    """See the module. ``notify`` gets what an operator should read, seldom."""

    def __init__(
        self,
        archive: Archive,
        writers: Writers,
        options: DurabilityOptions,
        subscriber: Callable[[], ActorRef[Persisted | PersistFailed] | None],
        *,
        counts: DurabilityCounts,
        chance: random.Random,
        notify: Callable[[SpillNotice], None] = lambda _: None,
    ) -> None:
        self._archive = archive
        self._spiller = Spiller(options.identity, archive, writers, options.timeouts)
        self._lookup_s = options.timeouts.lookup_s
        self._counts = counts
        counts.degraded = False  # an incarnation knows of no failure yet
        counts.forgets += 1
        self._outbox = Outbox(subscriber, OUTBOX_LIMIT)
        breaker = Breaker(options.breaker_failures, lambda n: options.probe.delay_s(n, chance))
        limits = DirtyLimits(len(writers), write_behind=options.write_behind)
        self._records: DirtyRecords[Checkpoint] = DirtyRecords(
            limits, breaker, lambda n: options.backoff.delay_s(n, chance)
        )
        self._running: dict[int, threading.Event] = {}
        self._waiters: list[_Waiter] = []
        self._reconciling = False
        self._stored: DirectoryFigures | None = None
        self._wake: Timer | None = None
        self._warnings = SpillWarnings(options.warn_every_s, notify)

    async def receive(self, message: DurabilityMessage) -> None:
        """Note what is told, then go on with whatever can go on."""
        match message:
            case DirtyCheckpoint() | Urge() | Dropped() | Reset():
                self._told(message)
            case Flush():
                self._flush(message)
            case GetFigures():
                self.ctx.reply(message, self._figures())
            case AttemptEnded():
                self._ended(message)
            case Reconciled():
                self._reconciled(message)
            case Wake():
                self._wake = None
            case _:
                assert_never(message)
        self._go_on()

    def _told(self, message: DirtyCheckpoint | Urge | Dropped | Reset) -> None:
        match message:
            case DirtyCheckpoint():
                self._records.announce(_dirty(message))
            case Urge():
                self._records.urge(message.tokens, message.namespace)
            case Dropped():
                self._records.drop(message.tokens, message.namespace, message.version)
            case Reset():
                self._records.reset()
                self._counts.forgets += 1
                for cancelled in self._running.values():
                    cancelled.set()
            case _:
                assert_never(message)

    # -- attempts ---------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        while (attempt := self._records.next(self.ctx.now_s())) is not None:
            self._begin(attempt)
        if self._records.flush_over and not self._reconciling:
            self._reconciling = True
            self.ctx.spawn(
                self._reconcile(self._records.lost()), lambda done: done, lambda _: Reconciled((), None)
            )
        self._counts.dropped_spills += self._records.take_losses()
        for orphan in self._records.take_orphans():
            error = NotOwed("its superseder is gone")
            self._outbox.put(PersistFailed(orphan.tokens, orphan.namespace, orphan.version, error))
        self._report_late()
        self._set_wake(self._outbox.send(self.ctx.now_s()))

    def _begin(self, attempt: Attempt[Checkpoint]) -> None:
        cancelled = self._running[id(attempt)] = threading.Event()
        self.ctx.spawn(
            self._spiller.spill(attempt.item.payload, cancelled),
            lambda spilled: AttemptEnded(attempt, spilled, None),
            lambda error: AttemptEnded(attempt, None, error),
        )

    def _ended(self, message: AttemptEnded) -> None:
        attempt = message.attempt
        del self._running[id(attempt)]
        if message.spilled is not None:
            self._succeeded(attempt, message.spilled)
        elif message.error is not None:
            self._failed(attempt, message.error)
        self._counts.degraded = self._records.breaker.degraded

    def _succeeded(self, attempt: Attempt[Checkpoint], spilled: Spilled) -> None:
        item, written = attempt.item, spilled.file_bytes is not None
        was_degraded = self._records.breaker.degraded
        # What covers it is known to serve these very tokens; its shorter prefixes ask for themselves.
        reusable_from = item.reusable_from if written else len(item.tokens)
        durable = self._records.succeeded(attempt, reusable_from=reusable_from, written=written)
        for version in durable:
            self._outbox.put(Persisted(version.tokens, version.namespace, version.version))
        if spilled.file_bytes is not None:
            self._counts.spills += 1
            self._counts.written_bytes += spilled.file_bytes
            self._counts.write_ms_last = spilled.elapsed_ms
        if was_degraded and not self._records.breaker.degraded:
            self._warnings.recovered(self._records.tally)

    def _failed(self, attempt: Attempt[Checkpoint], error: Exception) -> None:
        current = self._records.current(attempt)
        self._records.failed(attempt, failure_kind(error), self.ctx.now_s())
        if not current:
            return
        cause = cause_of(error)
        item = attempt.item
        self._counts.failed_spills += 1
        self._outbox.put(PersistFailed(item.tokens, item.namespace, item.version, cause))
        degraded = self._records.breaker.degraded
        self._warnings.failed(cause, self.ctx.now_s(), self._records.tally, degraded=degraded)

    def _set_wake(self, tell_at_s: float | None) -> None:
        """Set the one timer for whatever is due next."""
        now_s = self.ctx.now_s()
        due_s = [waiter.due_s for waiter in self._waiters]
        due_s += [at_s for at_s in (tell_at_s, self._records.wake_at_s()) if at_s is not None]
        if self._wake is not None:
            self._wake.cancel()
        # A least delay, so that a clock that fires a rounding error early does not make this spin.
        self._wake = self.ctx.after(max(LEAST_S, min(due_s) - now_s), Wake()) if due_s else None

    def check_integrity(self) -> None:
        """Assert that records, attempts and flushes agree. No I/O; between two messages. Walks everything."""
        self._records.check_integrity()
        writing, tasks = self._records.tally().writing, len(self._running)
        assert writing <= tasks, f"{tasks} tasks write {writing} records"
        assert len(self._waiters) <= FLUSH_LIMIT, "more flushes wait than are taken"

    # -- flush ------------------------------------------------------------------------------------------

    def _flush(self, message: Flush) -> None:
        if len(self._waiters) >= FLUSH_LIMIT:
            self.ctx.reject(message, Overloaded(self.ctx.path, "Flush", f"{FLUSH_LIMIT} flushes wait"))
            return
        if not self._waiters:  # else it shares the one that is on
            self._records.begin_flush()
        now_s = self.ctx.now_s()
        self._waiters.append(_Waiter(self.ctx.defer(message), now_s, now_s + message.timeout_s))

    async def _reconcile(self, lost: list[Key]) -> Reconciled:
        """Ask the directory which of the lost prefixes it covers, once all writes have settled."""
        covered = [key for key in lost if await self._archive.covers(key[1], key[0], self._lookup_s)]
        return Reconciled(tuple(covered), await self._archive.figures(self._lookup_s))

    def _reconciled(self, message: Reconciled) -> None:
        self._reconciling = False
        self._stored = message.figures or self._stored
        for key in message.covered:
            self._records.found(key)
        if not self._records.flush_over:
            return  # something was announced meanwhile
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._report(waiter, late=False)
        self._records.end_flush()

    def _report_late(self) -> None:
        until_s = self.ctx.now_s() + LEAST_S
        for waiter in [each for each in self._waiters if each.due_s <= until_s]:
            self._waiters.remove(waiter)
            self._report(waiter, late=True)

    def _report(self, waiter: _Waiter, *, late: bool) -> None:
        tally, stored = self._records.tally(), self._stored
        report = FlushReport(
            durable=tally.clean,
            flushed=tally.flushed,
            missing=tally.missing,
            pending=tally.pending,
            pending_bytes=tally.pending_bytes,
            dropped=tally.dropped,
            failed=tally.failed,
            entries=stored.entries if stored is not None else 0,
            longest_durable_prefix_tokens=stored.longest_tokens if stored is not None else 0,
            elapsed_ms=1000.0 * (self.ctx.now_s() - waiter.begun_s),
            reason=None if tally.clean else why_not_durable(tally, self._warnings.last_error, late=late),
        )
        waiter.answer.reply(report)

    def _figures(self) -> DurabilityFigures:
        tally, counts = self._records.tally(), asdict(self._counts)
        del counts["forgets"]  # of no use to an operator
        return DurabilityFigures(
            pending_snapshots=tally.pending,
            pending_spills=tally.queued + tally.writing,
            pending_spill_bytes=tally.pending_bytes,
            missing=tally.missing,
            **counts,
        )


def _dirty(message: DirtyCheckpoint) -> Dirty[Checkpoint]:
    spec = message.checkpoint.spec
    return Dirty(
        namespace=spec.namespace,
        tokens=spec.tokens,
        trimmable=spec.trimmable,
        reusable_from=spec.reusable_from,
        nbytes=spec.nbytes,
        version=message.version,
        payload=message.checkpoint,
        urgent=message.urgent,
    )


class Durability:
    """The typed face of durability. A tell that was not taken returns False, and is to be told again."""

    def __init__(self, ref: ActorRef[DurabilityMessage]) -> None:
        self.ref = ref

    def dirty(self, checkpoint: DirtyCheckpoint) -> bool:
        """Announce a version that is not durable."""
        return self.ref.tell(checkpoint)

    def urge(self, tokens: TokenIds, namespace: str) -> bool:
        """Ask for an announced one to be written before others."""
        return self.ref.tell(Urge(tokens, namespace))

    def dropped(self, tokens: TokenIds, namespace: str, version: int) -> bool:
        """Tell that a version was let go before it was durable: a flush will say so."""
        return self.ref.tell(Dropped(tokens, namespace, version))

    def reset(self) -> bool:
        """Forget everything that was announced. Told before the archive is asked to clear."""
        return self.ref.tell(Reset())

    async def flush(self, timeout_s: float) -> FlushReport:
        """Write everything announced, and report: at the end, or after ``timeout_s`` at the latest.

        A late report does not stop the writes. Raises AskError: ActorCrashed means that nobody knows, and
        that residency must announce again before the next flush. So it must where what was told before has
        been forgotten meanwhile (``DurabilityCounts.forgets``).
        """
        return await self.ref.ask(Flush(timeout_s), timeout_s + ANSWER_S)

    async def figures(self, timeout_s: float) -> DurabilityFigures:
        """Return the figures. Raises AskError."""
        return await self.ref.ask(GetFigures(), timeout_s)
