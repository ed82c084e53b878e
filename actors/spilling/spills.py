"""One attempt to make a checkpoint durable: covered already, or reserved, written and committed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...runtime.kernel import ActorCrashed, AskError, Overloaded, Rejected
from ...storage.container_errors import ContainerError
from ...storage.directory_errors import NoRoom, ReservationVoid
from ..writer import WriteCancelled, WriteJob

if TYPE_CHECKING:
    import threading

    from ...runtime.engine.checkpoint import Checkpoint
    from ...storage.dirty import FailureKind
    from ..archive import Archive
    from ..writer import Writers


@dataclass(frozen=True, slots=True)
class SpillTimeouts:
    """Deadlines in seconds: of a lookup, of file work in the archive's queue, of a write."""

    lookup_s: float = 10.0
    file_s: float = 60.0
    write_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Spilled:
    """The checkpoint is durable. ``file_bytes`` None: it was covered already, and nothing was written."""

    file_bytes: int | None
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Spiller:
    """Makes checkpoints durable in the directory of ``identity``."""

    identity: str
    archive: Archive
    writers: Writers
    timeouts: SpillTimeouts

    async def spill(self, checkpoint: Checkpoint, cancelled: threading.Event) -> Spilled:
        """Make a checkpoint durable. Raises AskError or WriteCancelled; what was begun is then abandoned.

        So it is when this is cancelled. ``cancelled`` set meanwhile keeps the file from being committed.
        """
        loop = asyncio.get_running_loop()
        begun_s, spec = loop.time(), checkpoint.spec
        file_bytes = None
        if not await self.archive.covers(spec.tokens, spec.namespace, self.timeouts.lookup_s):
            file_bytes = await self._store(checkpoint, cancelled)
        return Spilled(file_bytes, 1000.0 * (loop.time() - begun_s))

    async def _store(self, checkpoint: Checkpoint, cancelled: threading.Event) -> int:
        archive, timeouts = self.archive, self.timeouts
        reservation = await archive.reserve(checkpoint.spec, timeouts.file_s)
        failure: Exception | None = None
        committed = False
        try:
            job = WriteJob(reservation, checkpoint, self.identity, cancelled)
            stored = await self.writers.write(job, timeouts.write_s)
            _check_wanted(cancelled)
            await archive.commit(reservation, stored, timeouts.file_s)
            committed = True
        except (AskError, WriteCancelled) as error:
            failure = error
            raise
        finally:
            if not committed:
                cancelled.set()
                archive.abandon(reservation, failure)
        return stored.file_bytes


def _check_wanted(cancelled: threading.Event) -> None:
    if cancelled.is_set():
        raise WriteCancelled("cancelled after it was written")


def cause_of(error: Exception) -> Exception:
    """Return what a refusal was for, or the error itself."""
    cause = error.__cause__
    return cause if isinstance(error, Rejected) and isinstance(cause, Exception) else error


def failure_kind(error: Exception) -> FailureKind:
    """Return what an error of ``spill`` says about the disk and about the checkpoint."""
    cause = cause_of(error)
    match cause:
        case ActorCrashed():
            return "crash"
        case NoRoom():
            return "room" if cause.reason == "cap" else "disk"
        case ReservationVoid() | WriteCancelled() | Overloaded():
            return "room"
        case ContainerError() | ValueError():
            return "refused"
        case _:
            return "disk"
