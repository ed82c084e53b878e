"""The naive model: what was published, what is owed of it, and every legitimate way for it to go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from samovar.actors.durability import Persisted
from samovar.runtime.kernel import Terminated

from .states import covers, held_bytes, key_of, serves
from .whole import Ear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from samovar.actors.spilling.spill_reports import FlushReport
    from samovar.storage.directory_figures import Departure, OpenReport

    from .states import Key
    from .whole import Whole


@dataclass
class Book(Ear):
    """Sets of keys, searched from end to end.

    ``published``: whatever may be lent, and when it was put last. ``owed``: what one of the tiers must serve.
    ``durable``: what was acknowledged. ``left``: what was durable and has left the disk, as far as residency
    does not know. ``lost``: what a flush has to confess. ``writable``: what may be found on the disk.
    """

    published: dict[Key, int] = field(default_factory=dict)
    owed: set[Key] = field(default_factory=set)
    durable: set[Key] = field(default_factory=set)
    left: set[Key] = field(default_factory=set)
    lost: set[Key] = field(default_factory=set)
    writable: set[Key] = field(default_factory=set)
    left_once: set[Key] = field(default_factory=set)
    since_reset: set[Key] = field(default_factory=set)
    rotten: set[Key] = field(default_factory=set)
    rotten_once: set[Key] = field(default_factory=set)
    resets: int = 0
    serial: int = 0
    cleared_at: int = 0
    read_trouble: bool = False
    blind: bool = False
    faulty: bool = False
    wrongs: list[str] = field(default_factory=list)
    whole: Whole | None = None
    borrower_ended: Callable[[], None] = lambda: None

    # -- what it is told at the moment it happens. An assertion there would crash an actor: it is kept.

    def withdrawn(self, key: Key, why: Departure) -> None:
        if why in {"quarantined", "missing"} and not self.read_trouble and key not in self.rotten_once:
            self.wrongs.append(f"{key} was {why} without need")
        self.rotten.discard(key)
        self.left_once.add(key)
        files = self._files()
        for each in [one for one in self.owed | self.durable if covers(key, one)]:
            if not _covered(files, each):
                self.durable.discard(each)
                self.left.add(each)

    def announced(self, key: Key) -> None:
        self.writable.add(key)
        self.since_reset.add(key)

    def dropped(self, key: Key, ram_bytes: int) -> None:
        assert self.whole is not None
        if ram_bytes + held_bytes(key) <= self.whole.shape.hard_bytes:
            self.wrongs.append(f"{key} was lost below the hard ceiling, at {ram_bytes + held_bytes(key)}")
        held = [*self.whole.ram(), *self._files()]
        for each in [one for one in self.owed if covers(key, one)]:
            if not _covered(held, each):
                self.owed.discard(each)
                self.lost.add(each)

    def reset(self) -> None:
        self.resets += 1
        self.lost.clear()
        self.since_reset = set()

    def message(self, path: str, message: Any) -> None:
        if isinstance(message, Terminated) and message.ref.path == "serving/borrower":
            self.borrower_ended()
        if path.endswith("/durability") or not isinstance(message, Persisted):
            return
        key = key_of(message.namespace, message.tokens)
        files = self._files()
        if _covered(files, key):
            self.lost = {one for one in self.lost if not _covered(files, one)}
            if not any(covers(bad, key) for bad in self.rotten):
                self.durable.add(key)
        elif not _covered(self.left_once, key):
            self.wrongs.append(f"{key} is called durable and never was there")

    def opened(self, report: OpenReport) -> None:
        self.blind = bool(report.failures)
        files = self._files()
        for each in [one for one in self.owed | self.durable if not _covered(files, one)]:
            if each in self.durable and not self.faulty:
                self.wrongs.append(f"{each} was not found again")
            self.durable.discard(each)
            self.left.add(each)

    def _files(self) -> Iterable[Key]:
        assert self.whole is not None
        return self.whole.files()

    # -- what the test does -----------------------------------------------------------------------------

    def put(self, key: Key) -> None:
        self.serial += 1
        self.published[key] = self.serial
        self.owed.add(key)
        self.left.discard(key)
        self.lost.discard(key)

    def may_lend(self, key: Key, asked_after_clear: int) -> bool:
        return self.published.get(key, 0) > asked_after_clear

    def cleared_ram(self, whole: Whole) -> None:
        self._keep_owed(whole.files())

    def cleared_ssd(self, whole: Whole, *, certain: bool) -> None:
        """Note that the disk was cleared; not ``certain``: a file that would not go may be found again."""
        self._keep_owed(whole.ram())
        self.durable = {key for key in self.durable if _covered(whole.files(), key)}
        if certain:
            self.writable = self.since_reset | set(whole.files())

    def cleared_all(self, *, certain: bool) -> None:
        if certain:
            self.cleared_at = self.serial

    def _keep_owed(self, held: Iterable[Key]) -> None:
        self.owed = {key for key in self.owed if _covered(held, key)}
        self.left &= self.owed

    def residency_crashed(self, whole: Whole) -> None:
        self._keep_owed(whole.files())

    def durability_restarted(self) -> None:
        """It has forgotten what it would have to confess."""
        self.lost.clear()

    def rot(self, key: Key) -> None:
        """A file goes bad: nothing can be expected of it any more."""
        self.rotten.add(key)
        self.rotten_once.add(key)  # a power loss may bring it back from the quarantine
        gone = {one for one in self.owed | self.durable if covers(key, one)}
        self.durable -= gone
        self.left |= gone

    def restarted(self, whole: Whole, due: set[Key], *, healthy: bool) -> None:
        """A new process has opened the disk: what was durable is there, or the cap made it go just now."""
        files = whole.files()
        missing = [key for key in due & self.durable if not _covered(files, key)]
        assert not healthy or not missing, f"acknowledged and gone: {missing}"
        risen = [key for key in files if key not in self.writable]
        assert not risen, f"cleared, and there again: {risen}"
        self.durable = {key for key in due & self.durable if _covered(files, key)}
        self.owed = set(self.durable)
        self.left.clear()
        self.lost.clear()
        self.read_trouble = not healthy

    def flushed(self, report: FlushReport, owed: set[Key], lost: set[Key], timeout_s: float) -> None:
        """Judge the report of a flush that began when ``owed`` was owed and ``lost`` lost."""
        assert report.elapsed_ms <= 1000.0 * (timeout_s + 1.0), report
        assert report.durable == (report.reason is None), report
        if not report.durable:
            assert report.pending + report.missing > 0, report
            counts = [report.failed, report.pending - report.failed, report.missing]
            assert all(str(count) in (report.reason or "") for count in counts if count), report
            return
        assert report.pending == report.missing == report.failed == report.pending_bytes == 0, report
        files = self._files()
        for key in owed & self.owed:
            assert _covered(files, key) or key in self.left, f"flushed as durable, but not there: {key}"
        for key in lost & self.lost:
            assert _covered(files, key) or key in self.left, f"lost, and the flush did not say so: {key}"
        self.durable |= {key for key in owed if _covered(files, key)} - self._of_rotten()
        self.lost.clear()

    def _of_rotten(self) -> set[Key]:
        return {one for one in self.owed for bad in self.rotten if covers(bad, one)}

    def settled(self, whole: Whole) -> None:
        """Nothing is on its way: compare what is owed with what is held."""
        assert not self.wrongs, self.wrongs
        ram, files = whole.ram(), whole.files()
        for key, entry in ram.items():
            if entry.durable:
                assert _covered(files, key), f"{key} passes for durable in RAM and is not on disk"
            else:
                self.left.discard(key)
        held = [*ram, *files]
        for key in [one for one in self.owed if not _covered(held, one)]:
            assert key in self.left, f"{key} is neither in RAM nor on disk, and nothing made it go"
            self.owed.discard(key)
            self.left.discard(key)
        uncovered = [key for key in self.durable if not _covered(files, key)]
        assert not uncovered, f"durable and not on disk: {uncovered}"
        stray = [key for key in held if key not in self.published]
        assert not stray, f"never published: {stray}"

    def best(self, prompt: Key, held: Iterable[Key]) -> int:
        """Return how many tokens of a prompt the entries can serve, at most all but the last."""
        namespace, ids = prompt
        longest = 0
        for key in held:
            if key[0] == namespace:
                pairs = zip(key[1], ids, strict=False)
                common = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
                common = min(len(key[1]), len(ids)) if common is None else common
                most = min(common, len(ids) - 1)
                length = most if serves(key, most) else len(key[1]) if len(key[1]) <= most else 0
                longest = max(longest, length)
        return longest


def _covered(held: Iterable[Key], key: Key) -> bool:
    return any(covers(one, key) for one in held)
