"""Checkpoints without an engine, and an SSD tier in memory that does what the test says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from samovar.actors.caching.tiers import Sought
from samovar.actors.reader import Restored, RestoreJob
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.kernel import AskTimeout, Rejected
from samovar.storage.entry import StoredEntry, key_digest
from samovar.storage.index import PrefixIndex
from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samovar.runtime.engine.checkpoint import Segments


class FakeCheckpoint:
    """A state made of one buffer of bytes that tell which tokens it is of."""

    def __init__(self, spec: CheckpointSpec, held_bytes: int) -> None:
        self.spec = spec
        self.held_bytes = held_bytes
        pattern = spec.tokens.to_bytes() or b"\0"
        self.data = bytearray((pattern * (spec.nbytes // len(pattern) + 1))[: spec.nbytes])

    def segments(self) -> Segments:
        return [[memoryview(self.data).toreadonly()]]

    def __repr__(self) -> str:
        return f"FakeCheckpoint({self.spec.tokens.tolist()})"


def checkpoint(
    *ids: int,
    namespace: str = "",
    nbytes: int = 10,
    trimmable: bool = True,
    reusable_from: int = 0,
) -> FakeCheckpoint:
    """Return a checkpoint of these tokens that holds ``nbytes``."""
    tensor = TensorSpec("state", "uint8", (nbytes,))
    layer = LayerSpec("fake", len(ids), trimmable, min(reusable_from, len(ids)), tensors=(tensor,))
    return FakeCheckpoint(CheckpointSpec(TokenIds.of(ids), namespace, (layer,)), nbytes)


class FakeGauge:
    """The engine's memory as the test sets it."""

    def __init__(self) -> None:
        self.reading = MemoryReading(0, 0)

    def __call__(self) -> MemoryReading:
        return self.reading


def stored(of: FakeCheckpoint, file_bytes: int | None = None) -> StoredEntry:
    """Return the entry of a checkpoint's file."""
    spec = of.spec
    name = key_digest(spec.namespace, spec.tokens)
    size_bytes = spec.nbytes if file_bytes is None else file_bytes
    return StoredEntry(
        name,
        Path(f"/cache/{name}.kv"),
        spec.namespace,
        spec.tokens,
        size_bytes,
        spec.trimmable,
        spec.reusable_from,
        0.0,
    )


@dataclass
class FakeDisk:
    """The archive and the readers over files that are only there in memory.

    ``find_error``, ``find_s``: what lookups come to and how long they take. ``bad``: files whose restore
    fails, and with what cause. ``open`` unset: restores wait. ``restore_s``: how long a restore takes.
    """

    checkpoints: dict[str, FakeCheckpoint] = field(default_factory=dict)
    index: PrefixIndex[StoredEntry] = field(default_factory=PrefixIndex[StoredEntry])
    find_error: Exception | None = None
    find_s: float = 0.0
    bad: dict[str, Exception] = field(default_factory=dict)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    restore_s: float = 0.001
    read_bytes: int | None = None
    finds: int = 0
    restores: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    clear_error: Exception | None = None

    def __post_init__(self) -> None:
        self.open.set()

    def hold(self, of: FakeCheckpoint, file_bytes: int | None = None) -> StoredEntry:
        """Put a file there, in place of one with the same tokens."""
        entry = stored(of, file_bytes)
        self.index.add(entry)
        self.checkpoints[entry.id] = of
        return entry

    def drop(self, entry: StoredEntry) -> None:
        """Take a file away."""
        if self.checkpoints.pop(entry.id, None) is not None:
            present = self.index.get(entry.tokens, entry.namespace)
            if present is not None:
                self.index.remove(present)

    # -- as the archive ---------------------------------------------------------------------------------

    async def find(self, tokens: TokenIds, namespace: str, longer_than: int, timeout_s: float) -> Sought:
        self.finds += 1
        if self.find_s > timeout_s:
            await asyncio.sleep(timeout_s)
            raise AskTimeout("archive", "Find", "no reply before the deadline")
        await asyncio.sleep(self.find_s)
        if self.find_error is not None:
            raise self.find_error
        match = self.index.longest(tokens, namespace, len(tokens) - 1)
        shared = self.index.common_prefix(tokens, namespace)
        return Sought(match if match is not None and match.length > longer_than else None, shared)

    def touch(self, entry_id: str) -> None:
        self.touched.append(entry_id)

    def quarantine(self, entry_id: str, reason: str) -> None:
        self.quarantined.append(entry_id)
        self._drop(entry_id)

    def forget(self, entry_id: str) -> None:
        self.forgotten.append(entry_id)
        self._drop(entry_id)

    def _drop(self, entry_id: str) -> None:
        for entry in self._entries():
            if entry.id == entry_id:
                self.drop(entry)

    async def clear(self, timeout_s: float) -> int:
        await asyncio.sleep(0)
        if self.clear_error is not None:
            raise self.clear_error
        count = len(self.checkpoints)
        for entry in self._entries():
            self.drop(entry)
        return count

    def _entries(self) -> Iterable[StoredEntry]:
        return list(self.index)

    # -- as the readers ---------------------------------------------------------------------------------

    async def restore(self, job: RestoreJob, timeout_s: float) -> Restored:
        entry = job.entry
        self.restores.append(entry.id)
        held = self.checkpoints.get(entry.id)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(self.restore_s)
                await self.open.wait()
        except TimeoutError:
            raise AskTimeout("readers/0", "Restore", "no reply before the deadline") from None
        except asyncio.CancelledError:
            self.given_up.append(entry.id)
            raise
        if entry.id in self.bad:
            raise _rejected(self.bad[entry.id])
        if held is None:
            raise _rejected(FileNotFoundError(2, "no such file", str(entry.path)))
        read_bytes = entry.file_bytes if self.read_bytes is None else self.read_bytes
        # A restored checkpoint is another object; a scripted engine's state is itself again.
        copy = FakeCheckpoint(held.spec, held.held_bytes) if isinstance(held, FakeCheckpoint) else held
        return Restored(copy, 1000.0 * self.restore_s, read_bytes)


def _rejected(cause: Exception) -> Rejected:
    error = Rejected("readers/0", "Restore", str(cause))
    error.__cause__ = cause
    return error
