"""What is known outside the tree: what was published, what is owed, and which ways out were legitimate.

Everything here is told at the moment it happens, inside an actor's handler or on a disk's thread, so nothing
raises: what is wrong is collected, and the run fails at its next look.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from .engine import serves_from

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samovar.storage.directory import CheckpointDirectory
    from samovar.storage.directory_figures import Withdrawal
    from samovar.storage.entry import StoredEntry

Key: TypeAlias = "tuple[str, bytes]"
"""Namespace, and token ids of four bytes each."""
ID_BYTES = 4


def covers(entry: StoredEntry, key: Key) -> bool:
    """Whether a file serves exactly the tokens of a key."""
    count = len(key[1]) // ID_BYTES
    return (
        entry.namespace == key[0]
        and len(entry.tokens) >= count
        and entry.serves(count)
        and entry.tokens.to_bytes().startswith(key[1])
    )


def uncovered(keys: Iterable[Key], entries: Iterable[StoredEntry]) -> list[Key]:
    """Return the keys that none of the entries serves."""
    by_namespace: dict[str, list[StoredEntry]] = {}
    for entry in entries:
        by_namespace.setdefault(entry.namespace, []).append(entry)
    return [key for key in keys if not any(covers(one, key) for one in by_namespace.get(key[0], ()))]


def lengths(keys: Iterable[Key]) -> list[int]:
    """Return how many tokens the keys have."""
    return sorted(len(key[1]) // ID_BYTES for key in keys)


@dataclass
class Books:
    """``published``: every state that a lane made. ``put``: when residency got it, by a count of messages.

    ``acknowledged``: what was called durable and has not left the disk in a known way since. ``left`` counts
    the files that went, by why. ``cleared_at``: nothing put before may be lent to who asks from now on.
    """

    kind: str
    published: dict[str, set[bytes]] = field(default_factory=dict)
    put: dict[Key, int] = field(default_factory=dict)
    acknowledged: dict[Key, None] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    gone: deque[StoredEntry] = field(default_factory=lambda: deque(maxlen=10_000))
    cleared_at: int = 0
    rotten: list[StoredEntry] = field(default_factory=list)
    may_evict: bool = False
    unreadable: bool = False
    wrongs: list[str] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        """Note something that must not be."""
        if len(self.wrongs) < 50:
            self.wrongs.append(what)

    # -- told by the engine, the archive and residency

    def heard(self, namespace: str, tokens: bytes) -> None:
        """Note a state that a lane has made."""
        self.published.setdefault(namespace, set()).add(tokens)

    def withdrawn(self, gone: Withdrawal, directory: CheckpointDirectory) -> None:
        """Note that a file leaves the index; with it goes what only it served."""
        self.left[gone.why] = self.left.get(gone.why, 0) + 1
        self.gone.append(gone.entry)
        if gone.why in {"quarantined", "missing"} and not (self.rotten or self.unreadable):
            self.wrong(f"a file of {len(gone.entry.tokens)} tokens was {gone.why} without need")
        if gone.why == "evicted" and not self.may_evict:
            self.wrong(f"a file of {len(gone.entry.tokens)} tokens was evicted though there was room")
        hit = [key for key in self.acknowledged if covers(gone.entry, key)]
        for key in uncovered(hit, directory.entries()):
            del self.acknowledged[key]

    def persisted(self, key: Key, directory: CheckpointDirectory | None) -> None:
        """Note that residency is told that something is durable."""
        if directory is not None and not uncovered([key], directory.entries()):
            if uncovered([key], self.rotten):
                self.acknowledged[key] = None
        elif uncovered([key], self.gone):
            self.wrong(f"{len(key[1]) // ID_BYTES} tokens are called durable and were never there")

    def opened(self, directory: CheckpointDirectory, when: str, *, certain: bool) -> None:
        """A scan has found what there is: all that was acknowledged, unless the disk failed it."""
        lost = uncovered(self.acknowledged, directory.entries())
        if lost and certain:
            lengths = sorted(len(key[1]) // ID_BYTES for key in lost)
            self.wrong(f"acknowledged and not found {when}: prefixes of {lengths} tokens")
        for key in lost:
            del self.acknowledged[key]

    # -- asked by clients

    def may_lend(self, namespace: str, prompt: bytes, tokens: int, cleared_at: int) -> bool:
        """Whether something published serves so many tokens of a prompt, put since a clear."""
        prefix = prompt[: ID_BYTES * tokens]
        for made in self.published.get(namespace, ()):
            count = len(made) // ID_BYTES
            serves = tokens == count or serves_from(self.kind, count) <= tokens < count
            fresh = not cleared_at or self.put.get((namespace, made), 0) > cleared_at
            if serves and fresh and made.startswith(prefix):
                return True
        return False


@dataclass
class Counters:
    """Counters of one process never go backwards."""

    last: dict[str, float] = field(default_factory=dict)

    def look(self, stats: Any, books: Books) -> None:
        """Compare with the last look."""
        now = dict(_counters(stats, ""))
        for name, count in now.items():
            before = self.last.get(name, 0)
            if count < before:
                books.wrong(f"{name} went back from {before} to {count}")
        self.last.update(now)


COUNTERS = {
    *("admitted", "refused", "cancelled", "failed", "finished", "resumed", "restarts", "dead_letters"),
    *("hits", "misses", "hit_tokens", "prompt_tokens", "evictions", "demotions", "lost", "session_hits"),
    *("restores", "restore_failures", "restored_bytes", "spills", "written_bytes", "dropped_spills"),
    *("failed_spills", "corrupt", "unlink_failures", "steps", "decoded_tokens", "prefilled_tokens"),
}


def _counters(stats: Any, path: str) -> Iterable[tuple[str, float]]:
    if isinstance(stats, dict):
        for name, value in stats.items():
            if name in COUNTERS and isinstance(value, int):
                yield f"{path}{name}", value
            else:
                yield from _counters(value, f"{path}{name}.")
    elif isinstance(stats, (list, tuple)):
        for place, value in enumerate(stats):
            yield from _counters(value, f"{path}{place}.")
