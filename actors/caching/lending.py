"""Lending prefixes: what a take gets, from which tier, and who waits for a restore.

RAM answers at once. Where SSD may hold more it is asked beside the mailbox, and takes that want the same file
share one read of it; what was read is published in RAM before anybody gets it. Whatever goes wrong, a take is
answered with the best that RAM has. Part of ``residency.py``, in whose handlers all of it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, assert_never

from ...runtime.kernel import ActorRef, Ask, AskTimeout, Overloaded
from ...storage.entry import key_digest
from ..reader import RestoreJob
from .gate import RestoreGate, is_harm, servable
from .restores import Pending, Restore, Restores
from .tiers import NOTHING_SOUGHT, Lease, Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...runtime.engine.checkpoint import Checkpoint
    from ...runtime.kernel import Context
    from ...storage.entry import StoredEntry
    from ...storage.tokens import TokenIds
    from ..reader import Restored
    from ..residency import ResidencyMessage
    from .ram_tier import Entry, RamTier
    from .tiers import ArchivePort, MissReason, ReadersPort, ResidencyCounts, ResidencyOptions, Sought

LOOKUPS_PER_TAKE: Final = 3
"""How often one take asks SSD: once, and again when a restore failed or RAM let go of its match."""
TOUCH_S: Final = 60.0
"""How often at most the file behind a RAM entry is touched, so that its use in RAM keeps it on SSD."""
LOOK_AGAIN_S: Final = 0.05
"""When a take asks again while a file that failed it is still on its way out."""
SET_ASIDE_S: Final = 1.0
"""How long a file that was set aside is not tried, should a lookup still find it."""


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
class Found:
    """SSD was asked for a take (from a task). ``error``: it could not answer."""

    take_id: int
    sought: Sought
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


@dataclass(slots=True)
class _Lent:
    entry: Entry
    borrower: ActorRef[Any]


class Lender:
    """The takes and leases of one incarnation."""

    def __init__(
        self,
        ctx: Context[ResidencyMessage],
        ram: RamTier,
        disk: tuple[ArchivePort, ReadersPort] | None,
        options: ResidencyOptions,
        *,
        counts: ResidencyCounts,
        tell_failed: Callable[[StoredEntry, Exception | None], None],
    ) -> None:
        self._tell_failed = tell_failed
        self._ctx = ctx
        self._ram = ram
        self._archive, self._readers = disk or (None, None)
        self._options = options
        self._counts = counts
        self.gate = RestoreGate(options, counts.cost)
        self._restores = Restores[Take]()
        self._leases: dict[int, _Lent] = {}
        self.ssd_is_being_cleared = False
        """While it is, lookups would find what is on its way out."""

    @property
    def leases(self) -> int:
        """How many leases there are."""
        return len(self._leases)

    @property
    def waiting(self) -> int:
        """How many takes wait for SSD."""
        return self._restores.waiting

    @property
    def restoring(self) -> int:
        """How many restores are under way."""
        return self._restores.running

    # -- take -------------------------------------------------------------------------------------------

    def take(self, take: Take) -> None:
        """Answer the take in hand, now or once SSD has."""
        pending = Pending(take, take.id, take.borrower, self._ctx.defer(take))
        self._ctx.watch(take.borrower)
        if not self._options.max_bytes:
            self._miss(pending, "cache_off", 0)
            return
        self._ram.reclaim()
        if self._archive is None or not self._ssd_may_add(take):
            self._settle(pending, None)
        elif self.ssd_is_being_cleared:
            self._settle(pending, "cleared")
        elif self._restores.waiting >= self._options.lookups:
            self._settle(pending, "busy")
        else:
            self._restores.wait(pending)
            self._look_up(pending, self._archive)

    def hear(self, message: Found | RestoreEnded | LookAgain) -> None:
        """Go on with what a task or a timer brought."""
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

    def long_enough(self, limit: int) -> bool:
        """Whether the disk is asked for prompts that need ``limit`` tokens, when no session has them."""
        return limit >= self._options.min_tokens

    def _ssd_may_add(self, take: Take) -> bool:
        limit = len(take.tokens) - 1
        if take.session is None and not self.long_enough(limit):
            return False
        return limit - self._in_ram(take) >= max(1, self._options.restore_min_tokens)

    def _in_ram(self, take: Take) -> int:
        match = self._ram.longest(take.tokens, take.namespace, take.session)
        return 0 if match is None else match.length

    def _look_up(self, pending: Pending[Take], archive: ArchivePort) -> None:
        take = pending.take
        pending.lookups += 1
        pending.known = self._in_ram(take)
        self._ctx.spawn(
            archive.find(take.tokens, take.namespace, pending.known, self._options.find_timeout_s),
            lambda sought: Found(take.id, sought),
            lambda error: Found(take.id, NOTHING_SOUGHT, error),
        )

    @staticmethod
    def _may_look_again(pending: Pending[Take]) -> bool:
        return pending.lookups < LOOKUPS_PER_TAKE

    def _found(self, message: Found) -> None:
        """Go on with a take: RAM may have got more meanwhile, so what SSD adds is reckoned now."""
        pending = self._restores.looked_up(message.take_id)
        if pending is None:
            return
        match, take = message.sought.match, pending.take
        pending.seen = max(pending.seen, message.sought.shared)
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
        if (
            self.gate.shuns(match.entry, self._ctx.now_s())
            and pending.failed
            and self._may_look_again(pending)
        ):
            self._ctx.after(LOOK_AGAIN_S, LookAgain(take.id))
        else:
            self._restore(pending, match.entry, gain)

    def _restore(self, pending: Pending[Take], entry: StoredEntry, gain: int) -> None:
        """Wait for a file to be read if what it adds is worth that, whether others want it too or not."""
        reason = self.gate.why_not(entry, gain, pending.take.prefill_tps, self._ctx.now_s())
        under_way = self._restores.of(entry)
        if reason is None and under_way is not None:
            self._restores.join(pending, under_way)
            return
        if reason is None and self._restores.running >= self._options.restores:
            reason = "busy"
        if reason is not None or self._readers is None:
            self._settle(pending, reason)
            return
        reserved_bytes = self._ram.reserve(entry.file_bytes)
        if reserved_bytes is None:
            self._settle(pending, "no_room")
        else:
            self._restores.join(pending, self._begin(entry, reserved_bytes, self._readers))

    # -- restore ----------------------------------------------------------------------------------------

    def _begin(self, entry: StoredEntry, reserved_bytes: int, readers: ReadersPort) -> Restore[Take]:
        restore_id = f"restore-{self._counts.next_version()}"
        restore = self._restores.begin(restore_id, entry, reserved_bytes)
        restore.task = self._ctx.spawn(
            readers.restore(RestoreJob(restore_id, entry), self._options.restore_timeout_s),
            lambda restored: RestoreEnded(restore_id, restored),
            lambda error: RestoreEnded(restore_id, None, error),
        )
        return restore

    def _restore_ended(self, message: RestoreEnded) -> None:
        restore = self._restores.end(message.restore_id)
        if restore is None:
            return  # everybody had gone, or the cache was cleared
        self._ram.unreserve(restore.reserved_bytes)
        restored = message.restored
        if restored is None or not _is_of(restored.checkpoint, restore.entry):
            self._restore_failed(restore, message.error)
            return
        self._counts.restores += 1
        self._counts.restored_bytes += restored.read_bytes
        self._counts.restore_ms_last = restored.elapsed_ms
        self._counts.cost.observe(restored.read_bytes, restored.elapsed_ms / 1000.0, self._ctx.now_s())
        entry = self._ram.publish(restored.checkpoint, restore.entry.id, self._ctx.now_s())
        if restore.withdrawn:
            self._ram.withdrawn(entry.tokens, entry.namespace, self._ctx.now_s(), withhold=False)
        if self._archive is not None:
            self._archive.touch(restore.entry.id)
        for pending in restore.waiters.values():
            self._settle(pending, None, restored=entry, restore_ms=restored.elapsed_ms)
        self._ram.reclaim()

    def file_withdrawn(self, tokens: TokenIds, namespace: str) -> None:
        """Note that a file has gone: what is being read from it is not durable when it comes."""
        self._restores.withdraw(tokens, namespace)

    def files_uncertain(self) -> None:
        """Note that nobody knows which files are there: durability, or the archive too, starts anew."""
        self._restores.withdraw_all()

    def _restore_failed(self, restore: Restore[Take], error: Exception | None) -> None:
        """Deal with the file, and let its takes look for another."""
        if isinstance(error and (error.__cause__ or error), Overloaded):
            for pending in restore.waiters.values():
                self._settle(pending, "busy")
            return
        self._counts.restore_failures += 1
        self._tell_failed(restore.entry, error)
        self._leave_alone(restore.entry, error)
        for pending in restore.waiters.values():
            pending.failed = True
            if self._archive is not None and self._may_look_again(pending):
                self._look_up(pending, self._archive)
            else:
                self._settle(pending, "restore_failed")

    def _leave_alone(self, entry: StoredEntry, error: Exception | None) -> None:
        """Set a bad file aside, forget a missing one, and try a good one no more for a while."""
        now_s, cause = self._ctx.now_s(), error and error.__cause__
        if isinstance(error, AskTimeout):
            self._counts.cost.observe(entry.file_bytes, self._options.restore_timeout_s, now_s)
        if self._archive is not None and isinstance(cause, FileNotFoundError):
            self._archive.forget(entry.id)
        elif self._archive is not None and (error is None or is_harm(error)):
            reason = str(error or "it holds another prefix than its header says")
            self._archive.quarantine(entry.id, reason)
        else:
            self.gate.shun(entry, now_s, self._options.shun_s)
            return
        self.gate.shun(entry, now_s, SET_ASIDE_S)

    def _give_up(self, restore: Restore[Take] | None) -> None:
        if restore is not None and restore.task is not None:
            self._ram.unreserve(restore.reserved_bytes)
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
            self._miss(
                pending, reason or self.why_nothing(take.tokens, take.namespace, pending.seen), pending.seen
            )
            return
        entry, now_s = match.entry, self._ctx.now_s()
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

    def why_nothing(self, tokens: TokenIds, namespace: str, on_disk: int) -> MissReason:
        """Return why neither tier has anything for a prompt, of which files share ``on_disk`` tokens."""
        if not self._options.max_bytes:
            return "cache_off"
        reason = self._ram.why_nothing(tokens, namespace)
        if self._archive is None or reason not in {"empty", "no_match"}:
            return reason
        return "untrimmable" if on_disk >= max(1, self._options.min_tokens) else "no_match"

    def release(self, lease_id: int) -> None:
        """End a lease, or a take that waits."""
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

    def borrower_ended(self, borrower: ActorRef[Any]) -> None:
        """End the leases of a borrower and answer its takes."""
        for lease_id, lent in list(self._leases.items()):
            if lent.borrower is borrower:
                self.release(lease_id)
        for pending in self._restores:
            if pending.borrower is borrower:
                self._turn_away(pending, "borrower_gone")

    def turn_all_away(self, reason: MissReason) -> None:
        """Answer every waiting take with nothing; restores under way come to nothing."""
        for pending in self._restores:
            self._turn_away(pending, reason)

    def check_integrity(self, entries: Iterable[Entry]) -> None:
        """Assert that the books agree with those of RAM."""
        self._restores.check_integrity()
        for entry in entries:
            lent = sum(lease.entry is entry for lease in self._leases.values())
            assert lent == entry.leases, (
                f"{entry.leases} leases counted on an entry that was lent {lent} times"
            )


def _is_of(checkpoint: Checkpoint, entry: StoredEntry) -> bool:
    return checkpoint.spec.namespace == entry.namespace and checkpoint.spec.tokens == entry.tokens
