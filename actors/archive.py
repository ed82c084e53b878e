"""The SSD tier's index and files: find, reserve, commit, evict, quarantine, clear.

Files are the truth: a new incarnation scans them. Lookups are answered from memory at once, whatever the disk
does; file work goes through one thread, in order, and comes back as messages. That thread is shared by all
incarnations, so that one which ended lets go of the directory's lock before the next one asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from ..runtime.kernel import Actor, Ask, BlockingPool, Overloaded
from ..storage.directory_errors import DirectoryError
from ..storage.directory_figures import DirectoryFigures
from .caching.tiers import Sought
from .disk_jobs import DiskJobs, answering, telling
from .spilling.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime.kernel import ActorRef, Deferred
    from ..storage.container import StoredCheckpoint
    from ..storage.directory import CheckpointDirectory
    from ..storage.directory_figures import OpenReport
    from ..storage.entry import StoredEntry
    from ..storage.reservation import Reservation
    from ..storage.spec import CheckpointSpec
    from ..storage.tokens import TokenIds
    from .disk_jobs import Job

JOB_LIMIT: Final = 256
"""File jobs that may wait; further asks for one are refused. What ends a reservation is never refused."""
RECOVER_S: Final = 1.0
RECOVER_MOST_S: Final = 60.0
"""Pause before what the scan could not do is tried again; it doubles each time, up to the second."""
TOUCH_S: Final = 1.0
"""How long uses of entries are collected before their files are touched."""
LEAST_S: Final = 0.001
WITHDRAWN_LIMIT: Final = 100_000
_COUNTED: Final = (
    "corrupt",
    "evictions",
    "superseded",
    "missing",
    "cleared",
    "unlink_failures",
    "touch_failures",
)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Told to the subscriber: a durable checkpoint has left, and nothing else stored serves its tokens.

    What was durable only because that one covered it is not durable any more either.
    """

    tokens: TokenIds
    namespace: str


@dataclass(frozen=True, slots=True)
class Find(Ask[Sought]):
    """The longest usable stored prefix of more than ``longer_than`` tokens, at most all but the last."""

    tokens: TokenIds
    namespace: str
    longer_than: int


@dataclass(frozen=True, slots=True)
class Covers(Ask[bool]):
    """Whether something durable serves exactly these tokens. False while files are taken out of use."""

    tokens: TokenIds
    namespace: str


@dataclass(frozen=True, slots=True)
class Reserve(Ask["Reservation"]):
    """Set room aside for a checkpoint. Rejected with NoRoom, OSError or ValueError."""

    spec: CheckpointSpec


@dataclass(frozen=True, slots=True)
class Commit(Ask["tuple[StoredEntry, ...]"]):
    """Index what was published; answered with what it made superfluous. Rejected with ReservationVoid."""

    reservation: Reservation
    stored: StoredCheckpoint


@dataclass(frozen=True, slots=True)
class Abandon:
    """End a reservation and remove what its writer left. ``error`` is why the write failed, if it did."""

    reservation: Reservation
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Touch:
    """Note that an entry was used. Unknown ids are ignored."""

    entry_id: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Set a bad file aside. Unknown ids are ignored."""

    entry_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Take an entry out whose file is missing. Unknown ids are ignored."""

    entry_id: str


@dataclass(frozen=True, slots=True)
class Clear(Ask[int]):
    """Remove all entries of a namespace, or (None) of this identity; what is being written is kept out."""

    namespace: str | None


@dataclass(frozen=True, slots=True)
class GetEntries(Ask["tuple[StoredEntry, ...]"]):
    """All entries, least recently used first."""


@dataclass(frozen=True, slots=True)
class GetFigures(Ask[DirectoryFigures]):
    """Sizes now, and counts since the process started."""


@dataclass(frozen=True, slots=True)
class JobDone:
    """The file job in hand has ended (from the disk thread). ``settle`` answers whoever asked for it."""

    settle: Callable[[], None]


@dataclass(frozen=True, slots=True)
class TouchNow:
    """Uses were collected for long enough."""


@dataclass(frozen=True, slots=True)
class RecoverNow:
    """What the scan could not do may be tried again."""


@dataclass(frozen=True, slots=True)
class TellAgain:
    """The subscriber could not be told; maybe it can now."""


ArchiveMessage: TypeAlias = (
    Find
    | Covers
    | Reserve
    | Commit
    | Abandon
    | Touch
    | Quarantine
    | Forget
    | Clear
    | GetEntries
    | GetFigures
    | JobDone
    | TouchNow
    | RecoverNow
    | TellAgain
)


class ArchiveTotals:
    """What ended incarnations counted: counters never go backwards."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_COUNTED, 0)

    def absorb(self, figures: DirectoryFigures) -> None:
        """Add an incarnation that has ended."""
        for name in _COUNTED:
            self._counts[name] += getattr(figures, name)

    def with_(self, figures: DirectoryFigures) -> DirectoryFigures:
        """Return ``figures`` of the present incarnation with the earlier ones counted in."""
        return replace(figures, **{name: getattr(figures, name) + n for name, n in self._counts.items()})


def archive_pool() -> BlockingPool:
    """Return the one thread for all incarnations' file work. To be closed after the tree has stopped."""
    return BlockingPool("archive", 1, limit=16)


class ArchiveActor(Actor[ArchiveMessage]):
    """Owns the directory. ``directory`` makes a fresh one for each incarnation.

    ``started`` opens it: FileLocked, which names the directory and its holder, leaves as it is. ``opened`` is
    called with what the scan found. What the scan could not do, like listing or syncing a folder, is tried
    again on the disk thread, ever more rarely, until all is done; ``opened`` is called again whenever that
    has changed what is still to be done. What leaves the directory is told to ``subscriber()``.
    """

    def __init__(
        self,
        directory: Callable[[], CheckpointDirectory],
        pool: BlockingPool,
        subscriber: Callable[[], ActorRef[Withdrawn] | None],
        totals: ArchiveTotals,
        opened: Callable[[OpenReport], None] = lambda _: None,
    ) -> None:
        self._directory = directory()
        self._disk = DiskJobs(pool, self._directory.close)
        self._totals = totals
        self._opened = opened
        self._report: OpenReport | None = None
        self._recover_s = RECOVER_S
        self._used: dict[str, None] = {}
        self._withdrawn = Outbox[Withdrawn](subscriber, WITHDRAWN_LIMIT)
        self._telling_again = False
        self._departures = 0
        self._stopping = False

    async def started(self) -> None:
        """Lock, sweep and scan the directory on the disk thread. Raises FileLocked and OSError."""
        self.ctx.on_end(self._end)
        self._recovered(await self._disk.run(self._directory.open))

    async def receive(self, message: ArchiveMessage) -> None:
        """Answer from memory, or queue for the disk."""
        match message:
            case Find():
                self.ctx.reply(message, self._find(message))
            case Covers():
                self.ctx.reply(message, self._covers(message))
            case GetEntries():
                self.ctx.reply(message, self._directory.entries())
            case GetFigures():
                self.ctx.reply(message, self._totals.with_(self._directory.figures()))
            case JobDone():
                self._disk.done()
                message.settle()
                self._collect_withdrawn()
                self._next_job()
            case TellAgain():
                self._telling_again = False
                self._tell_withdrawn()
            case RecoverNow():
                self._recover()
            case _:
                self._change(message)

    async def stopped(self) -> None:
        """Do what is still to be done on disk: uses noted, reservations ended."""
        self._stopping = True
        self._touch_used()
        await self._disk.drain()

    def _find(self, message: Find) -> Sought:
        match = self._directory.find(message.tokens, message.namespace, message.longer_than)
        if match is not None:
            return Sought(match, match.diverged_at)
        return Sought(None, self._directory.common_prefix(message.tokens, message.namespace))

    def _covers(self, message: Covers) -> bool:
        """Nothing is relied on that may be about to leave: what is written now is written after that."""
        return not self._departures and self._directory.covers(message.tokens, message.namespace)

    def _change(
        self, message: Reserve | Commit | Abandon | Touch | Quarantine | Forget | Clear | TouchNow
    ) -> None:
        match message:
            case Reserve():
                self._reserve(message)
            case Commit():
                self._commit(message)
            case Clear():
                self._clear(message)
            case Abandon():
                self._queue(telling(partial(self._directory.abandon, message.reservation, message.error)))
            case Quarantine():
                exile = partial(self._directory.quarantine, message.entry_id, message.reason)
                self._queue(self._departing(telling(exile)))
            case Forget():
                self._directory.forget(message.entry_id)
                self._collect_withdrawn()
            case Touch():
                if not self._used:
                    self.ctx.after(TOUCH_S, TouchNow())
                self._used[message.entry_id] = None
            case TouchNow():
                self._touch_used()
            case _:
                assert_never(message)

    # -- the disk ---------------------------------------------------------------------------------------

    def _reserve(self, message: Reserve) -> None:
        if self._refused(message):
            return
        self._touch_used()  # the order of use decides what goes
        answer = self.ctx.defer(message)

        def job() -> Callable[[], None]:
            try:
                reservation = self._directory.reserve(message.spec)
            except (DirectoryError, OSError, ValueError) as error:
                refusal = error
                return lambda: _ignore(answer.reject(refusal))
            return lambda: self._hand_over(answer, reservation)

        self._queue(job)

    def _hand_over(self, answer: Deferred[Reservation], reservation: Reservation) -> None:
        if not answer.reply(reservation):  # whoever wanted it has gone
            self._queue(telling(partial(self._directory.abandon, reservation)))

    def _commit(self, message: Commit) -> None:
        def work() -> tuple[StoredEntry, ...]:
            return tuple(self._directory.commit(message.reservation, message.stored))

        self._queue(answering(self.ctx.defer(message), work, DirectoryError, OSError))

    def _clear(self, message: Clear) -> None:
        if not self._refused(message):
            work = partial(self._directory.clear, message.namespace)
            clear = answering(self.ctx.defer(message), work, DirectoryError, OSError)
            self._queue(self._departing(clear))

    def _departing(self, job: Job) -> Job:
        """Return a job that takes files out of use which the index may name until it has run."""
        self._departures += 1

        def departed(settle: Callable[[], None]) -> None:
            self._departures -= 1
            settle()

        def departing() -> Callable[[], None]:
            return partial(departed, job())

        return departing

    def _touch_used(self) -> None:
        used, self._used = self._used, {}
        if used:
            touch = self._directory.touch
            self._queue(telling(lambda: [touch(entry_id) for entry_id in used]))

    def _recover(self) -> None:
        self._touch_used()  # the order of use decides what goes
        recover = self._directory.recover

        def job() -> Callable[[], None]:
            report = recover()
            return lambda: self._recovered(report)

        self._queue(job)

    def _recovered(self, report: OpenReport) -> None:
        before, self._report = self._report, report
        if before is None or report.failures != before.failures:
            self._opened(report)
        if report.failures and not self._stopping:
            self.ctx.after(self._recover_s, RecoverNow())
            self._recover_s = min(2 * self._recover_s, RECOVER_MOST_S)

    def _refused(self, message: Ask[Any]) -> bool:
        if len(self._disk) < JOB_LIMIT:
            return False
        busy = Overloaded(self.ctx.path, type(message).__name__, f"{JOB_LIMIT} file jobs wait")
        self.ctx.reject(message, busy)
        return True

    def _queue(self, job: Job) -> None:
        self._disk.add(job)
        self._next_job()

    def _next_job(self) -> None:
        job = None if self._stopping else self._disk.take()
        if job is not None:
            self.ctx.spawn(self._disk.run(job), JobDone)

    def check_integrity(self) -> None:
        """Assert that index, files known and reservations agree. No I/O; only while no file job runs."""
        assert not self._disk.busy, "a file job runs: the books are in flux"
        self._directory.check_integrity()

    async def _end(self) -> None:
        self._totals.absorb(self._directory.figures())
        await self._disk.end()

    # -- what has left ------------------------------------------------------------------------------------

    def _collect_withdrawn(self) -> None:
        for gone in self._directory.withdrawn():
            self._withdrawn.put(Withdrawn(gone.entry.tokens, gone.entry.namespace))
        self._tell_withdrawn()

    def _tell_withdrawn(self) -> None:
        now_s = self.ctx.now_s()
        again_s = self._withdrawn.send(now_s)
        if again_s is not None and not self._telling_again:
            self._telling_again = True
            self.ctx.after(max(LEAST_S, again_s - now_s), TellAgain())


def _ignore(_: object) -> None:
    return


class Archive:
    """The typed face of the archive. Every ask raises AskError; refusals are Rejected with the cause."""

    def __init__(self, ref: ActorRef[ArchiveMessage]) -> None:
        self.ref = ref

    async def find(self, tokens: TokenIds, namespace: str, longer_than: int, timeout_s: float) -> Sought:
        """Return the longest stored prefix of more than ``longer_than`` tokens, at most all but the last."""
        return await self.ref.ask(Find(tokens, namespace, longer_than), timeout_s)

    async def covers(self, tokens: TokenIds, namespace: str, timeout_s: float) -> bool:
        """Whether something durable serves exactly these tokens. False while files are taken out of use."""
        return await self.ref.ask(Covers(tokens, namespace), timeout_s)

    async def reserve(self, spec: CheckpointSpec, timeout_s: float) -> Reservation:
        """Set room aside. Rejected with NoRoom, OSError, ValueError. What comes too late is undone."""
        return await self.ref.ask(Reserve(spec), timeout_s)

    async def commit(
        self, reservation: Reservation, stored: StoredCheckpoint, timeout_s: float
    ) -> tuple[StoredEntry, ...]:
        """Index what was published; return what it made superfluous. Rejected with ReservationVoid."""
        return await self.ref.ask(Commit(reservation, stored), timeout_s)

    def abandon(self, reservation: Reservation, error: BaseException | None = None) -> None:
        """End a reservation and remove what its writer left."""
        self.ref.tell(Abandon(reservation, error))

    def touch(self, entry_id: str) -> None:
        """Note that an entry was used."""
        self.ref.tell(Touch(entry_id))

    def quarantine(self, entry_id: str, reason: str) -> None:
        """Set a bad file aside."""
        self.ref.tell(Quarantine(entry_id, reason))

    def forget(self, entry_id: str) -> None:
        """Take an entry out whose file is missing."""
        self.ref.tell(Forget(entry_id))

    async def clear(self, timeout_s: float, namespace: str | None = None) -> int:
        """Remove all entries, of one namespace or of the identity; return how many."""
        return await self.ref.ask(Clear(namespace), timeout_s)

    async def entries(self, timeout_s: float) -> tuple[StoredEntry, ...]:
        """Return all entries, least recently used first."""
        return await self.ref.ask(GetEntries(), timeout_s)

    async def figures(self, timeout_s: float) -> DirectoryFigures:
        """Return the figures."""
        return await self.ref.ask(GetFigures(), timeout_s)
