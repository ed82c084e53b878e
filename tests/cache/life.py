"""What is done to the cache, one operation at a time, and what must hold then."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING, Any

from samovar.actors.archive import (
    Abandon,
    Commit,
    Covers,
    Find,
    JobDone,
    Quarantine,
    Reserve,
    TouchNow,
    Withdrawn,
)
from samovar.actors.caching.lending import Found, Release, RestoreEnded, Take
from samovar.actors.durability import (
    AttemptEnded,
    DirtyCheckpoint,
    Dropped,
    Persisted,
    PersistFailed,
    Reconciled,
    Reset,
    Urge,
    Wake,
)
from samovar.actors.reader import CancelRestore, Restore, RestoresDone
from samovar.actors.residency import Cleared, Put
from samovar.actors.writer import Write, WritesDone
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.kernel import AskError, InjectedCrash
from samovar.storage.tokens import TokenIds

from tests.kit.disk import FaultDisk
from tests.kit.states import FakeState

from .book import Book
from .states import Key, covers, key_of, state_of, wrong
from .whole import Shape, Whole

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from samovar.actors.caching.tiers import ClearTier, Taken
    from samovar.runtime.kernel import Failure

    from tests.kit.faults import Fault, Operation

    from .turns import Turns

ASK_S = 1000.0
"""Virtual seconds; longer than every deadline inside."""
ERRNOS = {
    "create": (errno.ENOSPC, errno.EIO, errno.EPERM),
    "write": (errno.ENOSPC, errno.EIO),
    "sync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.EPERM),
    "sync_folder": (errno.EIO,),
    "unlink": (errno.EPERM, errno.EBUSY, errno.EIO),
    "touch": (errno.EPERM, errno.EIO),
    "open": (errno.EMFILE, errno.EIO),
    "read": (errno.EIO,),
    "space": (errno.EIO,),
    "make_folder": (errno.ENOSPC, errno.EIO),
}
FAULTS = tuple((kind, number) for kind, numbers in ERRNOS.items() for number in numbers)
LOSING = tuple(one for one in FAULTS if one[0] in {"write", "sync", "rename", "sync_folder", "unlink"})
"""Those that may lose what was written."""
READING = {"open", "read"}
KINDS: dict[str, tuple[type, ...]] = {
    "serving/residency": (
        Put,
        Take,
        Release,
        Found,
        RestoreEnded,
        Persisted,
        PersistFailed,
        Withdrawn,
        Cleared,
    ),
    "storage/durability": (DirtyCheckpoint, Dropped, Urge, Reset, AttemptEnded, Reconciled, Wake),
    "storage/archive": (Find, Covers, Reserve, Commit, Abandon, Quarantine, JobDone, TouchNow),
    "storage/writers/0": (Write, WritesDone),
    "storage/readers/0": (Restore, RestoresDone, CancelRestore),
}
"""Every actor, and what it may crash on."""
ACTORS = tuple(KINDS)


class Life:
    """The driver: one disk, one process after the other. Every operation leaves nothing unchecked."""

    def __init__(self, turns: Turns, seed: int, shape: Shape) -> None:
        self.turns, self.shape = turns, shape
        self.chance = Random(seed)
        self.book = Book()
        self.disk = FaultDisk(clock=turns.now_s)
        self.leases: dict[int, FakeState] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.faults: list[Fault] = []
        self.rough = False  # a fault, a crash or a slow disk since the last calm
        self.slow = False
        self.counters: dict[str, float] = {}
        self.heard: list[str] = []
        self.lease_ends = 0
        self.book.borrower_ended = self._leases_end
        self._life = AsyncExitStack()
        self.whole: Whole

    # -- processes --------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.whole = Whole(self.disk, self.shape, self.turns, self.book, self.chance.randint(0, 1 << 30))
        self.book.whole = self.whole
        self._life = AsyncExitStack()
        await self._life.enter_async_context(self.whole)
        record = self.whole.kit.record
        heard = record.failed

        def failed(failure: Failure, restart_in_s: float | None) -> None:
            heard(failure, restart_in_s)
            self._failed(failure.path)

        record.failed = failed  # type: ignore[method-assign]
        self.counters = {}

    async def stop(self) -> None:
        """Stop the process in order; every ask that is open ends."""
        self.heal()
        self.turns.hurry()
        record = self.whole.kit.record
        stopping = asyncio.ensure_future(self.whole.kit.system.stop())
        await asyncio.wait([stopping, *self.tasks], timeout=ASK_S)
        assert stopping.done(), "the tree does not stop"
        self._check_tasks()
        self.leases.clear()
        self._forgive()
        self.heard += [f"{path} {kind}" for path, kind in self.whole.kit.handled]
        record.stuck.clear()
        await self._life.aclose()

    async def restart(self, how: str, seed: int, *, shape: Shape | None = None) -> None:
        """End the process (``stop``, ``kill``, or ``power`` loss) and start another one on what is left."""
        due = set(self.book.durable)
        if self.whole.is_open:
            self._expect_covered(due)
        after = {"kill": self.disk.kill, "power": lambda: self.disk.crash(seed)}.get(how)
        disk = None if after is None else after()
        writable = set(self.book.writable)
        durable, book_left = set(self.book.durable), set(self.book.left)
        await self.stop()
        if disk is None:
            disk = self.disk.kill()
            due = set(self.book.durable)
        else:  # what the old process did while it stopped has not happened
            self.book.writable, self.book.durable, self.book.left = writable, durable, book_left
        disk.capacity_bytes = None
        self.disk, self.shape = disk, shape or self.shape
        self.rough = False
        await self.start()
        self.book.restarted(self.whole, due, healthy=True)

    def _expect_covered(self, due: set[Key]) -> None:
        files = self.whole.files()
        gone = [key for key in due if not any(covers(one, key) for one in files)]
        assert not gone, f"durable and not in the index: {gone}"

    # -- put and take -----------------------------------------------------------------------------------

    def put(self, key: Key, session: str | None = None) -> None:
        assert self.whole.residency.put(state_of(key), session)
        self.book.put(key)

    async def take(self, prompt: Key, session: str | None = None, *, hold: bool = False) -> Taken | None:
        """Take, check every byte of what is lent, and hold it or give it back."""
        whole, cleared_at, ends = self.whole, self.book.cleared_at, self.lease_ends
        before = dict(whole.ram())
        taken = await self._asked(
            whole.residency.take(TokenIds.of(prompt[1]), prompt[0], session, None, whole.borrower.ref, ASK_S)
        )
        if taken is None:
            return None
        assert taken.length <= len(prompt[1]) - 1
        assert (taken.lease is None) == (taken.length == 0) == (taken.tier == "none")
        if taken.lease is not None:
            lent = taken.lease.checkpoint
            assert isinstance(lent, FakeState)
            self._check_lent(prompt, lent, taken)
            assert self.book.may_lend(key_of(prompt[0], lent.spec.tokens), cleared_at), "lent after a clear"
            if hold and ends == self.lease_ends:
                self.leases[taken.lease.id] = lent
            else:
                whole.residency.release(taken.lease.id)
        elif taken.miss_reason in {"cleared", "borrower_gone"}:
            return taken
        now = whole.ram()
        kept = [key for key, entry in before.items() if now.get(key) is entry]
        assert taken.length >= self.book.best(prompt, kept), (prompt, taken, kept)
        return taken

    @staticmethod
    def _check_lent(prompt: Key, lent: FakeState, taken: Taken) -> None:
        fault = wrong(lent)
        assert fault is None, fault
        assert lent.spec.namespace == prompt[0]
        assert tuple(lent.spec.tokens[: taken.length].tolist()) == prompt[1][: taken.length]
        assert lent.spec.serves(taken.length), (lent.spec, taken)

    async def take_and_leave(self, prompt: Key, rounds: int) -> None:
        """Ask, and go away at some moment."""
        task = asyncio.ensure_future(self.take(prompt))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _asked(self, asking: Coroutine[Any, Any, Any]) -> Any:
        """Ask; None where a crash or a stopped process answers. On a smooth day every ask gets its reply."""
        try:
            return await asking
        except AskError:
            if not self.rough and not self.whole.kit.system.closing:
                raise
            return None

    def release(self, place: int) -> None:
        """Give a lease back; what was lent has not changed."""
        if self.leases:
            lease_id = list(self.leases)[place % len(self.leases)]
            fault = wrong(self.leases.pop(lease_id))
            assert fault is None, fault
            self.whole.residency.release(lease_id)

    def meanwhile(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something go on beside what comes next."""
        self.tasks.add(asyncio.ensure_future(work))

    # -- administration ---------------------------------------------------------------------------------

    async def flush(self, timeout_s: float) -> None:
        """Flush as an administrator does."""
        whole = self.whole
        owed, lost, resets = set(self.book.owed), set(self.book.lost), self.book.resets
        report = await self._asked(whole.cache.flush(timeout_s))
        if (
            self.book.resets > resets
        ):  # cleared meanwhile: of what was put before, nothing is promised any more
            owed, lost = set(), set()
        if report is not None and whole is self.whole:
            self.book.flushed(report, owed, lost, timeout_s)

    async def clear(self, tier: ClearTier) -> None:
        """Clear while nobody puts."""
        whole = self.whole
        report = await self._asked(whole.residency.clear(tier, ASK_S))
        if report is None:  # nobody knows
            if whole is self.whole and not whole.kit.system.closing:
                self.book.residency_crashed(whole)
                self.book.left |= self.book.owed
            return
        stored = whole.directory.figures() if whole.directory is not None else None
        # What was being written is removed when its writer lets go of it, maybe after the answer.
        left = stored is None or bool(stored.stuck_bytes or stored.reserved_bytes)
        certain = not self.faults and not left
        if tier != "ssd":
            self.book.cleared_ram(whole)
        if tier != "ram":
            self.book.cleared_ssd(whole, certain=certain)
        if tier == "all":
            self.book.cleared_all(certain=certain)

    async def drain(self) -> None:
        await self._asked(self.whole.residency.drain(ASK_S))

    async def close_session(self, session: str) -> None:
        await self._asked(self.whole.residency.close_session(session, ASK_S))

    async def press(self, excess_bytes: int) -> None:
        """Let the engine's memory be short for a moment."""
        self.whole.gauge.reading = MemoryReading(850 + excess_bytes, 1000)
        self.whole.residency.pressure()
        await self.whole.kit.settle()
        self.whole.gauge.reading = MemoryReading(0, 0)

    async def pass_time(self, by_s: float) -> None:
        await asyncio.sleep(by_s)

    # -- trouble ----------------------------------------------------------------------------------------

    def fault(self, kind: str, number: int, often: float, times: int | None) -> None:
        """Let operations of a kind fail from now on, some or all of them."""
        chance = self.turns.chance

        def strikes(operation: Operation) -> bool:
            return operation.kind == kind and chance.random() < often

        self.faults.append(self.disk.fail_when(strikes, number, times=times))
        self.rough = True
        self.book.faulty = True
        self.book.read_trouble |= kind in READING

    def fill_up(self, free_bytes: int) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + free_bytes
        self.rough = True

    def shorten(self, write_bytes: int | None, read_bytes: int | None) -> None:
        """Let single calls move less than they are asked to. No excuse for anything."""
        self.disk.short_write_bytes, self.disk.short_read_bytes = write_bytes, read_bytes

    def pace(self, mean_s: float) -> None:
        """Let operations take their time, 0: none, but other threads may come in between."""
        chance = self.turns.chance

        def pause_s(_: Operation) -> float | None:
            if chance.random() < 0.6:
                return None
            return chance.expovariate(1 / mean_s) if mean_s else 0.0

        self.turns.pace = pause_s
        self.rough = self.rough or mean_s > 0.1

    def heal(self) -> None:
        """Let the disk be as good as new from now on."""
        for fault in self.faults:
            fault.clear()
        self.faults.clear()
        self.book.faulty = False
        self.disk.capacity_bytes = None
        self.pace(0.0)
        self.shorten(None, None)

    async def crash(self, which: str) -> None:
        """Crash an actor between two messages."""
        self.rough = True
        assert self.whole.kit.system.crash(which) or not self.whole.kit.system.running

    def crash_on(self, which: str, kind: type) -> None:
        """Crash an actor, once, on a message of a kind, which is lost by it."""
        self.rough = True
        ref = next(ref for ref in self.whole.refs if ref.path == which)
        self.whole.kit.crash_on(ref, kind, error=InjectedCrash("crashed on purpose"))

    def _leases_end(self) -> None:
        self.leases.clear()
        self.lease_ends += 1

    def _failed(self, path: str) -> None:
        """An actor has crashed, at this very moment."""
        self.rough = True
        if path == "serving/residency":
            self._leases_end()
            self.book.residency_crashed(self.whole)
        elif path.startswith("storage/"):  # one that does not come back takes durability along
            self.book.durability_restarted()

    def crash_writer(self) -> None:
        """Let the next write crash its writer."""
        self.rough = True
        self.whole.crash_writer += 1

    def rot(self, place: int, at: int) -> None:
        """Let one bit of a file flip."""
        files = self.whole.files()
        if files:
            key = list(files)[place % len(files)]
            path = files[key].path
            with self.disk.mutex:
                node = self.disk._lookup(path)
                if node is not None and len(node.data) > 0:
                    for data in (node.data, node.durable):
                        if data:
                            data[at % len(data)] ^= 1
                    self.book.rot(key)

    # -- looking ----------------------------------------------------------------------------------------

    async def calm(self) -> None:
        """Wait until nothing goes on any more, and compare everything."""
        self.heal()
        self.turns.hurry()
        self.whole.kit._steering.crashes.clear()
        self.whole.crash_writer = 0
        await asyncio.wait([*self.tasks, asyncio.ensure_future(asyncio.sleep(0.5))], timeout=3 * ASK_S)
        self._check_tasks()
        for _ in range(50):
            await self.whole.kit.advance(0.2)
            if self.whole.is_open and self.turns.idle() and self.whole.kit.system.running:
                break
        else:
            raise AssertionError("it never comes to rest")
        await self.check()
        self.rough = False

    def _check_tasks(self) -> None:
        for task in self.tasks:
            assert task.done(), f"an ask that does not end: {task}"
            task.result()
        self.tasks.clear()

    async def check(self) -> None:
        whole = self.whole
        assert whole.residency_actor is not None
        assert whole.durability_actor is not None
        assert whole.directory is not None
        self.book.settled(whole)
        whole.residency_actor.check_integrity()
        whole.durability_actor._records.check_integrity()
        whole.directory.check_integrity()
        stored = whole.directory.figures()
        cap = whole.shape.ssd_bytes
        assert not cap or stored.total_bytes <= cap, stored
        assert not cap or self.book.blind or whole.kept_bytes() <= cap, (whole.kept_bytes(), stored)
        kept = stored.entry_bytes + stored.outdated_bytes + stored.quarantined_bytes + stored.stuck_bytes
        unlisted = self.book.blind  # a folder that a start could not list, or make durable, counts nothing
        assert unlisted or whole.kept_bytes() <= kept + stored.reserved_bytes, ("files nobody counts", stored)
        figures = await whole.residency.figures(ASK_S)
        assert figures.leases == len(self.leases), (figures, self.leases)
        assert figures.waiting == figures.restoring == 0, figures
        self._check_counters(
            figures, await whole.durability.figures(ASK_S), await whole.archive.figures(ASK_S)
        )
        self._forgive()

    def _check_counters(self, *figures: Any) -> None:
        names = (
            *("hits", "misses", "hit_tokens", "prompt_tokens", "evictions", "demotions", "lost", "restores"),
            *("session_hits", "restore_failures", "restored_bytes", "spills", "written_bytes"),
            *("failed_spills", "dropped_spills", "corrupt", "superseded", "missing", "cleared"),
            *("unlink_failures", "touch_failures"),
        )
        now = {
            f"{type(one).__name__}.{name}": getattr(one, name)
            for one in figures
            for name in names
            if hasattr(one, name) and not (name == "missing" and hasattr(one, "spills"))
        }
        for name, count in now.items():
            assert count >= self.counters.get(name, 0), (
                f"{name} went back from {self.counters[name]} to {count}"
            )
        self.counters = now

    def _forgive(self) -> None:
        """Read what crashes on purpose leave behind; anything else is a failure."""
        record = self.whole.kit.record
        strange = [f for f in record.failures if "on purpose" not in str(f.error) and not _start_failed(f)]
        assert not strange, strange
        closing = self.whole.kit.system.closing  # the order of stopping: what is told to the last is moot
        letters = [one for one in record.letters if not self.rough and not (closing and one.reason == "gone")]
        assert not letters, letters
        assert not record.given_up, record.given_up
        record.failures.clear()
        record.letters.clear()

    async def exact(self, prompt: Key) -> None:
        """Take at rest: neither less nor more than the better of both tiers."""
        book, whole = self.book, self.whole
        ram, files = book.best(prompt, whole.ram()), book.best(prompt, whole.files())
        failures = whole.residency_counts.restore_failures
        taken = await self.take(prompt)
        assert taken is not None
        told = (prompt, taken, ram, files)
        if (
            taken.miss_reason in {"no_room", "restore_failed"}
            or whole.residency_counts.restore_failures > failures
        ):
            assert taken.length <= max(ram, files), told
            return
        assert taken.length == max(ram, files), told
        assert taken.tier == "ssd" or files <= ram, told

    async def finish(self) -> None:
        """Give everything back, flush, and lose power: all that was owed is there and can be taken."""
        while self.leases:
            self.release(0)
        await self.calm()
        await self.flush(ASK_S)
        await self.calm()
        await self.restart("power", self.chance.randint(0, 1000))
        for key in self.chance.sample(sorted(self.book.durable), min(5, len(self.book.durable))):
            await self.exact((key[0], (*key[1], 99)))
        await self.calm()
        await self.stop()


def _start_failed(failure: Failure) -> bool:
    """Whether a disk that fails kept the archive from coming up: it is started again."""
    return failure.path == "storage/archive" and isinstance(failure.error, OSError)
