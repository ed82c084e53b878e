"""What is kept in RAM: entries, their bytes, their sessions, and who would go next. Pure bookkeeping.

Nothing here knows a clock, an actor or a disk; ``actors/residency.py`` decides with it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from .index import PrefixIndex
from .retention import LeastRecentlyUsed, Retention, superseded_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .spec import CheckpointSpec
    from .tokens import TokenIds


class Keepable(Protocol):
    """A checkpoint, as far as keeping it goes. Immutable."""

    @property
    def spec(self) -> CheckpointSpec:
        """Tokens, namespace, layers."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory that it keeps alive."""
        ...


C = TypeVar("C", bound=Keepable)


class Resident(Generic[C]):
    """A checkpoint in RAM. Told apart by identity: a replacement is another one.

    ``durable``: a file on disk serves exactly its tokens. ``durable_prefix``: one serves so many of them,
    from the first on, as far as is known. ``announced``: durability knows this version. ``urged``: it was
    asked to write it first. ``failed``: it could not, the last time. ``withheld_until_s``: not announced
    before, unless it is needed. ``deferred``: nor before enough of it is new (``caching/withholding.py``).
    ``version`` is never used twice while the process lives.
    """

    __slots__ = (
        *("announced", "checkpoint", "deferred", "durable", "durable_prefix", "failed", "file_id"),
        *("held_bytes", "leases", "namespace", "reusable_from", "sessions", "tokens", "touched_s"),
        *("trimmable", "urged", "used_s", "version", "withdrawals", "withheld_until_s"),
    )

    def __init__(self, checkpoint: C, version: int, used_s: float, *, durable: bool) -> None:
        spec = checkpoint.spec
        self.checkpoint = checkpoint
        self.version = version
        self.namespace = spec.namespace
        self.tokens: TokenIds = spec.tokens
        self.trimmable = spec.trimmable
        self.reusable_from = spec.reusable_from
        self.held_bytes = checkpoint.held_bytes
        self.used_s = used_s
        self.durable = durable
        self.durable_prefix = len(spec.tokens) if durable else 0
        self.deferred = False
        self.file_id: str | None = None
        self.announced = False
        self.urged = False
        self.failed = False
        self.touched_s = used_s
        self.withdrawals = 0
        self.withheld_until_s = 0.0
        self.leases = 0
        self.sessions: set[str] = set()

    def serves(self, length: int) -> bool:
        """Whether the first ``length`` of its tokens can be served from it."""
        return length == len(self.tokens) or (self.trimmable and self.reusable_from <= length)


@dataclass(frozen=True, slots=True)
class Kept(Generic[C]):
    """What a ``put`` did. ``gone``: the duplicate that it replaced and the ancestors that it superseded."""

    entry: Resident[C]
    gone: tuple[Resident[C], ...]


class Residence(Generic[C]):
    """The entries in RAM. ``max_bytes`` is what makes one oversized; nothing here enforces it.

    One owner at a time. At most ``max_sessions`` session references; the oldest are forgotten.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        max_sessions: int,
        retention: Callable[[], Retention[Resident[C]]] = LeastRecentlyUsed,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_sessions = max_sessions
        self._retention = retention
        self._sessions: OrderedDict[tuple[str, str], Resident[C]] = OrderedDict()
        self.clear()

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Resident[C]]:
        return iter(self.index)

    @property
    def sessions(self) -> int:
        """How many session references there are."""
        return len(self._sessions)

    def clear(self) -> None:
        """Forget everything."""
        self.index = PrefixIndex[Resident[C]]()
        self.bytes = 0
        self._order = self._retention()
        self._oversized: dict[Resident[C], None] = {}
        self._sessions.clear()

    # -- entries ----------------------------------------------------------------------------------------

    def put(self, entry: Resident[C], session: str | None) -> Kept[C]:
        """Keep ``entry``: it replaces an exact duplicate and supersedes ancestors that it can serve.

        The session references of those move to it, since it is what serves their sessions from now on.
        """
        gone = superseded_by(entry, self.index)
        duplicate = self.index.get(entry.tokens, entry.namespace)
        if duplicate is not None:
            gone.append(duplicate)
        sessions = {name for old in gone for name in old.sessions}
        for old in gone:
            self.remove(old)
        self.index.add(entry)
        self.bytes += entry.held_bytes
        self._order.admit(entry)
        if entry.held_bytes > self._max_bytes:
            self._oversized[entry] = None
        for name in sorted(sessions) if session is None else [*sorted(sessions), session]:
            self.reference(name, entry)
        return Kept(entry, tuple(gone))

    def remove(self, entry: Resident[C]) -> None:
        """Let an entry go, with the session references to it. KeyError for one that is not here."""
        self.index.remove(entry)
        self.bytes -= entry.held_bytes
        self._order.discard(entry)
        self._oversized.pop(entry, None)
        for name in entry.sessions:
            del self._sessions[name, entry.namespace]
        entry.sessions.clear()

    def use(self, entry: Resident[C], now_s: float) -> None:
        """Note that an entry was lent."""
        entry.used_s = now_s
        self._order.use(entry)

    def holds(self, entry: Resident[C]) -> bool:
        """Whether this very entry is here."""
        return self.index.get(entry.tokens, entry.namespace) is entry

    # -- sessions ---------------------------------------------------------------------------------------

    def latest(self, session: str, namespace: str) -> Resident[C] | None:
        """Return the entry that a session refers to."""
        return self._sessions.get((session, namespace))

    def reference(self, session: str, entry: Resident[C]) -> None:
        """Let a session refer to ``entry`` and to nothing else in its namespace."""
        key = (session, entry.namespace)
        self._dereference(key)
        if len(self._sessions) >= self._max_sessions:
            self._dereference(next(iter(self._sessions)))
        self._sessions[key] = entry
        entry.sessions.add(session)
        self._order.prefer(entry, kept=True)

    def close_session(self, session: str) -> int:
        """Forget a session in every namespace; its entries stay. Return how many references that were."""
        keys = [key for key in self._sessions if key[0] == session]
        for key in keys:
            self._dereference(key)
        return len(keys)

    def _dereference(self, key: tuple[str, str]) -> None:
        entry = self._sessions.pop(key, None)
        if entry is not None:
            entry.sessions.discard(key[0])
            if not entry.sessions:
                self._order.prefer(entry, kept=False)

    # -- who would go -----------------------------------------------------------------------------------

    def victims(self, target_bytes: int, *, lent: bool = False) -> list[Resident[C]]:
        """Return who has to go to get down to ``target_bytes``, the most expendable first.

        Entries larger than the cap go before all others, and nothing else goes for them: they would push
        everything out. Lent ones are passed over, since letting them go frees nothing while they are lent;
        with ``lent`` they go last.
        """
        chosen: list[Resident[C]] = []
        left = self.bytes
        if not lent:
            left -= sum(entry.held_bytes for entry in self._oversized if entry.leases)
        for entry in self._in_order(lent=lent):
            if left <= target_bytes:
                break
            chosen.append(entry)
            left -= entry.held_bytes
        return chosen

    def _in_order(self, *, lent: bool) -> Iterator[Resident[C]]:
        if self._oversized:
            yield from (e for e in self._order.victims() if e in self._oversized and not e.leases)
        for entry in self._order.victims():
            if not entry.leases and entry not in self._oversized:
                yield entry
        if lent:
            yield from (entry for entry in self._order.victims() if entry.leases)

    def idle_since(self, before_s: float) -> list[Resident[C]]:
        """Return the entries that are not lent and were last used at ``before_s`` or earlier."""
        return [entry for entry in self.index if not entry.leases and entry.used_s <= before_s]

    # -- check ------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Assert that all books agree. Walks everything."""
        self.index.check_integrity()
        entries = set(self.index)
        assert entries == set(self._order.victims()), "index and retention disagree"
        held = sum(entry.held_bytes for entry in entries)
        assert held == self.bytes, f"{held} bytes held, {self.bytes} counted"
        oversized = {entry for entry in entries if entry.held_bytes > self._max_bytes}
        assert oversized == set(self._oversized), "oversized entries are not what is noted"
        references = {(name, entry.namespace): entry for entry in entries for name in entry.sessions}
        assert references == dict(self._sessions), "sessions and entries disagree"
        assert len(self._sessions) <= self._max_sessions, "more sessions than allowed"
